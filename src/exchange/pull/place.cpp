// SPDX-License-Identifier: Apache-2.0
//
// The receive phase of dispatch: reads the peers' routing, plans, and places rows as they become
// ready. Per rank: one read per arriving token, and one write per local expert that wants it, or
// per token in layouts with one row per token.

#include <algorithm>
#include <cstring>

#include "core/format.h"
#include "cpu/streaming.h"
#include "exchange/pull/pull_exchange.h"
#include "plan/overflow.h"

namespace switchyard {

Dispatched PullExchange::dispatch(const DispatchCall& call) {
  return dispatch_receive(dispatch_send(call), call.stream);
}

Dispatched PullExchange::dispatch_receive(const DispatchHandle& handle, Stream) {
  Slot& slot = find(handle, Stage::kSent, "dispatch_receive");
  control_.check_alive({Phase::kDispatchReceive, slot.call, -1});
  control_.enter(Phase::kDispatchReceive, slot.call);
  slot.wait_ns.assign(static_cast<std::size_t>(num_ranks_), 0);
  receive_headers(slot);
  try {
    for (int source = 0; source < num_ranks_; ++source) {
      require_alike(slot, source,
                    in_window<OperationHeader>(source, shape_.window.header(slot.call)));
    }
    if (slot.routing->call == slot.call) plan(slot);
  } catch (const Error&) {
    // Every rank sees the same difference: all give the call up, and the group goes on.
    handles_.advance(index_of(slot), Stage::kFree);
    finish(slot.call);
    throw;
  }
  gather_weights(slot);
  const Placing placing{
      scale_blocks(config_, shape_, rank_, slot.receive().num_buffer_rows),
      wants_streaming(slot.receive().placements.size() * shape_.payload_bytes, num_ranks_)};
  if (!slot.input.options.routing_only) {
    clear_padding(slot, placing);
    for (int i = 0; i < num_ranks_; ++i) place_rows_of(slot, (rank_ + i) % num_ranks_, placing);
    if (placing.streaming) streaming_store_fence();
  }
  place_routing(slot);
  handles_.advance(index_of(slot), Stage::kReceived);
  finish(slot.call);
  return describe(slot, placing);
}

void PullExchange::receive_headers(Slot& slot) {
  table_.assign(static_cast<std::size_t>(num_ranks_), {});
  const bool is_new = slot.routing->call == slot.call;
  for (int source = 0; source < num_ranks_; ++source) {
    RankRouting& routing = table_[static_cast<std::size_t>(source)];
    if (source == rank_) {
      routing = own_routing(slot);
      continue;
    }
    const auto& header = in_window<OperationHeader>(source, shape_.window.header(slot.call));
    // Pairs with the release in publish_header().
    wait_for(slot, source,
             [&] { return header.call.load(std::memory_order_acquire) == slot.call; });
    const std::byte* base = window_->base(source);
    routing.num_tokens = header.num_tokens;
    require(routing.num_tokens >= 0 && routing.num_tokens <= config_.max_tokens_per_rank,
            Errc::kInternal, "dispatch: rank {} announces {} tokens, max_tokens_per_rank is {}",
            source, routing.num_tokens, config_.max_tokens_per_rank);
    if (is_new) {
      routing.topk_ids =
          reinterpret_cast<const std::uint16_t*>(base + shape_.window.ids(slot.call));
    }
    if (header.has_weights != 0) {
      routing.topk_weights =
          reinterpret_cast<const float*>(base + shape_.window.weights(slot.call));
    }
  }
}

// When values are not all equal, every rank sees at least one that differs from its own.
void PullExchange::require_alike(const Slot& slot, int source,
                                 const OperationHeader& header) const {
  const auto& own = *slot.routing;
  require(header.routing_call == own.call, Errc::kInvalidArgument,
          "dispatch: rank {} uses the routing of call {}, rank {} that of call {}; every rank must "
          "pass the handle of the same dispatch",
          source, header.routing_call, rank_, own.call);
  require(header.max_tokens == own.max_tokens, Errc::kInvalidArgument,
          "dispatch: rank {} passed max_tokens {}, rank {} {}; every rank must pass the same",
          source, header.max_tokens, rank_, own.max_tokens);
  require((header.routing_only != 0) == slot.input.options.routing_only, Errc::kInvalidArgument,
          "dispatch: rank {} passed routing_only {}, rank {} {}; every rank must pass the same",
          source, header.routing_only != 0, rank_, slot.input.options.routing_only);
  require(std::memcmp(&header.tensor_scale, &slot.input.tensor_scale, sizeof(float)) == 0,
          Errc::kInvalidArgument,
          "dispatch: rank {} passed tensor_scale {}, rank {} {}; every rank must pass the same",
          source, header.tensor_scale, rank_, slot.input.tensor_scale);
}

void PullExchange::plan(Slot& slot) {
  CachedRouting& routing = *slot.routing;
  ReceiveShape shape = shape_.receive;
  shape.max_tokens = routing.max_tokens;
  routing.receive.build(rank_, shape_.ownership, config_.num_topk, shape, table_);
  routing.is_received = true;
  const std::int64_t capacity = shape.capacity;
  const std::int32_t full =
      capacity == 0 ? -1 : find_overflow(routing.receive.expert_load, capacity);
  if (full < 0) return keep_received(routing);
  std::vector<std::int64_t> wanted = routing.receive.expert_load;
  routing.is_received = config_.overflow == Overflow::kDrop;
  require(routing.is_received, Errc::kCapacityExceeded,
          "dispatch: expert {} is sent {} rows, its capacity is {}; raise the capacity or choose "
          "Overflow::kDrop",
          full, wanted[static_cast<std::size_t>(full)], capacity);
  drop_overflow(config_.num_topk, capacity, wanted, table_, kept_ids_);
  const std::vector<std::uint16_t>& kept = kept_ids_[static_cast<std::size_t>(rank_)];
  if (!kept.empty()) {
    for (std::size_t i = 0; i < kept.size(); ++i)
      routing.num_dropped += kept[i] != routing.topk_ids[i];
    routing.topk_ids = kept;
    table_[static_cast<std::size_t>(rank_)].topk_ids = routing.topk_ids.data();
    routing.send.build(shape_.ownership, config_.num_topk, config_.layout, own_routing(slot));
  }
  routing.receive.build(rank_, shape_.ownership, config_.num_topk, shape, table_);
  routing.receive.expert_load = std::move(wanted);
  keep_received(routing);
}

// Keeps what `describe` reports, for this dispatch and for those that reuse its routing.
void PullExchange::keep_received(CachedRouting& routing) const {
  routing.rows_per_rank.clear();
  for (std::size_t r = 0; r < table_.size(); ++r) {
    routing.rows_per_rank.push_back(routing.receive.first_arrival[r + 1] -
                                    routing.receive.first_arrival[r]);
  }
  routing.arrival_ids.clear();
  if (is_expert_major(config_.layout)) return;
  const int first = shape_.ownership.first(rank_);
  const int num_local = shape_.ownership.count(rank_);
  for (const Arrival& arrival : routing.receive.arrivals) {
    const RankRouting& source = table_[static_cast<std::size_t>(arrival.source)];
    for (int k = 0; k < config_.num_topk; ++k) {
      const std::uint16_t id = source.topk_ids[std::int64_t{arrival.token} * config_.num_topk + k];
      std::int32_t kept = id == kNoExpert ? -1 : id;
      if (config_.layout == Layout::kCompact) {
        kept = kept >= first && kept < first + num_local ? kept - first : -1;
      }
      routing.arrival_ids.push_back(kept);
    }
  }
}

void PullExchange::gather_weights(Slot& slot) const {
  slot.placement_weights.clear();
  if (!is_expert_major(config_.layout)) return;  // the caller applies these weights
  const bool any = std::any_of(table_.begin(), table_.end(),
                               [](const RankRouting& r) { return r.topk_weights != nullptr; });
  if (!any) return;
  slot.placement_weights.assign(slot.receive().placements.size(), 1.0f);
  for (const Arrival& arrival : slot.receive().arrivals) {
    const float* weights = table_[static_cast<std::size_t>(arrival.source)].topk_weights;
    if (weights == nullptr) continue;
    for (std::int32_t i = arrival.first; i < arrival.first + arrival.count; ++i) {
      const auto at = static_cast<std::size_t>(i);
      slot.placement_weights[at] =
          weights[std::int64_t{arrival.token} * config_.num_topk + slot.receive().placements[at].k];
    }
  }
}

// Zeroes what no row fills but consumers read: the rest of swizzled scale tiles and, with
// zero_padding, the alignment gaps.
void PullExchange::clear_padding(Slot& slot, const Placing& placing) const {
  const bool is_batched = config_.layout == Layout::kBatched;
  // The geometry of layout batched never changes, so its padding keeps the zeros of allocation.
  const bool is_swizzled = config_.scale_layout == ScaleLayout::kSwizzled && !is_batched;
  if (is_swizzled || config_.zero_padding) {
    std::memset(slot.scales.data(), 0, placing.scales.num_bytes());
  }
  if (!config_.zero_padding) return;
  const ReceivePlan& receive = slot.receive();
  const auto clear = [&](std::int64_t begin, std::int64_t end) {
    const auto rows = static_cast<std::size_t>(end - begin);
    std::memset(slot.rows.data() + static_cast<std::size_t>(begin) * shape_.payload_bytes, 0,
                rows * shape_.payload_bytes);
    for (std::size_t i = 0; i < slot.payloads.size(); ++i) {
      const auto bytes = static_cast<std::size_t>(config_.payload_bytes[i]);
      std::memset(slot.payloads[i].data() + static_cast<std::size_t>(begin) * bytes, 0,
                  rows * bytes);
    }
  };
  std::int64_t filled = 0;
  for (std::size_t e = 0; e < receive.num_rows.size(); ++e) {
    clear(filled, receive.first_row[e]);
    filled = receive.first_row[e] + receive.num_rows[e];
  }
  clear(filled, receive.num_buffer_rows);
}

void PullExchange::place_rows_of(Slot& slot, int source, const Placing& placing) {
  const auto& header = in_window<OperationHeader>(source, shape_.window.header(slot.call));
  const bool in_place = source == rank_ && is_in_place() && slot.input.is_stored;
  const bool is_major = is_expert_major(config_.layout);
  std::int64_t rows_ready = in_place ? slot.num_tokens() : 0;
  for (const Arrival& arrival : arrivals_of(slot, source)) {
    const std::byte* from = window_->base(source) + shape_.window.row(slot.call, arrival.token);
    if (in_place) {
      from = slot.input.row(arrival.token);
    } else if (arrival.token >= rows_ready) {
      // Pairs with the release in publish_rows().
      wait_for(slot, source, [&] {
        rows_ready = header.rows_ready.load(std::memory_order_acquire);
        return arrival.token < rows_ready;
      });
    }
    places_.clear();
    const auto place = [&](std::int64_t row) {
      places_.push_back(slot.rows.data() + static_cast<std::size_t>(row) * shape_.payload_bytes);
      if (!in_place) place_extras(slot, from, row, placing);
    };
    if (!is_major) place(arrival.row);
    for (const Placement& placement : placements_of(slot, arrival)) {
      if (is_major) place(placement.row);
    }
    copy_row(from, places_, shape_.payload_bytes, placing.streaming);
  }
}

// Places the scales and extra payloads of one row.
void PullExchange::place_extras(Slot& slot, const std::byte* from, std::int64_t row,
                                const Placing& placing) {
  if (shape_.num_scales > 0) {
    placing.scales.place(from + shape_.window.scales_in_row, row, slot.scales.data());
  }
  for (std::size_t i = 0; i < slot.payloads.size(); ++i) {
    const auto bytes = static_cast<std::size_t>(config_.payload_bytes[i]);
    std::memcpy(slot.payloads[i].data() + static_cast<std::size_t>(row) * bytes,
                from + shape_.extras_in_row[i], bytes);
  }
}

// Writes ids and weights of received rows; rows without a token get -1 and 0.
void PullExchange::place_routing(Slot& slot) const {
  const ReceivePlan& receive = slot.receive();
  auto* weights = slot.weights.as<float>();
  if (is_expert_major(config_.layout)) {
    if (!config_.sends_weights) return;
    std::fill_n(weights, receive.num_buffer_rows, 0.0f);
    for (std::size_t i = 0; i < receive.placements.size(); ++i) {
      weights[receive.placements[i].row] = slot.weight(static_cast<std::int32_t>(i));
    }
    return;
  }
  const int num_topk = config_.num_topk;
  auto* ids = slot.topk_ids.as<std::int32_t>();
  std::fill_n(ids, receive.num_buffer_rows * num_topk, -1);
  if (config_.sends_weights) std::fill_n(weights, receive.num_buffer_rows * num_topk, 0.0f);
  const std::int32_t* kept = slot.routing->arrival_ids.data();
  for (const Arrival& arrival : receive.arrivals) {
    std::copy_n(kept, num_topk, ids + arrival.row * num_topk);
    kept += num_topk;
    if (!config_.sends_weights) continue;
    const float* sent = table_[static_cast<std::size_t>(arrival.source)].topk_weights;
    float* to = weights + arrival.row * num_topk;
    if (sent == nullptr) {
      std::fill_n(to, num_topk, 1.0f);
    } else {
      std::copy_n(sent + std::int64_t{arrival.token} * num_topk, num_topk, to);
    }
  }
}

HostCounts PullExchange::host_counts(const Slot& slot) const {
  const ReceivePlan& receive = slot.receive();
  const bool is_major = is_expert_major(config_.layout);
  HostCounts counts;
  counts.num_rows =
      static_cast<std::int64_t>(is_major ? receive.placements.size() : receive.arrivals.size());
  counts.num_dropped = slot.routing->num_dropped;
  counts.rows_per_rank = slot.routing->rows_per_rank;
  counts.rows_per_expert = receive.num_rows;
  counts.expert_load = receive.expert_load;
  counts.wait_ns = slot.wait_ns;
  return counts;
}

Dispatched PullExchange::places(const DispatchHandle& handle) const {
  const Slot& slot = slot_of(handle, "places");
  const std::int64_t num_local = shape_.ownership.count(rank_);
  const std::int64_t rows = num_local * shape_.receive.capacity;
  Dispatched result;
  result.handle = handle;
  result.experts.scheme = config_.scheme;
  result.experts.rows = TensorView(slot.rows.data(), stored_dtype(config_.scheme),
                                   {num_local, shape_.receive.capacity, config_.hidden});
  if (config_.scheme.group != ScaleGroup::kTensor && shape_.num_scales > 0) {
    result.experts.scales = scale_blocks(config_, shape_, rank_, rows).view(slot.scales.data());
    result.experts.scale_layout = config_.scale_layout;
  }
  if (config_.sends_weights) {
    result.topk_weights = TensorView(slot.weights.data(), DType::kF32, {rows});
  }
  return result;
}

Dispatched PullExchange::describe(Slot& slot, const Placing& placing) const {
  const ReceivePlan& receive = slot.receive();
  const std::int64_t rows = receive.num_buffer_rows;
  const std::int64_t num_local = shape_.ownership.count(rank_);
  const bool is_major = is_expert_major(config_.layout);
  Dispatched result;
  result.handle = handle_of(slot);
  result.experts.scheme = config_.scheme;
  const DType dtype = stored_dtype(config_.scheme);
  result.experts.rows = config_.layout == Layout::kBatched
                            ? TensorView(slot.rows.data(), dtype,
                                         {num_local, shape_.receive.capacity, config_.hidden})
                            : TensorView(slot.rows.data(), dtype, {rows, config_.hidden});
  if (config_.scheme.group == ScaleGroup::kTensor) {
    result.experts.scales = TensorView::of(&slot.input.tensor_scale, {1});
  } else if (shape_.num_scales > 0) {
    result.experts.scales = placing.scales.view(slot.scales.data());
    result.experts.scale_layout = config_.scale_layout;
  }
  if (config_.scheme.needs_tensor_scale()) {
    result.experts.tensor_scale = TensorView::of(&slot.input.tensor_scale, {1});
  }
  if (is_major) result.experts.first_row = TensorView::of(receive.first_row.data(), {num_local});
  result.experts.num_rows = TensorView::of(receive.num_rows.data(), {num_local});
  result.host = host_counts(slot);
  slot.total_rows = static_cast<std::int32_t>(result.host->num_rows);
  slot.num_dropped = static_cast<std::int32_t>(result.host->num_dropped);
  result.total_rows = TensorView::of(&slot.total_rows, {1});
  if (config_.overflow == Overflow::kDrop) {
    result.num_dropped = TensorView::of(&slot.num_dropped, {1});
  }
  if (!is_major && config_.num_topk > 0) {
    result.topk_ids =
        TensorView(slot.topk_ids.data(), DType::kI32, {rows, std::int64_t{config_.num_topk}});
  }
  if (config_.sends_weights && is_major) {
    result.topk_weights = TensorView(slot.weights.data(), DType::kF32, {rows});
  } else if (config_.sends_weights && config_.num_topk > 0) {
    result.topk_weights =
        TensorView(slot.weights.data(), DType::kF32, {rows, std::int64_t{config_.num_topk}});
  }
  for (std::size_t i = 0; i < slot.payloads.size(); ++i) {
    result.payloads.emplace_back(
        slot.payloads[i].data(), DType::kU8,
        std::initializer_list<std::int64_t>{rows, config_.payload_bytes[i]});
  }
  return result;
}

}  // namespace switchyard

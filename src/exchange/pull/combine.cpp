// SPDX-License-Identifier: Apache-2.0
//
// Combine: results are written to the owner's window, and the owner sums them in a fixed order.
//   per_expert  every expert row goes to (token, k); the owner runs one fma chain, k ascending
//   per_rank    each rank sums its rows of a token, k ascending, and rounds to the wire type; the
//               owner adds its bias, then the partial sums by ascending highest k of each rank

#include <string>

#include "core/check_matrix.h"
#include "core/format.h"
#include "cpu/streaming.h"
#include "exchange/check_returns.h"
#include "exchange/pull/pull_exchange.h"
#include "quant/rows.h"

namespace switchyard {
namespace {

void check_options(const ExchangeConfig& config, const CombineOptions& options,
                   std::int64_t num_tokens) {
  check_new_weights(config, num_tokens, options.topk_weights);
  check_returned_weights(config, num_tokens, options.returned_weights);
  if (options.shared.has_value()) {
    check_matrix(options.shared,
                 {"combine", "shared", {DType::kBF16}, num_tokens, config.hidden, true});
  }
  for (std::size_t i = 0; i < options.bias.size(); ++i) {
    const std::string name = fmt::format("bias[{}]", i);
    check_matrix(options.bias[i], {"combine", name, {DType::kBF16}, num_tokens, config.hidden});
  }
}

}  // namespace

std::span<const Arrival> PullExchange::arrivals_of(const Slot& slot, int source) const {
  const ReceivePlan& receive = slot.receive();
  const auto s = static_cast<std::size_t>(source);
  const auto first = static_cast<std::size_t>(receive.first_arrival[s]);
  const auto last = static_cast<std::size_t>(receive.first_arrival[s + 1]);
  return std::span(receive.arrivals).subspan(first, last - first);
}

std::span<const Placement> PullExchange::placements_of(const Slot& slot,
                                                       const Arrival& arrival) const {
  return std::span(slot.receive().placements)
      .subspan(static_cast<std::size_t>(arrival.first), static_cast<std::size_t>(arrival.count));
}

const std::byte* PullExchange::result_row(const Slot& slot, std::int64_t row) const {
  return slot.results.as<std::byte>() + row * config_.hidden * bits_of(slot.results.dtype()) / 8;
}

// The column of this rank's partial sum of a token in the owner's window.
std::int32_t PullExchange::column_of(const Slot& slot, const Arrival& arrival) const {
  const std::int32_t k = arrival.count == 0 ? -1 : placements_of(slot, arrival).back().k;
  return shape_.window.column(rank_, k);
}

bool PullExchange::is_in_wire_form(const Slot& slot) const {
  return !config_.combine_scheme.is_quantized() &&
         slot.results.dtype() == config_.combine_scheme.dtype;
}

// A result row in wire form: in place if it already has that form, else converted into share_.
const std::byte* PullExchange::to_wire(const Slot& slot, std::int64_t row) {
  const std::byte* from = result_row(slot, row);
  if (is_in_wire_form(slot)) return from;
  quantize_row(config_.combine_scheme, from, slot.results.dtype(), config_.hidden, share_.data(),
               share_.data() + shape_.combine_scales_in_row);
  return share_.data();
}

// Sums this rank's rows of a token, k ascending, into share_, in wire form.
const std::byte* PullExchange::reduce_here(const Slot& slot, const Arrival& arrival) {
  own_sum_.clear();
  for (std::int32_t i = arrival.first; i < arrival.first + arrival.count; ++i) {
    const Placement& p = slot.receive().placements[static_cast<std::size_t>(i)];
    own_sum_.add(result_row(slot, p.row), slot.results.dtype(), slot.weight(i));
  }
  const QuantScheme& wire = config_.combine_scheme;
  if (!wire.is_quantized()) {
    own_sum_.sum(share_.data(), wire.dtype);
    return share_.data();
  }
  own_sum_.sum(sum_.data(), DType::kF32);
  quantize_row(wire, sum_.data(), DType::kF32, config_.hidden, share_.data(),
               share_.data() + shape_.combine_scales_in_row);
  return share_.data();
}

// This rank's partial sum of a token under per_rank, in wire form.
const std::byte* PullExchange::share_of(const Slot& slot, const Arrival& arrival) {
  return is_expert_major(config_.layout) ? reduce_here(slot, arrival) : to_wire(slot, arrival.row);
}

void PullExchange::check_output(const CombineCall& call) const {
  const Slot& slot = slot_of(call.handle, "combine");
  check_matrix(call.output, {"combine",
                             "output",
                             {DType::kBF16, DType::kF16, DType::kF32},
                             slot.num_tokens(),
                             config_.hidden,
                             true});
  check_options(config_, call.options, slot.num_tokens());
}

void PullExchange::combine(const CombineCall& call) {
  check_output(call);
  check_both_weights(call.options.row_weights, call.options.returned_weights);
  combine_send(call);
  combine_receive(call);
}

void PullExchange::combine_send(const CombineCall& call) {
  Slot& slot = find(call.handle, Stage::kReceived, "combine");
  const TensorView& rows = call.rows;
  const TensorView& row_weights = call.options.row_weights;
  check_results(config_, slot.receive().num_buffer_rows, rows);
  check_row_weights(config_, slot.receive().num_buffer_rows, row_weights);
  if (call.options.rows_are == RowsAre::kWeighted) slot.placement_weights.clear();
  slot.call = begin("combine", Phase::kCombineSend);
  handles_.advance(index_of(slot), Stage::kReturned);
  slot.results = rows;
  // Rows of this rank's own tokens stay where they are: combine_receive reads them in place.
  for (int i = 0; i < num_ranks_; ++i) {
    const int owner = (rank_ + i) % num_ranks_;
    if (owner != rank_) return_rows_to(slot, owner);
    return_weights_to(slot, owner, row_weights);
    auto& line = in_window<ArrivalLine>(owner, shape_.window.arrived(slot.call, rank_));
    line.has_weights = row_weights.has_value() ? 1 : 0;
    // Pairs with the acquire in combine_receive().
    line.call.store(slot.call, std::memory_order_release);
    windows_.notify(owner);
  }
}

void PullExchange::return_rows_to(const Slot& slot, int owner) {
  const std::span<const Arrival> arrivals = arrivals_of(slot, owner);
  const std::size_t row_bytes = shape_.window.shape.combine_row_bytes;
  const bool streaming = wants_streaming(arrivals.size() * row_bytes, num_ranks_);
  const auto send = [&](const std::byte* row, std::int64_t token, std::int32_t column) {
    std::byte* const to[] = {window_->base(owner) +
                             shape_.window.partial(slot.call, token, column)};
    copy_row(row, to, row_bytes, streaming);
  };
  for (const Arrival& arrival : arrivals) {
    if (config_.reduce == Reduce::kPerExpert) {
      for (const Placement& p : placements_of(slot, arrival)) {
        send(to_wire(slot, p.row), arrival.token, p.k);
      }
    } else if (returns_row(arrival)) {
      // By way of share_, a row in cache, so that the window is written once and past the caches.
      send(share_of(slot, arrival), arrival.token, column_of(slot, arrival));
    }
  }
  if (streaming) streaming_store_fence();
}

// One f32 per choice that this rank serves, at the offset that dispatch uses for weights in its own
// slot sets.
void PullExchange::return_weights_to(const Slot& slot, int owner,
                                     const TensorView& row_weights) const {
  if (!row_weights.has_value()) return;
  auto* home = reinterpret_cast<float*>(window_->base(owner) + shape_.window.weights(slot.call));
  const bool is_major = is_expert_major(config_.layout);
  for (const Arrival& arrival : arrivals_of(slot, owner)) {
    for (const Placement& p : placements_of(slot, arrival)) {
      const std::int64_t from = is_major ? p.row : p.row * config_.num_topk + p.k;
      home[std::int64_t{arrival.token} * config_.num_topk + p.k] = row_weights.as<float>()[from];
    }
  }
}

void PullExchange::combine_receive(const CombineCall& call) {
  Slot& slot = find(call.handle, Stage::kReturned, "combine_receive");
  const CombineOptions& options = call.options;
  check_output(call);
  control_.check_alive({Phase::kCombineReceive, slot.call, -1});
  control_.enter(Phase::kCombineReceive, slot.call);
  for (int peer = 0; peer < num_ranks_; ++peer) {
    const bool is_concerned = slot.routing->send.num_tokens_to[static_cast<std::size_t>(peer)] > 0;
    if (peer == rank_ || !is_concerned) continue;
    const auto& arrived = in_window<ArrivalLine>(rank_, shape_.window.arrived(slot.call, peer));
    // Pairs with the release in combine_send().
    control_.wait({Phase::kCombineReceive, slot.call, peer},
                  [&] { return arrived.call.load(std::memory_order_acquire) == slot.call; });
  }
  const bool wants_weights = options.returned_weights.has_value();
  const int lacking = wants_weights ? rank_without_weights(slot) : -1;
  if (wants_weights && lacking < 0) receive_weights(slot, options.returned_weights);
  sum_tokens(slot, call.output, options);
  handles_.advance(index_of(slot), Stage::kFree);
  finish(slot.call);
  require(lacking < 0, Errc::kInvalidArgument,
          "combine: returned_weights is wanted, but rank {} passed no row_weights to combine_send; "
          "pass them on every rank. The output is written and the handle has ended",
          lacking);
}

int PullExchange::rank_without_weights(const Slot& slot) const {
  for (int peer = 0; peer < num_ranks_; ++peer) {
    const bool is_concerned = slot.routing->send.num_tokens_to[static_cast<std::size_t>(peer)] > 0;
    const auto& arrived = in_window<ArrivalLine>(rank_, shape_.window.arrived(slot.call, peer));
    if (is_concerned && arrived.has_weights == 0) return peer;
  }
  return -1;
}

void PullExchange::receive_weights(const Slot& slot, const TensorView& returned) const {
  const auto* home =
      reinterpret_cast<const float*>(window_->base(rank_) + shape_.window.weights(slot.call));
  const std::vector<std::uint16_t>& ids = slot.routing->topk_ids;
  for (std::size_t i = 0; i < ids.size(); ++i) {
    returned.as<float>()[i] = ids[i] == kNoExpert ? 0.0f : home[i];
  }
}

void PullExchange::sum_tokens(const Slot& slot, const TensorView& output,
                              const CombineOptions& options) {
  const auto element_bytes = static_cast<std::size_t>(bits_of(output.dtype()) / 8);
  const std::size_t row_bytes = static_cast<std::size_t>(config_.hidden) * element_bytes;
  const std::int64_t num_tokens = slot.num_tokens();
  const bool streaming =
      wants_streaming(static_cast<std::size_t>(num_tokens) * row_bytes, num_ranks_);
  // Arrivals of own tokens are ordered by token, so they are walked in step with the tokens.
  std::span<const Arrival> own = arrivals_of(slot, rank_);
  for (std::int64_t t = 0; t < num_tokens; ++t) {
    const Arrival* arrival = !own.empty() && own.front().token == t ? &own.front() : nullptr;
    if (arrival != nullptr) own = own.subspan(1);
    partial_sum_.clear();
    for (const TensorView& bias : options.bias) {
      partial_sum_.add(bias.as<std::uint16_t>() + t * config_.hidden, DType::kBF16, 1.0f);
    }
    if (config_.reduce == Reduce::kPerExpert) {
      add_choices(slot, t, arrival, options.topk_weights);
    } else {
      add_partials(slot, t, arrival);
    }
    std::byte* to =
        output.as<std::byte>() + static_cast<std::size_t>(t * output.stride(0)) * element_bytes;
    std::byte* sum = streaming ? sum_.data() : to;
    partial_sum_.sum(sum, output.dtype());
    if (options.shared.has_value()) add_shared(options.shared, t, sum, output.dtype());
    if (streaming) copy_row(sum_.data(), {&to, 1}, row_bytes, streaming);
  }
  if (streaming) streaming_store_fence();
}

// row = round((0 + row) + shared), in f32.
void PullExchange::add_shared(const TensorView& shared, std::int64_t token, std::byte* row,
                              DType dtype) {
  partial_sum_.clear();
  partial_sum_.add(row, dtype, 1.0f);
  partial_sum_.add(shared.as<std::uint16_t>() + token * shared.stride(0), DType::kBF16, 1.0f);
  partial_sum_.sum(row, dtype);
}

// per_rank: one row of each rank concerned, in the layout's order; this rank's own is made here.
void PullExchange::add_partials(const Slot& slot, std::int64_t token, const Arrival* own) {
  for (const TokenRank& r : slot.routing->send.ranks_of(token)) {
    const std::int32_t column = shape_.window.column(r.rank, r.highest_k);
    const std::byte* partial =
        window_->base(rank_) + shape_.window.partial(slot.call, token, column);
    add_wire(r.rank == rank_ ? share_of(slot, *own) : partial, 1.0f);
  }
}

// per_expert: every valid choice of a token, k ascending; this rank's own rows are read in place.
void PullExchange::add_choices(const Slot& slot, std::int64_t token, const Arrival* own,
                               const TensorView& topk_weights) {
  const auto num_topk = static_cast<std::size_t>(config_.num_topk);
  const std::size_t first = static_cast<std::size_t>(token) * num_topk;
  const float* weights = topk_weights.has_value()    ? topk_weights.as<float>()
                         : slot.topk_weights.empty() ? nullptr
                                                     : slot.topk_weights.data();
  const Placement* placement =
      own == nullptr ? nullptr : slot.receive().placements.data() + own->first;
  for (std::size_t k = 0; k < num_topk; ++k) {
    const std::uint16_t id = slot.routing->topk_ids[first + k];
    if (id == kNoExpert) continue;
    const float weight = weights == nullptr ? 1.0f : weights[first + k];
    if (shape_.ownership.owner(id) != rank_) {
      add_wire(window_->base(rank_) +
                   shape_.window.partial(slot.call, token, static_cast<std::int32_t>(k)),
               weight);
    } else if (is_in_wire_form(slot)) {
      add_wire(result_row(slot, (placement++)->row), weight);
    } else {
      const std::byte* wire = to_wire(slot, (placement++)->row);
      partial_sum_.add_copy(config_.combine_scheme, wire, wire + shape_.combine_scales_in_row,
                            weight);
    }
  }
}

}  // namespace switchyard

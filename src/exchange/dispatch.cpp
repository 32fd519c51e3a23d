// SPDX-License-Identifier: Apache-2.0
//
// Dispatch: publish routing, publish rows, read the peers' routing, plan, place.
// Cost a rank: T rows written once, then for each arrived token one read and a write per local
// expert. The routing goes out before the rows, so that peers plan while rows are still quantized.

#include <algorithm>
#include <cstring>

#include "cpu/streaming.h"
#include "exchange/check_matrix.h"
#include "exchange/one_sided.h"
#include "quant/rows.h"

namespace switchyard {
namespace {

// Rows between two announcements: enough work to be worth a wake-up of the readers.
constexpr std::size_t kAnnounceBytes = std::size_t{1} << 20;

void check_tokens(const ExchangeConfig& config, const TensorView& tokens) {
  check_matrix(tokens, {"dispatch", "tokens", {DType::kBF16}, kAnyRows, config.hidden, true});
  require(tokens.shape(0) <= config.max_tokens_per_rank, Errc::kInvalidArgument,
          "dispatch: tokens has {} rows, but max_tokens_per_rank is {}", tokens.shape(0),
          config.max_tokens_per_rank);
}

template <typename Id>
void narrow_ids(const Id* ids, std::int64_t num_tokens, int num_topk, int num_experts,
                std::uint16_t* narrow) {
  for (std::int64_t i = 0; i < num_tokens * num_topk; ++i) {
    require(ids[i] >= -1 && ids[i] < num_experts, Errc::kInvalidArgument,
            "dispatch: topk_ids[{}, {}] is {}, must be -1 or an expert from 0 to {}", i / num_topk,
            i % num_topk, ids[i], num_experts - 1);
    narrow[i] = ids[i] < 0 ? kNoExpert : static_cast<std::uint16_t>(ids[i]);
  }
}

// The batched layout has room for each token once an expert.
void require_distinct(const std::vector<std::uint16_t>& ids, int num_topk) {
  for (std::size_t i = 0; i < ids.size(); ++i) {
    const std::size_t token = i / static_cast<std::size_t>(num_topk);
    for (std::size_t j = token * static_cast<std::size_t>(num_topk); j < i; ++j) {
      require(ids[i] == kNoExpert || ids[i] != ids[j], Errc::kInvalidArgument,
              "dispatch: token {} names expert {} twice, layout batched has room for it once; use "
              "layout expanded",
              token, ids[i]);
    }
  }
}

}  // namespace

void OneSidedExchange::load_routing(Slot& slot, const TensorView& topk_ids,
                                    const TensorView& topk_weights) const {
  const std::int64_t num_tokens = slot.tokens.shape(0);
  const int num_topk = config_.num_topk;
  check_matrix(topk_ids,
               {"dispatch", "topk_ids", {DType::kI32, DType::kI64}, num_tokens, num_topk});
  slot.num_tokens = num_tokens;
  slot.topk_ids.resize(static_cast<std::size_t>(num_tokens * num_topk));
  if (topk_ids.dtype() == DType::kI32) {
    narrow_ids(topk_ids.as<std::int32_t>(), num_tokens, num_topk, config_.num_experts,
               slot.topk_ids.data());
  } else {
    narrow_ids(topk_ids.as<std::int64_t>(), num_tokens, num_topk, config_.num_experts,
               slot.topk_ids.data());
  }
  if (config_.layout == Layout::kBatched) require_distinct(slot.topk_ids, num_topk);

  slot.topk_weights.clear();
  if (!topk_weights.has_value()) return;
  check_matrix(topk_weights, {"dispatch", "topk_weights", {DType::kF32}, num_tokens, num_topk});
  require(config_.sends_weights || config_.reduce == Reduce::kPerExpert, Errc::kInvalidArgument,
          "dispatch: topk_weights is given, but sends_weights is false and reduce per_rank weighs "
          "where the experts are; set sends_weights");
  slot.topk_weights.assign(topk_weights.as<float>(),
                           topk_weights.as<float>() + num_tokens * num_topk);
}

DispatchHandle OneSidedExchange::dispatch_send(const TensorView& tokens, const TensorView& topk_ids,
                                               const TensorView& topk_weights) {
  Slot& slot = free_slot();
  check_tokens(config_, tokens);
  slot.tokens = tokens;
  load_routing(slot, topk_ids, topk_weights);

  slot.epoch = begin("dispatch", Phase::kDispatchSend);
  slot.id = next_id_++;
  slot.stage = Stage::kSent;
  publish_routing(slot);
  slot.send.build(shape_.ownership, config_.num_topk, own_routing(slot));
  publish_rows(slot);

  DispatchHandle handle;
  handle.slot_ = static_cast<std::int32_t>(&slot - slots_.data());
  handle.id_ = slot.id;
  return handle;
}

// What this rank's routing is to everybody: without weights where they do not travel.
RankRouting OneSidedExchange::own_routing(const Slot& slot) const {
  const bool has_weights = config_.sends_weights && !slot.topk_weights.empty();
  return {slot.num_tokens, slot.topk_ids.data(), has_weights ? slot.topk_weights.data() : nullptr};
}

void OneSidedExchange::publish_routing(const Slot& slot) {
  std::byte* base = window_->base(rank_);
  auto& header = in_window<OperationHeader>(rank_, shape_.window.header(slot.epoch));
  const bool has_weights = own_routing(slot).topk_weights != nullptr;
  header.rows_ready.store(0, std::memory_order_relaxed);
  header.num_tokens = slot.num_tokens;
  header.has_weights = has_weights ? 1 : 0;
  // std::copy: without tokens there is no address to copy from.
  std::copy(slot.topk_ids.begin(), slot.topk_ids.end(),
            reinterpret_cast<std::uint16_t*>(base + shape_.window.ids(slot.epoch)));
  if (has_weights) {
    std::copy(slot.topk_weights.begin(), slot.topk_weights.end(),
              reinterpret_cast<float*>(base + shape_.window.weights(slot.epoch)));
  }
  // Pairs with the acquire in receive_routing().
  header.epoch.store(slot.epoch, std::memory_order_release);
  engine_.notify_all();
}

// A row that only this rank reads, and reads as it is, need not be copied.
bool OneSidedExchange::is_published(const Slot& slot, std::int64_t token) const {
  const auto ranks = slot.send.ranks_of(token);
  if (config_.scheme.is_quantized()) return !ranks.empty();
  return std::any_of(ranks.begin(), ranks.end(),
                     [&](const TokenRank& r) { return r.rank != rank_; });
}

void OneSidedExchange::publish_rows(const Slot& slot) {
  auto& header = in_window<OperationHeader>(rank_, shape_.window.header(slot.epoch));
  const std::size_t row_bytes = shape_.window.row_stride;
  const bool streaming =
      wants_streaming(row_bytes * static_cast<std::size_t>(slot.num_tokens), num_ranks_);
  const auto rows_per_announcement =
      static_cast<std::int64_t>(std::max<std::size_t>(1, kAnnounceBytes / row_bytes));
  for (std::int64_t t = 0; t < slot.num_tokens; ++t) {
    if (is_published(slot, t)) {
      const std::uint16_t* from = slot.tokens.as<std::uint16_t>() + t * slot.tokens.stride(0);
      std::byte* row = window_->base(rank_) + shape_.window.row(slot.epoch, t);
      if (config_.scheme.is_quantized()) {
        quantize_row(config_.scheme, from, DType::kBF16, config_.hidden, row,
                     row + shape_.window.scales_in_row);
      } else {
        std::byte* const to[] = {row};
        copy_row(reinterpret_cast<const std::byte*>(from), to, shape_.payload_bytes, streaming);
      }
    }
    if ((t + 1) % rows_per_announcement != 0 && t + 1 != slot.num_tokens) continue;
    if (streaming) streaming_store_fence();
    // Pairs with the acquire in place_rows_of().
    header.rows_ready.store(t + 1, std::memory_order_release);
    engine_.notify_all();
  }
}

void OneSidedExchange::receive_routing(const Slot& slot) {
  table_.assign(static_cast<std::size_t>(num_ranks_), {});
  for (int source = 0; source < num_ranks_; ++source) {
    RankRouting& routing = table_[static_cast<std::size_t>(source)];
    if (source == rank_) {
      routing = own_routing(slot);
      continue;
    }
    const auto& header = in_window<OperationHeader>(source, shape_.window.header(slot.epoch));
    // Pairs with the release in publish_routing().
    engine_.wait({Phase::kDispatchReceive, slot.epoch, source},
                 [&] { return header.epoch.load(std::memory_order_acquire) == slot.epoch; });
    const std::byte* base = window_->base(source);
    routing.num_tokens = header.num_tokens;
    require(routing.num_tokens >= 0 && routing.num_tokens <= config_.max_tokens_per_rank,
            Errc::kInternal, "dispatch: rank {} announces {} tokens, max_tokens_per_rank is {}",
            source, routing.num_tokens, config_.max_tokens_per_rank);
    routing.topk_ids = reinterpret_cast<const std::uint16_t*>(base + shape_.window.ids(slot.epoch));
    if (header.has_weights != 0) {
      routing.topk_weights =
          reinterpret_cast<const float*>(base + shape_.window.weights(slot.epoch));
    }
  }
}

Dispatched OneSidedExchange::dispatch_receive(const DispatchHandle& handle) {
  Slot& slot = find(handle, Stage::kSent, "dispatch_receive");
  engine_.check_alive({Phase::kDispatchReceive, slot.epoch, -1});
  engine_.enter(Phase::kDispatchReceive, slot.epoch);
  receive_routing(slot);
  slot.receive.build(rank_, shape_.ownership, config_.num_topk, shape_.receive, table_);
  const bool streaming =
      wants_streaming(slot.receive.placements.size() * shape_.payload_bytes, num_ranks_);
  for (int i = 0; i < num_ranks_; ++i) place_rows_of(slot, (rank_ + i) % num_ranks_, streaming);
  if (streaming) streaming_store_fence();
  slot.stage = Stage::kReceived;
  finish(slot.epoch);

  Dispatched result;
  const std::int64_t num_buffer_rows = slot.receive.num_buffer_rows;
  result.handle = handle;
  result.experts.scheme = config_.scheme;
  result.experts.rows =
      TensorView(slot.rows.data(), config_.scheme.dtype, {num_buffer_rows, config_.hidden});
  if (config_.scheme.is_quantized()) {
    const bool packed = config_.scheme.scale_format == ScaleFormat::kE8M0Packed;
    result.experts.scales = TensorView(slot.scales.data(), packed ? DType::kI32 : DType::kF32,
                                       {num_buffer_rows, shape_.num_scales});
  }
  result.experts.first_row = slot.receive.first_row;
  result.experts.num_rows = slot.receive.num_rows;
  result.num_rows = static_cast<std::int64_t>(slot.receive.placements.size());
  result.expert_load = slot.receive.expert_load;
  return result;
}

void OneSidedExchange::place_rows_of(Slot& slot, int source, bool streaming) {
  const auto& header = in_window<OperationHeader>(source, shape_.window.header(slot.epoch));
  const bool in_place = source == rank_ && !config_.scheme.is_quantized();
  const std::size_t scale_bytes = shape_.window.shape.scale_bytes;
  std::int64_t rows_ready = in_place ? slot.num_tokens : 0;
  for (const Arrival& arrival : arrivals_of(slot, source)) {
    const std::byte* from = window_->base(source) + shape_.window.row(slot.epoch, arrival.token);
    if (in_place) {
      from = slot.tokens.as<std::byte>() + arrival.token * slot.tokens.stride(0) * 2;
    } else if (arrival.token >= rows_ready) {
      // Pairs with the release in publish_rows().
      engine_.wait({Phase::kDispatchReceive, slot.epoch, source}, [&] {
        rows_ready = header.rows_ready.load(std::memory_order_acquire);
        return arrival.token < rows_ready;
      });
    }
    places_.clear();
    for (const Placement& placement : placements_of(slot, arrival)) {
      const auto row = static_cast<std::size_t>(placement.row);
      places_.push_back(slot.rows.data() + row * shape_.payload_bytes);
      std::memcpy(slot.scales.data() + row * scale_bytes, from + shape_.window.scales_in_row,
                  scale_bytes);
    }
    copy_row(from, places_, shape_.payload_bytes, streaming);
  }
}

}  // namespace switchyard

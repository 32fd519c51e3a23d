// SPDX-License-Identifier: Apache-2.0
//
// Combine: results go back into the owner's window, the owner sums in fixed order.
//   per_expert  every expert row travels to (token, k); the owner runs one chain, k ascending
//   per_rank    rows of a token are summed here first, k ascending, and rounded to the wire type;
//               the owner adds its bias, then the partial rows by ascending highest k of each rank

#include <string>

#include "cpu/streaming.h"
#include "cpu/weigh_reduce.h"
#include "exchange/check_matrix.h"
#include "exchange/one_sided.h"

namespace switchyard {
namespace {

void check_options(const ExchangeConfig& config, const CombineOptions& options,
                   std::int64_t num_tokens) {
  if (options.topk_weights.has_value()) {
    require(config.reduce == Reduce::kPerExpert, Errc::kInvalidArgument,
            "combine: topk_weights is given, but reduce is per_rank; pass the weights to dispatch");
    check_matrix(options.topk_weights,
                 {"combine", "topk_weights", {DType::kF32}, num_tokens, config.num_topk});
  }
  for (std::size_t i = 0; i < options.bias.size(); ++i) {
    const std::string name = fmt::format("bias[{}]", i);
    check_matrix(options.bias[i], {"combine", name, {DType::kBF16}, num_tokens, config.hidden});
  }
}

}  // namespace

void OneSidedExchange::Terms::sum(std::int64_t hidden, void* to, DType dtype) const {
  weigh_reduce_row(rows.data(), DType::kBF16, weights.data(), static_cast<int>(rows.size()), hidden,
                   to, dtype);
}

const void* OneSidedExchange::result_row(const Slot& slot, const Placement& placement) const {
  return slot.results.as<std::uint16_t>() + placement.row * config_.hidden;
}

std::span<const Arrival> OneSidedExchange::arrivals_of(const Slot& slot, int source) const {
  const auto s = static_cast<std::size_t>(source);
  const auto first = static_cast<std::size_t>(slot.receive.first_arrival[s]);
  const auto last = static_cast<std::size_t>(slot.receive.first_arrival[s + 1]);
  return std::span(slot.receive.arrivals).subspan(first, last - first);
}

std::span<const Placement> OneSidedExchange::placements_of(const Slot& slot,
                                                           const Arrival& arrival) const {
  return std::span(slot.receive.placements)
      .subspan(static_cast<std::size_t>(arrival.first), static_cast<std::size_t>(arrival.count));
}

// This rank's share of a token under per_rank, into share_: its rows, k ascending, rounded to the
// wire type.
void OneSidedExchange::reduce_here(const Slot& slot, const Arrival& arrival) {
  own_terms_.clear();
  for (const Placement& placement : placements_of(slot, arrival)) {
    own_terms_.add(result_row(slot, placement), placement.weight);
  }
  own_terms_.sum(config_.hidden, share_.data(), DType::kBF16);
}

void OneSidedExchange::check_output(const DispatchHandle& handle, const TensorView& output,
                                    const CombineOptions& options) const {
  const Slot& slot = slots_[index_of(handle, "combine")];
  check_matrix(output, {"combine",
                        "output",
                        {DType::kBF16, DType::kF16, DType::kF32},
                        slot.num_tokens,
                        config_.hidden,
                        true});
  check_options(config_, options, slot.num_tokens);
}

void OneSidedExchange::combine_send(const DispatchHandle& handle, const TensorView& rows) {
  Slot& slot = find(handle, Stage::kReceived, "combine");
  check_matrix(rows,
               {"combine", "rows", {DType::kBF16}, slot.receive.num_buffer_rows, config_.hidden});
  slot.epoch = begin("combine", Phase::kCombineSend);
  slot.stage = Stage::kReturned;
  slot.results = rows;
  // Rows for this rank's own tokens stay where they are: combine_receive reads them in place.
  for (int i = 1; i < num_ranks_; ++i) {
    const int owner = (rank_ + i) % num_ranks_;
    return_rows_to(slot, owner);
    // Pairs with the acquire in combine_receive().
    in_window<ArrivalLine>(owner, shape_.window.arrived(slot.epoch, rank_))
        .epoch.store(slot.epoch, std::memory_order_release);
    engine_.notify(owner);
  }
}

void OneSidedExchange::return_rows_to(const Slot& slot, int owner) {
  const std::span<const Arrival> arrivals = arrivals_of(slot, owner);
  const std::size_t row_bytes = shape_.window.shape.combine_row_bytes;
  const bool streaming = wants_streaming(arrivals.size() * row_bytes, num_ranks_);
  const auto send = [&](const void* row, std::int64_t token, std::int32_t column) {
    std::byte* const to[] = {window_->base(owner) +
                             shape_.window.partial(slot.epoch, token, column)};
    copy_row(static_cast<const std::byte*>(row), to, row_bytes, streaming);
  };
  for (const Arrival& arrival : arrivals) {
    const std::span<const Placement> placements = placements_of(slot, arrival);
    if (config_.reduce == Reduce::kPerExpert) {
      for (const Placement& p : placements) send(result_row(slot, p), arrival.token, p.k);
      continue;
    }
    // By way of a row in cache, so that the window is written past the caches, and once.
    reduce_here(slot, arrival);
    send(share_.data(), arrival.token, shape_.window.column(rank_, placements.back().k));
  }
  if (streaming) streaming_store_fence();
}

void OneSidedExchange::combine_receive(const DispatchHandle& handle, const TensorView& output,
                                       const CombineOptions& options) {
  Slot& slot = find(handle, Stage::kReturned, "combine_receive");
  check_output(handle, output, options);
  engine_.check_alive({Phase::kCombineReceive, slot.epoch, -1});
  engine_.enter(Phase::kCombineReceive, slot.epoch);
  for (int peer = 0; peer < num_ranks_; ++peer) {
    if (peer == rank_ || slot.send.tokens_to[static_cast<std::size_t>(peer)].empty()) continue;
    const auto& arrived = in_window<ArrivalLine>(rank_, shape_.window.arrived(slot.epoch, peer));
    // Pairs with the release in combine_send().
    engine_.wait({Phase::kCombineReceive, slot.epoch, peer},
                 [&] { return arrived.epoch.load(std::memory_order_acquire) == slot.epoch; });
  }
  sum_tokens(slot, output, options);
  slot.stage = Stage::kFree;
  finish(slot.epoch);
}

void OneSidedExchange::sum_tokens(const Slot& slot, const TensorView& output,
                                  const CombineOptions& options) {
  const auto element_bytes = static_cast<std::size_t>(bits_of(output.dtype()) / 8);
  const std::size_t row_bytes = static_cast<std::size_t>(config_.hidden) * element_bytes;
  const bool streaming =
      wants_streaming(static_cast<std::size_t>(slot.num_tokens) * row_bytes, num_ranks_);
  // Own tokens arrive in order too, so their arrivals are met in step with the tokens.
  std::span<const Arrival> own = arrivals_of(slot, rank_);
  for (std::int64_t t = 0; t < slot.num_tokens; ++t) {
    const Arrival* arrival = !own.empty() && own.front().token == t ? &own.front() : nullptr;
    if (arrival != nullptr) own = own.subspan(1);
    terms_.clear();
    for (const TensorView& bias : options.bias) {
      terms_.add(bias.as<std::uint16_t>() + t * config_.hidden, 1.0f);
    }
    if (config_.reduce == Reduce::kPerExpert) {
      add_choices(slot, t, arrival, options.topk_weights);
    } else {
      add_partials(slot, t, arrival);
    }
    std::byte* to =
        output.as<std::byte>() + static_cast<std::size_t>(t * output.stride(0)) * element_bytes;
    terms_.sum(config_.hidden, streaming ? sum_.data() : to, output.dtype());
    if (streaming) copy_row(sum_.data(), {&to, 1}, row_bytes, streaming);
  }
  if (streaming) streaming_store_fence();
}

// per_rank: one row of each rank concerned, by its highest k; this rank's own share is made here.
void OneSidedExchange::add_partials(const Slot& slot, std::int64_t token, const Arrival* own) {
  if (own != nullptr) reduce_here(slot, *own);
  for (const TokenRank& r : slot.send.ranks_of(token)) {
    const std::int32_t column = shape_.window.column(r.rank, r.highest_k);
    const std::byte* partial =
        window_->base(rank_) + shape_.window.partial(slot.epoch, token, column);
    terms_.add(r.rank == rank_ ? share_.data() : partial, 1.0f);
  }
}

// per_expert: every valid choice of a token, k ascending; own rows are read where they are.
void OneSidedExchange::add_choices(const Slot& slot, std::int64_t token, const Arrival* own,
                                   const TensorView& topk_weights) {
  const auto num_topk = static_cast<std::size_t>(config_.num_topk);
  const std::size_t first = static_cast<std::size_t>(token) * num_topk;
  const float* weights = topk_weights.has_value()    ? topk_weights.as<float>()
                         : slot.topk_weights.empty() ? nullptr
                                                     : slot.topk_weights.data();
  const Placement* placement =
      own == nullptr ? nullptr : slot.receive.placements.data() + own->first;
  for (std::size_t k = 0; k < num_topk; ++k) {
    const std::uint16_t id = slot.topk_ids[first + k];
    if (id == kNoExpert) continue;
    const void* row = window_->base(rank_) +
                      shape_.window.partial(slot.epoch, token, static_cast<std::int32_t>(k));
    if (shape_.ownership.owner(id) == rank_) row = result_row(slot, *placement++);
    terms_.add(row, weights == nullptr ? 1.0f : weights[first + k]);
  }
}

}  // namespace switchyard

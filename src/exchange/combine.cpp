// SPDX-License-Identifier: Apache-2.0
//
// Combine: results go back into the owner's window, the owner sums in fixed order.
//   per_expert  every expert row travels to (token, k); the owner runs one chain, k ascending
//   per_rank    rows of a token are summed here first, k ascending, and rounded to the wire type;
//               the owner adds its bias, then the partial rows by ascending highest k of each rank

#include <cstring>

#include "cpu/weigh_reduce.h"
#include "exchange/one_sided.h"
#include "exchange/streaming.h"

namespace switchyard {
namespace {

void check_results(const ExchangeConfig& config, const TensorView& rows, std::int64_t num_rows) {
  require(rows.has_value() && rows.dtype() == DType::kBF16 && rows.num_dims() == 2 &&
              rows.shape(0) == num_rows && rows.shape(1) == config.hidden && rows.is_contiguous(),
          Errc::kInvalidArgument, "combine: rows is {}, must be bf16 [{}, {}], contiguous",
          rows.describe(), num_rows, config.hidden);
}

void check_output(const ExchangeConfig& config, const TensorView& output, std::int64_t num_tokens) {
  const bool dtype_fits = output.dtype() == DType::kBF16 || output.dtype() == DType::kF16 ||
                          output.dtype() == DType::kF32;
  require(output.has_value() && dtype_fits && output.num_dims() == 2 &&
              output.shape(0) == num_tokens && output.shape(1) == config.hidden,
          Errc::kInvalidArgument, "combine: output is {}, must be bf16, f16 or f32 [{}, {}]",
          output.describe(), num_tokens, config.hidden);
  require(num_tokens == 0 || (output.stride(1) == 1 && output.stride(0) >= config.hidden),
          Errc::kInvalidArgument,
          "combine: output is {}, its rows must be contiguous and must not overlap",
          output.describe());
}

void check_options(const ExchangeConfig& config, const CombineOptions& options,
                   std::int64_t num_tokens) {
  const TensorView& weights = options.topk_weights;
  if (weights.has_value()) {
    require(config.reduce == Reduce::kPerExpert, Errc::kInvalidArgument,
            "combine: topk_weights is given, but reduce is per_rank; pass the weights to dispatch");
    require(weights.dtype() == DType::kF32 && weights.num_dims() == 2 &&
                weights.shape(0) == num_tokens && weights.shape(1) == config.num_topk &&
                weights.is_contiguous(),
            Errc::kInvalidArgument, "combine: topk_weights is {}, must be f32 [{}, {}], contiguous",
            weights.describe(), num_tokens, config.num_topk);
  }
  for (std::size_t i = 0; i < options.bias.size(); ++i) {
    const TensorView& bias = options.bias[i];
    require(bias.has_value() && bias.dtype() == DType::kBF16 && bias.num_dims() == 2 &&
                bias.shape(0) == num_tokens && bias.shape(1) == config.hidden &&
                bias.is_contiguous(),
            Errc::kInvalidArgument, "combine: bias[{}] is {}, must be bf16 [{}, {}], contiguous", i,
            bias.describe(), num_tokens, config.hidden);
  }
}

}  // namespace

void OneSidedExchange::combine_send(const DispatchHandle& handle, const TensorView& rows) {
  Slot& slot = find(handle, Stage::kReceived, "combine");
  check_results(config_, rows, slot.receive.num_buffer_rows);
  slot.epoch = begin("combine", Phase::kCombineSend);
  slot.stage = Stage::kReturned;
  slot.results = rows;
  const bool streaming = wants_streaming(slot.receive.arrivals.size() * shape_.payload_bytes);
  for (int i = 1; i <= num_ranks_; ++i) {
    const int owner = (rank_ + i) % num_ranks_;
    return_rows_to(slot, owner, streaming);
    if (streaming) streaming_store_fence();
    // Pairs with the acquire in combine_receive().
    in_window<ArrivalLine>(owner, shape_.window.arrived(slot.epoch, rank_))
        .epoch.store(slot.epoch, std::memory_order_release);
    engine_.notify(owner);
  }
}

const void* OneSidedExchange::result_row(const Slot& slot, std::int64_t row) const {
  return slot.results.as<std::uint16_t>() + row * config_.hidden;
}

void OneSidedExchange::return_rows_to(const Slot& slot, int owner, bool streaming) const {
  const bool every_choice = config_.reduce == Reduce::kPerExpert;
  if (every_choice && owner == rank_) return;  // read in place by combine_receive
  const auto first =
      static_cast<std::size_t>(slot.receive.first_arrival[static_cast<std::size_t>(owner)]);
  const auto last =
      static_cast<std::size_t>(slot.receive.first_arrival[static_cast<std::size_t>(owner) + 1]);
  std::vector<const void*> rows(static_cast<std::size_t>(config_.num_topk));
  std::vector<float> weights(rows.size());
  for (std::size_t a = first; a < last; ++a) {
    const Arrival& arrival = slot.receive.arrivals[a];
    const Placement* placements = slot.receive.placements.data() + arrival.first;
    for (std::int32_t i = 0; i < arrival.count; ++i) {
      const auto index = static_cast<std::size_t>(i);
      rows[index] = result_row(slot, placements[i].row);
      weights[index] = placements[i].weight;
      if (!every_choice) continue;
      std::byte* const to[] = {window_->base(owner) +
                               shape_.window.partial(slot.epoch, arrival.token, placements[i].k)};
      copy_row(static_cast<const std::byte*>(rows[index]), to,
               shape_.window.shape.combine_row_bytes, streaming);
    }
    if (every_choice) continue;
    const std::int32_t column = shape_.window.column(rank_, placements[arrival.count - 1].k);
    weigh_reduce_row(
        rows.data(), DType::kBF16, weights.data(), arrival.count, config_.hidden,
        window_->base(owner) + shape_.window.partial(slot.epoch, arrival.token, column),
        DType::kBF16);
  }
}

void OneSidedExchange::combine_receive(const DispatchHandle& handle, const TensorView& output,
                                       const CombineOptions& options) {
  Slot& slot = find(handle, Stage::kReturned, "combine_receive");
  check_output(config_, output, slot.num_tokens);
  check_options(config_, options, slot.num_tokens);
  engine_.enter(Phase::kCombineReceive, slot.epoch);
  for (int peer = 0; peer < num_ranks_; ++peer) {
    if (peer == rank_ || slot.send.tokens_to[static_cast<std::size_t>(peer)].empty()) continue;
    const auto& arrived = in_window<ArrivalLine>(rank_, shape_.window.arrived(slot.epoch, peer));
    // Pairs with the release in combine_send().
    engine_.wait({Phase::kCombineReceive, slot.epoch, peer},
                 [&] { return arrived.epoch.load(std::memory_order_acquire) == slot.epoch; });
  }
  sum_rows(slot, output, options.topk_weights, options.bias);
  slot.stage = Stage::kFree;
  finish(slot.epoch);
}

void OneSidedExchange::sum_rows(const Slot& slot, const TensorView& output,
                                const TensorView& topk_weights,
                                const std::vector<TensorView>& bias) const {
  const bool every_choice = config_.reduce == Reduce::kPerExpert;
  const auto num_topk = static_cast<std::size_t>(config_.num_topk);
  const float* weights_of = topk_weights.has_value()    ? topk_weights.as<float>()
                            : slot.topk_weights.empty() ? nullptr
                                                        : slot.topk_weights.data();
  const std::size_t element_bytes = static_cast<std::size_t>(bits_of(output.dtype()) / 8);
  std::size_t own = static_cast<std::size_t>(
      every_choice ? slot.receive.first_arrival[static_cast<std::size_t>(rank_)] : 0);
  const std::byte* window = window_->base(rank_);
  std::vector<const void*> rows(bias.size() + num_topk);
  std::vector<float> weights(rows.size(), 1.0f);

  for (std::int64_t t = 0; t < slot.num_tokens; ++t) {
    std::size_t count = 0;
    for (const TensorView& term : bias) {
      rows[count++] = term.as<std::uint16_t>() + t * config_.hidden;
    }
    const auto partial = [&](std::int32_t column) -> const void* {
      return window + shape_.window.partial(slot.epoch, t, column);
    };
    if (!every_choice) {
      for (const TokenRank& r : slot.send.ranks_of(t)) {
        rows[count++] = partial(shape_.window.column(r.rank, r.highest_k));
      }
    } else {
      const std::uint16_t* ids = slot.topk_ids.data() + static_cast<std::size_t>(t) * num_topk;
      // Own tokens arrive in order as well, so their placements are met in step with the choices.
      const Placement* placement = nullptr;
      if (own < slot.receive.arrivals.size() && slot.receive.arrivals[own].source == rank_ &&
          slot.receive.arrivals[own].token == t) {
        placement = slot.receive.placements.data() + slot.receive.arrivals[own++].first;
      }
      for (std::size_t k = 0; k < num_topk; ++k) {
        if (ids[k] == kNoExpert) continue;
        const bool is_own = shape_.ownership.owner(ids[k]) == rank_;
        rows[count] =
            is_own ? result_row(slot, (placement++)->row) : partial(static_cast<std::int32_t>(k));
        weights[count++] =
            weights_of == nullptr ? 1.0f : weights_of[static_cast<std::size_t>(t) * num_topk + k];
      }
    }
    std::byte* to =
        output.as<std::byte>() + static_cast<std::size_t>(t * output.stride(0)) * element_bytes;
    weigh_reduce_row(rows.data(), DType::kBF16, weights.data(), static_cast<int>(count),
                     config_.hidden, to, output.dtype());
  }
}

}  // namespace switchyard

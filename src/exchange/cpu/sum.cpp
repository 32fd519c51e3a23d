// SPDX-License-Identifier: Apache-2.0
//
// The receive phase of combine: the owner sums what returns for its tokens, in a fixed order.
//   per_expert  every expert row; one fma chain, k ascending
//   per_rank    its bias, then the partial sums by ascending highest k of each rank
//   per_host    its bias, then one sum for each host, of the partial sums of its ranks

#include <algorithm>
#include <string>
#include <utility>

#include "core/check_matrix.h"
#include "core/format.h"
#include "cpu/streaming.h"
#include "exchange/check_returns.h"
#include "exchange/cpu/cpu_exchange.h"

namespace switchyard {
namespace {

void check_options(const ExchangeConfig& config, const CombineOptions& options,
                   std::int64_t num_tokens) {
  check_new_weights(config, num_tokens, options.topk_weights);
  check_returned_weights(config, num_tokens, options.returned_weights);
  if (options.shared.has_value()) {
    check_matrix(
        options.shared,
        {"combine", "shared", {DType::kBF16, DType::kF32}, num_tokens, config.hidden, true});
  }
  for (std::size_t i = 0; i < options.bias.size(); ++i) {
    const std::string name = fmt::format("bias[{}]", i);
    check_matrix(options.bias[i], {"combine", name, {DType::kBF16}, num_tokens, config.hidden});
  }
}

}  // namespace

void CpuExchange::check_output(const CombineCall& call) const {
  const Slot& slot = slot_of(call.handle, "combine");
  check_matrix(call.output, {"combine",
                             "output",
                             {DType::kBF16, DType::kF16, DType::kF32},
                             slot.num_tokens(),
                             config_.hidden,
                             true});
  check_options(config_, call.options, slot.num_tokens());
}

void CpuExchange::combine(const CombineCall& call) {
  check_output(call);
  check_both_weights(call.options.row_weights, call.options.returned_weights);
  combine_send(call);
  combine_receive(call);
}

void CpuExchange::combine_receive(const CombineCall& call) {
  Slot& slot = find(call.handle, Stage::kReturned, "combine_receive");
  const CombineOptions& options = call.options;
  check_output(call);
  control_.check_alive({Phase::kCombineReceive, slot.call, -1});
  control_.enter(Phase::kCombineReceive, slot.call);
  await_all_returns(slot);
  const bool wants_weights = options.returned_weights.has_value();
  const int lacking = wants_weights ? rank_without_weights(slot) : -1;
  if (wants_weights && lacking < 0) receive_weights(slot, options.returned_weights);
  sum_tokens(slot, call.output, options);
  conclude(slot, Phase::kCombineReceive);
  handles_.advance(index_of(slot), Stage::kFree);
  finish(slot.call);
  require(
      lacking < 0, Errc::kInvalidArgument,
      "combine: returned_weights is requested, but rank {} passed no row_weights to combine_send; "
      "pass them on every rank. The output is written and the handle has ended",
      lacking);
}

void CpuExchange::await_all_returns(Slot& slot) {
  returned_.assign(static_cast<std::size_t>(num_ranks_), {});
  num_summed_.assign(returned_.size(), 0);
  has_weights_.assign(returned_.size(), false);
  for (int peer = 0; peer < num_ranks_; ++peer) {
    const auto p = static_cast<std::size_t>(peer);
    if (slot.routing->send.num_tokens_to[p] > 0) {
      has_weights_[p] = peer == rank_ ? slot.returns_weights : await_returns(slot, peer);
    }
    returned_[p] = returns_of(slot, peer);
  }
}

int CpuExchange::rank_without_weights(const Slot& slot) const {
  for (int peer = 0; peer < num_ranks_; ++peer) {
    const auto p = static_cast<std::size_t>(peer);
    if (slot.routing->send.num_tokens_to[p] > 0 && !has_weights_[p]) return peer;
  }
  return -1;
}

void CpuExchange::receive_weights(const Slot& slot, const TensorView& returned) {
  const std::vector<std::uint16_t>& ids = slot.routing->topk_ids;
  num_summed_.assign(returned_.size(), 0);
  for (std::size_t i = 0; i < ids.size(); ++i) {
    float weight = 0.0f;
    if (ids[i] != kNoExpert) {
      const auto peer = static_cast<std::size_t>(shape_.ownership.owner(ids[i]));
      weight = returned_[peer].weight(num_summed_[peer]++, static_cast<std::int64_t>(i));
    }
    returned.as<float>()[i] = weight;
  }
  num_summed_.assign(returned_.size(), 0);
}

void CpuExchange::sum_tokens(const Slot& slot, const TensorView& output,
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
    } else if (config_.reduce == Reduce::kPerHost) {
      add_hosts(slot, t, arrival);
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
void CpuExchange::add_shared(const TensorView& shared, std::int64_t token, std::byte* row,
                             DType dtype) {
  partial_sum_.clear();
  partial_sum_.add(row, dtype, 1.0f);
  const std::int64_t offset = token * shared.stride(0) * bits_of(shared.dtype()) / 8;
  partial_sum_.add(shared.as<std::byte>() + offset, shared.dtype(), 1.0f);
  partial_sum_.sum(row, dtype);
}

// per_rank: one row of each rank concerned, in the layout's order; this rank's own is made here.
void CpuExchange::add_partials(const Slot& slot, std::int64_t token, const Arrival* own) {
  for (const TokenRank& r : slot.routing->send.ranks_of(token)) {
    if (is_summed_in_place(slot, r.rank)) {
      add_own_share(slot, *own);
    } else {
      add_wire(next_returned(r.rank, token, shape_.window.column(r.rank, r.highest_k)), 1.0f);
    }
  }
}

void CpuExchange::add_own_share(const Slot& slot, const Arrival& own) {
  const QuantScheme& wire = config_.combine_scheme;
  if (!is_expert_major(config_.layout) || wire.is_quantized()) {
    add_wire(share_of(slot, own), 1.0f);
    return;
  }
  collect_own(slot, own);
  partial_sum_.add_sum(own_sum_, wire.dtype, share_.data());
}

// per_host: hosts ascending; each the sum of what its ranks have, ascending, rounded once.
void CpuExchange::add_hosts(const Slot& slot, std::int64_t token, const Arrival* own) {
  const std::span<const TokenRank> ranks = slot.routing->send.ranks_of(token);
  by_host_.assign(ranks.begin(), ranks.end());
  std::sort(by_host_.begin(), by_host_.end(), [&](const TokenRank& a, const TokenRank& b) {
    return std::pair(control_.host_of(a.rank), a.rank) <
           std::pair(control_.host_of(b.rank), b.rank);
  });
  const QuantScheme& wire = config_.combine_scheme;
  for (std::size_t i = 0; i < by_host_.size(); ++i) {
    const TokenRank& r = by_host_[i];
    const int host = control_.host_of(r.rank);
    const bool is_last = i + 1 == by_host_.size() || control_.host_of(by_host_[i + 1].rank) != host;
    if (const int summer = summed_by(host); summer >= 0) {
      if (is_last) add_wire(next_returned(summer, token, 0), 1.0f);
      continue;
    }
    const std::byte* partial =
        is_summed_in_place(slot, r.rank)
            ? share_of(slot, *own)
            : next_returned(r.rank, token, shape_.window.column(r.rank, r.highest_k));
    host_sum_.add_stored(wire, partial, partial + shape_.combine_scales_in_row, 1.0f);
    if (!is_last) continue;
    round_to_wire(host_sum_, host_row_.data());
    host_sum_.clear();
    partial_sum_.add_copy(wire, host_row_.data(), host_row_.data() + shape_.combine_scales_in_row,
                          1.0f);
  }
}

// per_expert: every valid choice of a token, k ascending; this rank's own rows are read in place.
void CpuExchange::add_choices(const Slot& slot, std::int64_t token, const Arrival* own,
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
    const int owner = shape_.ownership.owner(id);
    if (!is_summed_in_place(slot, owner)) {
      add_wire(next_returned(owner, token, static_cast<std::int32_t>(k)), weight);
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

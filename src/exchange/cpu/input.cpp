// SPDX-License-Identifier: Apache-2.0
//
// The send phase of dispatch: checks the caller's tensors and gives routing, then rows, to the
// transport. The routing goes first, so that peers plan while rows are still being quantized.

#include <algorithm>
#include <cstring>

#include "core/check_matrix.h"
#include "core/fail.h"
#include "core/format.h"
#include "cpu/streaming.h"
#include "exchange/check_tokens.h"
#include "exchange/cpu/cpu_exchange.h"
#include "quant/rows.h"
#include "quant/scheme.h"

namespace switchyard {
namespace {

template <typename Id>
void narrow_ids(const Id* ids, std::int64_t num_tokens, int num_topk, int num_experts,
                std::uint16_t* narrow) {
  for (std::int64_t i = 0; i < num_tokens * num_topk; ++i) {
    if (ids[i] < -1 || ids[i] >= num_experts) {
      fail(Errc::kInvalidArgument,
           "dispatch: topk_ids[{}, {}] is {}, must be -1 or an expert from 0 to {}", i / num_topk,
           i % num_topk, ids[i], num_experts - 1);
    }
    narrow[i] = ids[i] < 0 ? kNoExpert : static_cast<std::uint16_t>(ids[i]);
  }
}

// The batched layout has room for each token only once per expert.
void require_distinct(const std::vector<std::uint16_t>& ids, int num_topk) {
  const auto width = static_cast<std::ptrdiff_t>(num_topk);
  for (auto token = ids.begin(); token != ids.end(); token += width) {
    for (auto id = token; id != token + width; ++id) {
      if (*id == kNoExpert || std::find(token, id, *id) == id) continue;
      fail(Errc::kInvalidArgument,
           "dispatch: token {} names expert {} twice, layout batched has room for it once; use "
           "layout expanded",
           (token - ids.begin()) / width, *id);
    }
  }
}

}  // namespace

DispatchInput CpuExchange::make_input(const DispatchCall& call) const {
  const QuantScheme& scheme = config_.scheme;
  const TensorView& tokens = call.tokens;
  const DispatchOptions& options = call.options;
  DispatchInput input{tokens, options};
  const bool is_quantized = check_tokens(config_, shape_.num_scales, tokens, options);
  if (!options.routing_only) check_payloads(config_, options.payloads, tokens.shape(0));
  if (check_tensor_scale(scheme, options.tensor_scale)) {
    input.tensor_scale = *options.tensor_scale.as<float>();
  }
  input.is_stored = is_quantized || (!scheme.is_quantized() && tokens.dtype() == scheme.dtype);
  return input;
}

void CpuExchange::load_ids(CachedRouting& routing, const TensorView& topk_ids) const {
  const int num_topk = config_.num_topk;
  if (num_topk == 0) {
    require(!topk_ids.has_value(), Errc::kInvalidArgument,
            "dispatch: topk_ids is {}, must be absent: num_topk is 0", topk_ids);
    return;
  }
  check_matrix(topk_ids,
               {"dispatch", "topk_ids", {DType::kI32, DType::kI64}, routing.num_tokens, num_topk});
  routing.topk_ids.resize(static_cast<std::size_t>(routing.num_tokens * num_topk));
  if (topk_ids.dtype() == DType::kI32) {
    narrow_ids(topk_ids.as<std::int32_t>(), routing.num_tokens, num_topk, config_.num_experts,
               routing.topk_ids.data());
  } else {
    narrow_ids(topk_ids.as<std::int64_t>(), routing.num_tokens, num_topk, config_.num_experts,
               routing.topk_ids.data());
  }
  if (config_.layout == Layout::kBatched) require_distinct(routing.topk_ids, num_topk);
}

void CpuExchange::load_weights(Slot& slot, std::int64_t num_tokens,
                               const TensorView& topk_weights) const {
  slot.topk_weights.clear();
  check_topk_weights(config_, num_tokens, topk_weights);
  if (!topk_weights.has_value()) return;
  slot.topk_weights.assign(topk_weights.as<float>(),
                           topk_weights.as<float>() + num_tokens * config_.num_topk);
}

void CpuExchange::use_new_routing(Slot& slot, const DispatchCall& call) {
  slot.routing = new_routing();
  CachedRouting& routing = *slot.routing;
  routing.num_tokens = call.tokens.shape(0);
  routing.max_tokens = checked_max_tokens(config_, call.options.max_tokens, routing.num_tokens);
  load_ids(routing, call.topk_ids);
}

void CpuExchange::use_earlier_routing(Slot& slot, const DispatchCall& call) const {
  slot.routing = received_routing(*call.earlier, "dispatch_again");
  const CachedRouting& routing = *slot.routing;
  require(call.tokens.shape(0) == routing.num_tokens, Errc::kInvalidArgument,
          "dispatch_again: tokens has {} rows, must be {} as in the earlier dispatch",
          call.tokens.shape(0), routing.num_tokens);
  require(call.options.max_tokens == 0 || call.options.max_tokens == routing.max_tokens,
          Errc::kInvalidArgument,
          "dispatch_again: options.max_tokens is {}, must be {} as in the earlier dispatch",
          call.options.max_tokens, routing.max_tokens);
}

DispatchHandle CpuExchange::dispatch_send(const DispatchCall& call) {
  const bool is_again = call.earlier != nullptr;
  if (is_again) (void)received_routing(*call.earlier, "dispatch_again");
  Slot& slot = open_slot(call.name(), call.options.slot);
  slot.input = make_input(call);
  if (is_again) {
    use_earlier_routing(slot, call);
  } else {
    use_new_routing(slot, call);
  }
  load_weights(slot, slot.num_tokens(), call.topk_weights);

  slot.call = begin(slot, call.name(), Phase::kDispatchSend);
  slot.dispatch_call = slot.call;
  handles_.advance(index_of(slot), Stage::kSent);
  if (!is_again) slot.routing->call = slot.call;
  publish(slot);
  return handle_of(slot);
}

void CpuExchange::plan_sends(Slot& slot) const {
  if (!slot.is_new_routing()) return;
  slot.routing->send.build(shape_.ownership, config_.num_topk, config_.layout, own_routing(slot));
}

RankRouting CpuExchange::own_routing(const Slot& slot) const {
  const bool has_weights = config_.sends_weights && !slot.topk_weights.empty();
  return {slot.num_tokens(), slot.routing->topk_ids.data(),
          has_weights ? slot.topk_weights.data() : nullptr};
}

void CpuExchange::write_row(const Slot& slot, std::int64_t token, std::span<std::byte* const> to,
                            bool streaming) const {
  if (to.empty()) return;
  const DispatchInput& input = slot.input;
  const bool is_bare = is_in_place(slot);
  if (is_bare) return copy_row(input.row(token), to, shape_.payload_bytes, streaming);
  std::byte* const row = to.front();
  std::byte* const scales = row + shape_.window.scales_in_row;
  const std::byte* from = input.row(token);
  if (input.is_stored) {
    copy_row(from, to.first(1), shape_.payload_bytes, streaming);
    const TensorView& given = input.options.scales;
    const std::int64_t bytes = given.has_value() ? bits_of(given.dtype()) / 8 : 0;
    for (std::int64_t s = 0; given.has_value() && s < shape_.num_scales; ++s) {
      const std::int64_t at = token * given.stride(0) + s * given.stride(1);
      std::memcpy(scales + s * bytes, given.as<std::byte>() + at * bytes,
                  static_cast<std::size_t>(bytes));
    }
  } else {
    quantize_row(config_.scheme, from, input.tokens.dtype(), config_.hidden, row, scales,
                 input.tensor_scale);
  }
  for (std::size_t i = 0; i < input.options.payloads.size(); ++i) {
    const auto bytes = static_cast<std::size_t>(config_.payload_bytes[i]);
    std::memcpy(row + shape_.extras_in_row[i],
                input.options.payloads[i].as<std::byte>() + static_cast<std::size_t>(token) * bytes,
                bytes);
  }
  if (to.size() > 1) copy_row(row, to.subspan(1), shape_.window.row_stride, false);
}

}  // namespace switchyard

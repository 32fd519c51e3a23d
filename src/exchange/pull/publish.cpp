// SPDX-License-Identifier: Apache-2.0
//
// The send phase of dispatch: publishes routing, then rows, in this rank's own window. The routing
// goes first, so that peers plan while rows are still being quantized. A row is written once,
// however many ranks read it. When the routing of an earlier dispatch is reused, only the header
// and the weights precede the rows.

#include <algorithm>
#include <cstring>

#include "core/check_matrix.h"
#include "core/fail.h"
#include "core/format.h"
#include "cpu/streaming.h"
#include "exchange/check_tokens.h"
#include "exchange/pull/pull_exchange.h"
#include "quant/rows.h"
#include "quant/scheme.h"

namespace switchyard {
namespace {

// Bytes of rows between two updates of rows_ready: enough to be worth waking the readers.
constexpr std::size_t kAnnounceBytes = std::size_t{1} << 20;

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

PullExchange::Input PullExchange::make_input(const DispatchCall& call) const {
  const QuantScheme& scheme = config_.scheme;
  const TensorView& tokens = call.tokens;
  const DispatchOptions& options = call.options;
  Input input{tokens, options};
  const bool is_quantized = check_tokens(config_, shape_.num_scales, tokens, options.scales);
  if (!options.routing_only) check_payloads(config_, options.payloads, tokens.shape(0));
  if (check_tensor_scale(scheme, options.tensor_scale)) {
    input.tensor_scale = *options.tensor_scale.as<float>();
  }
  input.is_stored = is_quantized || (!scheme.is_quantized() && tokens.dtype() == scheme.dtype);
  return input;
}

void PullExchange::load_ids(CachedRouting& routing, const TensorView& topk_ids) const {
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

void PullExchange::load_weights(Slot& slot, std::int64_t num_tokens,
                                const TensorView& topk_weights) const {
  slot.topk_weights.clear();
  check_topk_weights(config_, num_tokens, topk_weights);
  if (!topk_weights.has_value()) return;
  slot.topk_weights.assign(topk_weights.as<float>(),
                           topk_weights.as<float>() + num_tokens * config_.num_topk);
}

void PullExchange::use_new_routing(Slot& slot, const DispatchCall& call) {
  slot.routing = new_routing();
  CachedRouting& routing = *slot.routing;
  routing.num_tokens = call.tokens.shape(0);
  routing.max_tokens = checked_max_tokens(config_, call.options.max_tokens, routing.num_tokens);
  load_ids(routing, call.topk_ids);
}

void PullExchange::use_earlier_routing(Slot& slot, const DispatchCall& call) const {
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

DispatchHandle PullExchange::dispatch_send(const DispatchCall& call) {
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

  slot.call = begin(call.name(), Phase::kDispatchSend);
  slot.dispatch_call = slot.call;
  handles_.advance(index_of(slot), Stage::kSent);
  if (!is_again) slot.routing->call = slot.call;
  publish_header(slot);
  if (!is_again) {
    slot.routing->send.build(shape_.ownership, config_.num_topk, config_.layout, own_routing(slot));
  }
  publish_rows(slot);
  return handle_of(slot);
}

// This rank's routing as peers see it: without weights where they do not travel.
RankRouting PullExchange::own_routing(const Slot& slot) const {
  const bool has_weights = config_.sends_weights && !slot.topk_weights.empty();
  return {slot.num_tokens(), slot.routing->topk_ids.data(),
          has_weights ? slot.topk_weights.data() : nullptr};
}

void PullExchange::publish_header(const Slot& slot) {
  std::byte* base = window_->base(rank_);
  auto& header = in_window<OperationHeader>(rank_, shape_.window.header(slot.call));
  const CachedRouting& routing = *slot.routing;
  const bool has_weights = own_routing(slot).topk_weights != nullptr;
  header.rows_ready.store(0, std::memory_order_relaxed);
  header.routing_call = routing.call;
  header.num_tokens = routing.num_tokens;
  header.max_tokens = routing.max_tokens;
  header.tensor_scale = slot.input.tensor_scale;
  header.has_weights = has_weights ? 1 : 0;
  header.routing_only = slot.input.options.routing_only ? 1 : 0;
  // std::copy rather than memcpy: without tokens the source may be null.
  if (routing.call == slot.call) {
    std::copy(routing.topk_ids.begin(), routing.topk_ids.end(),
              reinterpret_cast<std::uint16_t*>(base + shape_.window.ids(slot.call)));
  }
  if (has_weights) {
    std::copy(slot.topk_weights.begin(), slot.topk_weights.end(),
              reinterpret_cast<float*>(base + shape_.window.weights(slot.call)));
  }
  // Pairs with the acquire in receive_headers().
  header.call.store(slot.call, std::memory_order_release);
  windows_.notify_all();
}

// A rank reads its own rows in the caller's memory unless rows are quantized or have payloads.
bool PullExchange::is_in_place() const {
  return !config_.scheme.is_quantized() && config_.payload_bytes.empty();
}

bool PullExchange::is_published(const Slot& slot, std::int64_t token) const {
  const bool goes_to_all = config_.layout == Layout::kAllGather && num_ranks_ > 1;
  const bool is_read_here = !is_in_place() || !slot.input.is_stored;
  if (goes_to_all || (is_read_here && config_.layout == Layout::kAllGather)) return true;
  const auto ranks = slot.routing->send.ranks_of(token);
  if (is_read_here) return !ranks.empty();
  return std::any_of(ranks.begin(), ranks.end(),
                     [&](const TokenRank& r) { return r.rank != rank_; });
}

void PullExchange::write_row(const Slot& slot, std::int64_t token, bool streaming) {
  const Input& input = slot.input;
  std::byte* row = window_->base(rank_) + shape_.window.row(slot.call, token);
  std::byte* scales = row + shape_.window.scales_in_row;
  const std::byte* from = input.row(token);
  if (input.is_stored) {
    std::byte* const to[] = {row};
    copy_row(from, to, shape_.payload_bytes, streaming);
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
}

void PullExchange::publish_rows(const Slot& slot) {
  if (slot.input.options.routing_only) return;
  auto& header = in_window<OperationHeader>(rank_, shape_.window.header(slot.call));
  const std::size_t row_bytes = shape_.window.row_stride;
  const std::int64_t num_tokens = slot.num_tokens();
  const bool streaming =
      wants_streaming(row_bytes * static_cast<std::size_t>(num_tokens), num_ranks_);
  const auto rows_per_announcement =
      static_cast<std::int64_t>(std::max<std::size_t>(1, kAnnounceBytes / row_bytes));
  for (std::int64_t t = 0; t < num_tokens; ++t) {
    if (is_published(slot, t)) write_row(slot, t, streaming);
    if ((t + 1) % rows_per_announcement != 0 && t + 1 != num_tokens) continue;
    if (streaming) streaming_store_fence();
    // Pairs with the acquire in place_rows_of().
    header.rows_ready.store(t + 1, std::memory_order_release);
    windows_.notify_all();
  }
}

}  // namespace switchyard

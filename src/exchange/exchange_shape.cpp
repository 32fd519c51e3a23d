// SPDX-License-Identifier: Apache-2.0

#include "exchange/exchange_shape.h"

#include <algorithm>
#include <limits>

#include "core/bytes.h"
#include "quant/scheme.h"

namespace switchyard {
namespace {

constexpr std::int64_t kMaxExperts = 65535;
constexpr std::int64_t kMaxTopk = 64;
constexpr std::int64_t kMaxInFlight = 64;

void require_range(const char* name, std::int64_t value, std::int64_t min, std::int64_t max) {
  require(value >= min && value <= max, Errc::kInvalidArgument,
          "exchange: {} is {}, must be from {} to {}", name, value, min, max);
}

void check(const ExchangeConfig& config, int num_ranks) {
  constexpr std::int64_t kMaxInt = std::numeric_limits<std::int32_t>::max();
  require_range("num_experts", config.num_experts, 1, kMaxExperts);
  require_range("num_topk", config.num_topk, 1, kMaxTopk);
  require_range("hidden", config.hidden, 1, kMaxInt);
  // Placements are counted in 32 bits.
  require_range("max_tokens_per_rank", config.max_tokens_per_rank, 0,
                kMaxInt / (std::int64_t{num_ranks} * config.num_topk));
  require_range("expert_alignment", config.expert_alignment, 1, kMaxInt);
  require_range("max_in_flight", config.max_in_flight, 1, kMaxInFlight);
  check_scheme("exchange", config.scheme);
  require(config.scheme.is_quantized() || config.scheme.dtype == DType::kBF16, Errc::kNotSupported,
          "exchange: unquantized rows are {}, must be bf16", name_of(config.scheme.dtype));
  require(config.reduce == Reduce::kPerExpert || config.reduce == Reduce::kPerRank,
          Errc::kInvalidArgument, "exchange: reduce is {}, must be per_expert or per_rank",
          static_cast<int>(config.reduce));
  require(config.layout == Layout::kBatched || config.layout == Layout::kExpanded,
          Errc::kNotSupported, "exchange: layout {} is not served, use batched or expanded",
          name_of(config.layout));
  require(config.layout == Layout::kExpanded || config.expert_alignment == 1,
          Errc::kInvalidArgument,
          "exchange: expert_alignment is {}, must be 1 for layout batched (experts start at "
          "multiples of its capacity)",
          config.expert_alignment);
  require(config.scheme.group != ScaleGroup::kTensor, Errc::kNotSupported,
          "exchange: scheme {} has one scale for all rows, which no rank knows while it sends; "
          "dispatch bf16 and quantize what arrived",
          name_of(config.scheme));
}

}  // namespace

ExchangeShape make_exchange_shape(const ExchangeConfig& config, int num_ranks, int rank) {
  check(config, num_ranks);
  ExchangeShape shape;
  shape.ownership = {config.num_experts, num_ranks};
  shape.receive.layout = config.layout;
  shape.receive.alignment = config.expert_alignment;
  shape.receive.max_tokens = config.max_tokens_per_rank;
  shape.receive.capacity = checked_mul<std::int64_t>(num_ranks, config.max_tokens_per_rank);
  shape.payload_bytes =
      static_cast<std::size_t>(cdiv<std::int64_t>(config.hidden * bits_of(config.scheme.dtype), 8));
  shape.num_scales = num_scales(config.scheme, config.hidden);
  shape.max_buffer_rows = max_buffer_rows(rank, shape.ownership, config.num_topk, shape.receive,
                                          config.max_tokens_per_rank);

  WindowShape window;
  window.max_tokens = config.max_tokens_per_rank;
  window.num_ranks = num_ranks;
  window.num_topk = config.num_topk;
  window.num_sets = std::max(2, config.max_in_flight + 1);
  window.sends_weights = config.sends_weights;
  window.keeps_every_choice = config.reduce == Reduce::kPerExpert;
  window.payload_bytes = shape.payload_bytes;
  window.scale_bytes = static_cast<std::size_t>(shape.num_scales) * sizeof(float);
  window.combine_row_bytes = static_cast<std::size_t>(config.hidden) * sizeof(std::uint16_t);
  shape.window = make_window_layout(window);
  return shape;
}

ExchangeMemory exchange_memory(const ExchangeConfig& config, int num_ranks, int rank) {
  require(num_ranks >= 1 && rank >= 0 && rank < num_ranks, Errc::kInvalidArgument,
          "exchange_memory: rank {} of {}, must be from 0 to {}", rank, num_ranks, num_ranks - 1);
  const ExchangeShape shape = make_exchange_shape(config, num_ranks, rank);
  const std::size_t row = shape.payload_bytes + shape.window.shape.scale_bytes;
  const std::size_t rows = checked_mul(static_cast<std::size_t>(shape.max_buffer_rows), row);
  return {shape.window.total_bytes,
          checked_mul(rows, static_cast<std::size_t>(config.max_in_flight))};
}

NamedValues agreed_fields(const ExchangeConfig& config) {
  return {{"num_experts", std::to_string(config.num_experts)},
          {"num_topk", std::to_string(config.num_topk)},
          {"hidden", std::to_string(config.hidden)},
          {"max_tokens_per_rank", std::to_string(config.max_tokens_per_rank)},
          {"layout", name_of(config.layout)},
          {"scheme", name_of(config.scheme)},
          {"reduce", name_of(config.reduce)},
          {"sends_weights", config.sends_weights ? "true" : "false"},
          {"expert_alignment", std::to_string(config.expert_alignment)},
          {"max_in_flight", std::to_string(config.max_in_flight)}};
}

}  // namespace switchyard

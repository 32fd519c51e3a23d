// SPDX-License-Identifier: Apache-2.0

#include "exchange/exchange_shape.h"

#include <algorithm>
#include <limits>
#include <string>
#include <type_traits>
#include <utility>

#include "core/bytes.h"
#include "core/enum_names.h"
#include "exchange/exchange_fields.h"
#include "quant/scheme.h"

namespace switchyard {
namespace {

constexpr std::int64_t kMaxExperts = 65535;
constexpr std::int64_t kMaxTopk = 64;
constexpr std::int64_t kMaxInFlight = 64;
constexpr std::int64_t kMaxInt = std::numeric_limits<std::int32_t>::max();

void require_range(const char* name, std::int64_t value, std::int64_t min, std::int64_t max) {
  require(value >= min && value <= max, Errc::kInvalidArgument,
          "exchange: {} is {}, must be from {} to {}", name, value, min, max);
}

void check_routing(const ExchangeConfig& config, int num_ranks) {
  const bool has_routing = config.num_topk != 0 || config.layout != Layout::kAllGather;
  if (has_routing) {
    require_range("num_experts", config.num_experts, 1, kMaxExperts);
    require_range("num_topk", config.num_topk, 1, kMaxTopk);
  } else {
    require_range("num_experts without num_topk", config.num_experts, 0, 0);
  }
  // Placements are counted in 32 bits.
  require_range("max_tokens_per_rank", config.max_tokens_per_rank, 0,
                kMaxInt / (std::int64_t{num_ranks} * std::max(1, config.num_topk)));
  require_range("capacity", config.capacity, 0, kMaxInt);
  require_range("expert_alignment", config.expert_alignment, 1, kMaxInt);
  require_range("max_in_flight", config.max_in_flight, 1, kMaxInFlight);
}

void check_experts_per_rank(const ExchangeConfig& config, int num_ranks) {
  const std::vector<std::int32_t>& counts = config.experts_per_rank;
  if (counts.empty()) return;
  require(!config.slices_experts, Errc::kInvalidArgument,
          "exchange: experts_per_rank is given with slices_experts, where every rank holds every "
          "expert; leave it empty");
  require(counts.size() == static_cast<std::size_t>(num_ranks), Errc::kInvalidArgument,
          "exchange: experts_per_rank has {} numbers, must be one for each of {} ranks, or none",
          counts.size(), num_ranks);
  std::int64_t sum = 0;
  for (std::size_t rank = 0; rank < counts.size(); ++rank) {
    require(counts[rank] >= 0, Errc::kInvalidArgument,
            "exchange: experts_per_rank is {} for rank {}, must be 0 or more", counts[rank], rank);
    sum += counts[rank];
  }
  require(sum == config.num_experts, Errc::kInvalidArgument,
          "exchange: experts_per_rank adds up to {}, must be num_experts, {}", sum,
          config.num_experts);
}

void check_enums(const ExchangeConfig& config) {
  require_enum("exchange", config.layout);
  require_enum("exchange", config.scale_layout);
  require_enum("exchange", config.overflow);
  require_enum("exchange", config.reduce);
}

void check_layout(const ExchangeConfig& config) {
  const char* layout = name_of(config.layout);
  const bool is_expanded = config.layout == Layout::kExpanded;
  require(is_expanded || config.expert_alignment == 1, Errc::kInvalidArgument,
          "exchange: expert_alignment is {}, must be 1 for layout {}: only expanded aligns experts",
          config.expert_alignment, layout);
  require(is_expanded || !config.zero_padding, Errc::kInvalidArgument,
          "exchange: zero_padding is set for layout {}, only expanded has alignment gaps", layout);
  require(
      config.reduce != Reduce::kPerExpert || is_expert_major(config.layout), Errc::kInvalidArgument,
      "exchange: reduce is per_expert for layout {}, which has one row per token; use per_rank, "
      "or layout batched or expanded",
      layout);
  require(!config.slices_experts || config.layout == Layout::kAllGather, Errc::kInvalidArgument,
          "exchange: slices_experts is set for layout {}, must be all_gather: ranks with slices of "
          "every expert need every token",
          layout);
}

void check_schemes(const ExchangeConfig& config) {
  check_scheme("exchange", config.scheme);
  check_scheme("exchange", config.combine_scheme);
  require(is_returnable(config.combine_scheme), Errc::kNotSupported,
          "exchange: combine_scheme is {}, must be bf16, f16, f32 or have scales of its own in "
          "each row",
          name_of(config.combine_scheme));
  for (const QuantScheme& scheme : {config.scheme, config.combine_scheme}) {
    require((config.hidden * bits_of(scheme.dtype)) % 8 == 0 || scheme.is_simulated(),
            Errc::kInvalidArgument, "exchange: hidden is {} with {} elements, must be even",
            config.hidden, name_of(scheme.dtype));
  }
  const bool is_rowwise = config.scheme.is_quantized() && !config.scheme.is_simulated() &&
                          config.scheme.group != ScaleGroup::kTensor;
  require(config.scale_layout == ScaleLayout::kRowMajor || is_rowwise, Errc::kInvalidArgument,
          "exchange: scale_layout is {} for {}, which has no scales in its rows",
          name_of(config.scale_layout), name_of(config.scheme));
  require(config.scale_layout != ScaleLayout::kSwizzled || bits_of(scale_dtype(config.scheme)) == 8,
          Errc::kInvalidArgument,
          "exchange: scale_layout is swizzled for {}, must be one-byte scales",
          name_of(config.scheme));
}

void check(const ExchangeConfig& config, int num_ranks) {
  check_enums(config);
  check_routing(config, num_ranks);
  check_experts_per_rank(config, num_ranks);
  require_range("hidden", config.hidden, 1, kMaxInt);
  check_layout(config);
  check_schemes(config);
  for (const std::int64_t bytes : config.payload_bytes) {
    require_range("payload_bytes", bytes, 1, kMaxInt);
  }
}

// Offsets of the extra payloads, relative to the first one; `end` is set to where they end.
std::vector<std::size_t> place_extras(const ExchangeConfig& config, std::size_t& end) {
  std::vector<std::size_t> offsets;
  end = 0;
  for (const std::int64_t bytes : config.payload_bytes) {
    offsets.push_back(end);
    end = checked_add(end, align_up(static_cast<std::size_t>(bytes), sizeof(float)));
  }
  return offsets;
}

WindowShape window_shape(const ExchangeConfig& config, int num_ranks) {
  WindowShape window;
  window.max_tokens = config.max_tokens_per_rank;
  window.num_ranks = num_ranks;
  window.num_topk = config.num_topk;
  window.num_sets = std::max(2, config.max_in_flight + 1);
  window.sends_weights = config.sends_weights;
  window.keeps_every_choice = config.reduce == Reduce::kPerExpert;
  window.returns_everywhere = config.slices_experts || config.num_topk == 0;
  window.payload_bytes = row_bytes(config.scheme, config.hidden);
  window.scale_bytes = config.scheme.group == ScaleGroup::kTensor
                           ? 0
                           : scale_row_bytes(config.scheme, config.hidden);
  return window;
}

template <typename T>
std::string to_text(const T& value) {
  if constexpr (NamedEnum<T>) {
    return enum_name(value);
  } else if constexpr (requires { name_of(value); }) {
    return name_of(value);
  } else if constexpr (requires { value.front(); } && !std::is_same_v<T, std::string>) {
    return fmt::format("{}", fmt::join(value, " "));
  } else {
    return fmt::format("{}", value);
  }
}

template <typename T>
NamedValues agreed_fields_of(const T& config) {
  NamedValues values;
  for_each_field<T>([&](const auto& field) {
    if (field.is_agreed) values.emplace_back(field.name, to_text(config.*field.member));
  });
  return values;
}

}  // namespace

std::shared_ptr<const std::vector<int>> first_experts_of(const std::vector<std::int32_t>& counts) {
  std::vector<int> first{0};
  for (const std::int32_t count : counts) first.push_back(first.back() + count);
  return std::make_shared<const std::vector<int>>(std::move(first));
}

ExchangeShape make_exchange_shape(const ExchangeConfig& config, int num_ranks, int rank) {
  check(config, num_ranks);
  ExchangeShape shape;
  shape.ownership = {config.num_experts, num_ranks, config.slices_experts};
  if (!config.experts_per_rank.empty()) {
    shape.first_experts = first_experts_of(config.experts_per_rank);
    shape.ownership.table = shape.first_experts->data();
  }
  shape.receive.layout = config.layout;
  shape.receive.alignment = config.expert_alignment;
  shape.receive.max_tokens = config.max_tokens_per_rank;
  shape.receive.is_worst_case = config.worst_case_rows;
  shape.receive.capacity = config.capacity;
  if (config.layout == Layout::kBatched && config.capacity == 0) {
    shape.receive.capacity = checked_mul<std::int64_t>(num_ranks, config.max_tokens_per_rank);
  }
  // A size that overflows where most experts are is rejected on every rank.
  (void)max_buffer_rows(shape.ownership.largest_rank(), shape.ownership, config.num_topk,
                        shape.receive);
  shape.max_buffer_rows = max_buffer_rows(rank, shape.ownership, config.num_topk, shape.receive);

  WindowShape window = window_shape(config, num_ranks);
  shape.payload_bytes = window.payload_bytes;
  shape.num_scales =
      config.scheme.group == ScaleGroup::kTensor ? 0 : num_scales(config.scheme, config.hidden);
  shape.extras_in_row = place_extras(config, window.extra_bytes);
  shape.combine_payload_bytes = row_bytes(config.combine_scheme, config.hidden);
  shape.combine_scales_in_row = align_up(shape.combine_payload_bytes, sizeof(float));
  window.combine_row_bytes =
      config.combine_scheme.is_quantized()
          ? shape.combine_scales_in_row + scale_row_bytes(config.combine_scheme, config.hidden)
          : shape.combine_payload_bytes;
  shape.window = make_window_layout(window);
  for (std::size_t& offset : shape.extras_in_row) offset += shape.window.extras_in_row;
  return shape;
}

ScaleBlocks scale_blocks(const ExchangeConfig& config, const ExchangeShape& shape, int rank,
                         std::int64_t num_rows) {
  const bool is_batched = config.layout == Layout::kBatched;
  const std::int64_t num_blocks = is_batched ? shape.ownership.count(rank) : 1;
  // Tiles of 128 rows x 4 scales pad the most; reject sizes that would overflow with that padding.
  (void)checked_mul(checked_mul(align_up<std::int64_t>(num_rows, 128) + 128 * num_blocks,
                                align_up<std::int64_t>(shape.num_scales, 4)),
                    std::int64_t{4});
  const DType dtype = scale_dtype(config.scheme);
  const std::int64_t block_rows = is_batched ? shape.receive.capacity : num_rows;
  return {{config.scale_layout, block_rows, shape.num_scales, bits_of(dtype) / 8},
          dtype,
          num_blocks,
          is_batched};
}

ExchangeMemory exchange_memory(const ExchangeConfig& config, int num_ranks, int rank) {
  require(num_ranks >= 1 && rank >= 0 && rank < num_ranks, Errc::kInvalidArgument,
          "exchange_memory: rank {} of {}, must be from 0 to {}", rank, num_ranks, num_ranks - 1);
  const ExchangeShape shape = make_exchange_shape(config, num_ranks, rank);
  std::size_t row = shape.payload_bytes;
  for (const std::int64_t bytes : config.payload_bytes) {
    row = checked_add(row, static_cast<std::size_t>(bytes));
  }
  row = checked_add(row, routing_row_bytes(config));
  const std::size_t rows = checked_mul(static_cast<std::size_t>(shape.max_buffer_rows), row);
  const std::size_t scales = scale_blocks(config, shape, rank, shape.max_buffer_rows).num_bytes();
  return {shape.window.total_bytes,
          checked_mul(checked_add(rows, scales), static_cast<std::size_t>(config.max_in_flight))};
}

std::size_t routing_row_bytes(const ExchangeConfig& config) {
  const std::size_t weight = config.sends_weights ? sizeof(float) : 0;
  if (is_expert_major(config.layout)) return weight;
  return static_cast<std::size_t>(config.num_topk) * (sizeof(std::int32_t) + weight);
}

NamedValues agreed_fields(const ExchangeConfig& config) { return agreed_fields_of(config); }
NamedValues agreed_fields(const ExchangeOptions& options) { return agreed_fields_of(options); }

}  // namespace switchyard

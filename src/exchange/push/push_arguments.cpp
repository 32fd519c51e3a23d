// SPDX-License-Identifier: Apache-2.0
//
// From the caller's tensors to what the kernels are given.

#include <algorithm>

#include "core/bytes.h"
#include "core/check_matrix.h"
#include "core/format.h"
#include "exchange/check_returns.h"
#include "exchange/check_tokens.h"
#include "exchange/push/push_exchange.h"

namespace switchyard {
namespace {

bool is_aligned(const TensorView& rows, std::int64_t row_bytes) {
  const std::int64_t stride = rows.stride(0) * bits_of(rows.dtype()) / 8;
  const auto address = reinterpret_cast<std::uintptr_t>(rows.data());
  return address % kUnitBytes == 0 && stride % static_cast<std::int64_t>(kUnitBytes) == 0 &&
         row_bytes % static_cast<std::int64_t>(kUnitBytes) == 0;
}

std::int64_t stride_bytes(const TensorView& rows) {
  return rows.stride(0) * bits_of(rows.dtype()) / 8;
}

}  // namespace

void PushExchange::check_input(const Input& input) const {
  const ExchangeConfig& config = shape_.config;
  const DeviceDispatchOptions& options = input.options;
  check_tokens(config, shape_.exchange.num_scales, input.tokens, options.scales);
  const std::int64_t num_tokens = input.tokens.shape(0);
  (void)checked_max_tokens(config, options.max_tokens, num_tokens);
  if (input.earlier != nullptr) {
    require(num_tokens == input.earlier->num_tokens, Errc::kInvalidArgument,
            "dispatch_again: tokens has {} rows, must be {} as in the earlier dispatch", num_tokens,
            input.earlier->num_tokens);
    require(options.max_tokens == 0 || options.max_tokens == input.earlier->max_tokens,
            Errc::kInvalidArgument,
            "dispatch_again: options.max_tokens is {}, must be {} as in the earlier dispatch",
            options.max_tokens, input.earlier->max_tokens);
  } else if (config.num_topk == 0) {
    require(!input.topk_ids.has_value(), Errc::kInvalidArgument,
            "dispatch: topk_ids is {}, must be absent: num_topk is 0", input.topk_ids);
  } else {
    check_matrix(input.topk_ids,
                 {"dispatch", "topk_ids", {DType::kI32, DType::kI64}, num_tokens, config.num_topk});
  }
  check_topk_weights(config, num_tokens, input.topk_weights);
  check_tensor_scale(config.scheme, options.tensor_scale);
  if (!options.routing_only) check_payloads(config, options.payloads, num_tokens);
}

void PushExchange::set_input(Slot& slot, const Input& input) const {
  const TensorView& tokens = input.tokens;
  const DeviceDispatchOptions& options = input.options;
  const std::int64_t asked =
      input.earlier == nullptr ? options.max_tokens : input.earlier->max_tokens;
  slot.max_tokens = checked_max_tokens(shape_.config, asked, tokens.shape(0));
  slot.call_max_tokens = input.earlier == nullptr ? asked : input.earlier->call_max_tokens;
  slot.num_tokens = tokens.shape(0);
  slot.is_again = input.earlier != nullptr;
  slot.routing_only = options.routing_only;
  slot.routing = slot.is_again ? input.earlier->routing : options_.keeps_routing ? slot.id : 0;
  cuda::DispatchArgs& args = slot.dispatch;
  args.tokens = tokens.as<std::byte>();
  args.token_stride = stride_bytes(tokens);
  args.num_tokens = static_cast<std::int32_t>(tokens.shape(0));
  args.token_dtype = tokens.dtype();
  args.aligned_tokens = is_aligned(tokens, shape_.config.hidden * bits_of(tokens.dtype()) / 8);
  args.given_scales = nullptr;
  if (options.scales.has_value()) {
    args.given_scales = options.scales.as<std::byte>();
    args.given_scale_stride[0] = options.scales.stride(0);
    args.given_scale_stride[1] = options.scales.stride(1);
  }
  args.tensor_scale = options.tensor_scale.has_value() ? options.tensor_scale.as<float>() : nullptr;
  set_ids(slot, input);
  set_rows_of_call(slot);
  for (std::size_t i = 0; i < slot.payloads.size() && !options.routing_only; ++i) {
    const TensorView& from = options.payloads[i];
    cuda::DispatchArgs& payload = slot.payloads[i];
    payload.tokens = from.as<std::byte>();
    payload.token_stride = payload.row_bytes;
    payload.aligned_tokens =
        payload.aligned_rows && reinterpret_cast<std::uintptr_t>(from.data()) % kUnitBytes == 0;
  }
}

// The ids of this rank's tokens: as given, as kept, or, where every rank takes part, every rank.
void PushExchange::set_ids(Slot& slot, const Input& input) const {
  cuda::DispatchArgs& args = slot.dispatch;
  cuda::RoutingArgs& routing = slot.routing_args;
  const bool is_given = input.earlier == nullptr;
  const bool are_kept = !is_given || drops(slot);
  const float* weights = input.topk_weights.has_value() ? input.topk_weights.as<float>() : nullptr;
  routing.num_tokens = args.num_tokens;
  routing.topk_ids = is_given ? input.topk_ids.data() : routing.own_ids;
  routing.ids_are_64_bits = is_given && input.topk_ids.dtype() == DType::kI64;
  routing.topk_weights = shape_.config.sends_weights ? weights : nullptr;
  routing.num_buffer_rows = static_cast<std::int32_t>(buffer_rows(slot));
  args.topk_ids = shape_.gathers ? every_rank_.data()
                  : are_kept     ? routing.own_ids
                                 : input.topk_ids.data();
  args.ids_are_64_bits = !shape_.gathers && !are_kept && routing.ids_are_64_bits;
  args.topk_weights = shape_.gathers ? nullptr : weights;
  for (cuda::DispatchArgs& payload : slot.payloads) {
    payload.num_tokens = args.num_tokens;
    payload.topk_ids = args.topk_ids;
    payload.ids_are_64_bits = args.ids_are_64_bits;
  }
  slot.gather.num_tokens = args.num_tokens;
}

// Where rows of this call go. With routing only, a row has one vector of elements and no scales.
void PushExchange::set_rows_of_call(Slot& slot) const {
  cuda::DispatchArgs& args = slot.dispatch;
  const ExchangeShape& shape = shape_.exchange;
  args.layout = shape_.main;
  args.scale_block = scale_blocks(shape_.config, shape, group_.rank(), buffer_rows(slot)).block;
  const ScaleGeometry& block = args.scale_block;
  args.scales_are_tiled = block.layout == ScaleLayout::kSwizzled;
  args.scale_row_step = block.index(1, 0) * block.element_bytes;
  args.scale_step = block.index(0, 1) * block.element_bytes;
  const std::int64_t units_per_chunk = shape_.main.shape.chunk_scale_bytes / 16;
  const std::int64_t last = shape.num_scales % args.scales_per_chunk;
  args.scale_units_per_row =
      static_cast<std::int32_t>(shape.num_scales / args.scales_per_chunk * units_per_chunk +
                                cdiv<std::int64_t>(last * block.element_bytes, 16));
  const bool is_by_rank = shape_.config.layout == Layout::kByRank;
  args.source_rows = is_by_rank ? static_cast<std::int32_t>(slot.max_tokens) : 0;
  for (cuda::DispatchArgs& payload : slot.payloads) payload.source_rows = args.source_rows;
  if (!slot.routing_only) return;
  args.layout.shape.hidden = std::min<std::int64_t>(kVecElements, args.layout.shape.hidden);
  args.layout.num_chunks = 1;
  args.scale_units_per_row = 0;
  args.scale_block.num_scales = 0;
  args.given_scales = nullptr;
  args.tokens = blank_.data();
  args.token_stride = 0;
}

void PushExchange::set_results(Slot& slot, const TensorView& rows,
                               const DeviceCombineOptions& options) const {
  const ExchangeConfig& config = shape_.config;
  const std::int64_t num_rows = buffer_rows(slot);
  const std::int64_t num_elements = checked_mul(num_rows, config.hidden);
  const DType dtype = rows.dtype();
  const bool is_float = dtype == DType::kBF16 || dtype == DType::kF16 || dtype == DType::kF32;
  require(
      rows.has_value() && is_float && rows.is_contiguous() && rows.num_elements() == num_elements,
      Errc::kInvalidArgument,
      "combine: rows is {}, must be bf16, f16 or f32 [{}, {}], contiguous: a row for each of "
      "the receive buffer",
      rows, num_rows, config.hidden);
  check_address(rows, "combine", "rows");
  cuda::CombineArgs& args = slot.combine;
  args.rows = rows.as<std::byte>();
  args.row_dtype = dtype;
  args.row_stride = config.hidden * bits_of(dtype) / 8;
  args.aligned_rows = args.row_stride % static_cast<std::int64_t>(kUnitBytes) == 0 &&
                      reinterpret_cast<std::uintptr_t>(rows.data()) % kUnitBytes == 0;
  args.shared = nullptr;
  args.applies_weights = !options.rows_are_weighted && config.sends_weights &&
                         config.reduce == Reduce::kPerRank && args.layout.shape.sends_routes;
  set_row_weights(slot, options);
}

void PushExchange::set_output(Slot& slot, const TensorView& output,
                              const DeviceCombineOptions& options) const {
  const ExchangeConfig& config = shape_.config;
  check_matrix(output, {"combine",
                        "output",
                        {DType::kBF16, DType::kF16, DType::kF32},
                        slot.num_tokens,
                        config.hidden,
                        true});
  cuda::CombineArgs& args = slot.combine;
  args.output = output.as<std::byte>();
  args.output_dtype = output.dtype();
  args.output_stride = stride_bytes(output);
  args.aligned_output = is_aligned(output, config.hidden * bits_of(output.dtype()) / 8);
  check_new_weights(config, slot.num_tokens, options.topk_weights);
  args.topk_weights = options.topk_weights.has_value() ? options.topk_weights.as<float>() : nullptr;
  set_addends(slot, options);
  set_returned_weights(slot, options);
}

void PushExchange::set_addends(Slot& slot, const DeviceCombineOptions& options) const {
  const ExchangeConfig& config = shape_.config;
  cuda::CombineArgs& args = slot.combine;
  if (options.shared.has_value()) {
    check_matrix(options.shared,
                 {"combine", "shared", {DType::kBF16}, slot.num_tokens, config.hidden, true});
    args.shared_stride = options.shared.stride(0);
    args.aligned_shared = is_aligned(options.shared, config.hidden * 2);
  }
  args.shared = options.shared.has_value() ? options.shared.as<std::uint16_t>() : nullptr;
  require(options.bias.size() <= std::size(args.bias), Errc::kNotSupported,
          "combine: {} bias partials are given, must be at most {}", options.bias.size(),
          std::size(args.bias));
  args.num_bias = static_cast<std::int32_t>(options.bias.size());
  for (std::size_t i = 0; i < options.bias.size(); ++i) {
    check_matrix(options.bias[i], {"combine",
                                   fmt::format("bias[{}]", i),
                                   {DType::kBF16},
                                   slot.num_tokens,
                                   config.hidden,
                                   true});
    args.bias[i] = options.bias[i].as<std::uint16_t>();
    args.bias_stride[i] = options.bias[i].stride(0);
  }
}

DeviceDispatched PushExchange::describe(const Slot& slot) const {
  const cuda::DispatchArgs& args = slot.dispatch;
  const ExchangeConfig& config = shape_.config;
  const cuda::RoutingArgs& routing = slot.routing_args;
  const std::int64_t rows = buffer_rows(slot);
  const std::int64_t local = shape_.exchange.ownership.count(group_.rank());
  const bool is_major = is_expert_major(config.layout);
  const DType dtype = config.scheme.is_simulated() ? DType::kBF16 : config.scheme.dtype;
  DeviceDispatched result;
  result.handle = handle_of(slot);
  result.rows =
      config.layout == Layout::kBatched
          ? TensorView(args.rows, dtype, {local, shape_.exchange.receive.capacity, config.hidden})
          : TensorView(args.rows, dtype, {rows, config.hidden});
  if (config.scheme.group == ScaleGroup::kTensor) {
    result.scales = TensorView(args.tensor_scale, DType::kF32, {1});
  } else if (args.scales != nullptr) {
    result.scales = scale_blocks(config, shape_.exchange, group_.rank(), rows).view(args.scales);
  }
  result.num_rows = TensorView(routing.num_rows_of_expert, DType::kI32, {local});
  result.total_rows = TensorView(args.total_rows, DType::kI32, {1});
  if (is_major) result.first_row = TensorView(args.first_row, DType::kI64, {local});
  const std::int64_t topk = config.num_topk;
  std::int32_t* ids = shape_.gathers ? routing.row_ids : args.row_ids;
  float* weights = shape_.gathers ? routing.row_weights : args.row_weights;
  if (!is_major && topk > 0) result.topk_ids = TensorView(ids, DType::kI32, {rows, topk});
  if (config.sends_weights && is_major) {
    result.topk_weights = TensorView(weights, DType::kF32, {rows});
  } else if (config.sends_weights && topk > 0) {
    result.topk_weights = TensorView(weights, DType::kF32, {rows, topk});
  }
  for (const cuda::DispatchArgs& payload : slot.payloads) {
    result.payloads.emplace_back(payload.rows, DType::kU8,
                                 std::initializer_list<std::int64_t>{rows, payload.row_bytes});
  }
  if (config.overflow == Overflow::kDrop) {
    result.num_dropped = TensorView(routing.num_dropped, DType::kI32, {1});
  }
  return result;
}

}  // namespace switchyard

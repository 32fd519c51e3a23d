// SPDX-License-Identifier: Apache-2.0
//
// From the caller's tensors, which are checked here, to a DispatchCall or CombineCall; and back to
// what a dispatch returns.

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
    require(num_tokens == input.earlier->call.num_tokens(), Errc::kInvalidArgument,
            "dispatch_again: tokens has {} rows, must be {} as in the earlier dispatch", num_tokens,
            input.earlier->call.num_tokens());
    require(options.max_tokens == 0 || options.max_tokens == input.earlier->call.max_tokens,
            Errc::kInvalidArgument,
            "dispatch_again: options.max_tokens is {}, must be {} as in the earlier dispatch",
            options.max_tokens, input.earlier->call.max_tokens);
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

DispatchCall PushExchange::call_of(const Input& input) const {
  const TensorView& tokens = input.tokens;
  const DeviceDispatchOptions& options = input.options;
  const DispatchCall* earlier = input.earlier == nullptr ? nullptr : &input.earlier->call;
  const std::int64_t asked = earlier == nullptr ? options.max_tokens : earlier->max_tokens;
  DispatchCall call;
  call.tokens = token_input(input);
  call.max_tokens = checked_max_tokens(shape_.config, asked, tokens.shape(0));
  call.call_max_tokens = earlier == nullptr ? asked : earlier->call_max_tokens;
  call.is_again = earlier != nullptr;
  call.routing_only = options.routing_only;
  if (options.routing_only) return call;
  for (const TensorView& payload : options.payloads) {
    call.payloads.push_back(payload.as<std::byte>());
  }
  return call;
}

cuda::TokenInput PushExchange::token_input(const Input& input) const {
  const TensorView& tokens = input.tokens;
  const DeviceDispatchOptions& options = input.options;
  cuda::TokenInput to;
  to.data = tokens.as<std::byte>();
  to.stride = stride_bytes(tokens);
  to.count = static_cast<std::int32_t>(tokens.shape(0));
  to.dtype = tokens.dtype();
  to.are_aligned = is_aligned(tokens, shape_.config.hidden * bits_of(tokens.dtype()) / 8);
  if (options.tensor_scale.has_value()) to.tensor_scale = options.tensor_scale.as<float>();
  if (input.topk_weights.has_value()) to.topk_weights = input.topk_weights.as<float>();
  if (input.earlier == nullptr) {
    to.ids = {input.topk_ids.data(), input.topk_ids.dtype() == DType::kI64};
  }
  if (options.routing_only) {  // all tokens are the same short row
    to.data = blank_.data();
    to.stride = 0;
  } else if (options.scales.has_value()) {
    to.scales = options.scales.as<std::byte>();
    to.scale_stride[0] = options.scales.stride(0);
    to.scale_stride[1] = options.scales.stride(1);
  }
  return to;
}

cuda::ReturnInput PushExchange::return_input(const Slot& slot, const TensorView& rows,
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
  const std::int64_t stride = config.hidden * bits_of(dtype) / 8;
  const bool is_weighted = options.rows_are_weighted || !config.sends_weights;
  return {.data = rows.as<std::byte>(),
          .stride = stride,
          .dtype = dtype,
          .applies_weights =
              !is_weighted && config.reduce == Reduce::kPerRank && shape_.main.shape.sends_routes,
          .are_aligned = stride % static_cast<std::int64_t>(kUnitBytes) == 0 &&
                         reinterpret_cast<std::uintptr_t>(rows.data()) % kUnitBytes == 0};
}

cuda::SumOutput PushExchange::sum_output(const Slot& slot, const TensorView& output,
                                         const DeviceCombineOptions& options) const {
  const ExchangeConfig& config = shape_.config;
  const std::int64_t num_tokens = slot.call.num_tokens();
  const auto check_addend = [&](const TensorView& rows, const std::string& name) {
    check_matrix(rows, {"combine", name, {DType::kBF16}, num_tokens, config.hidden, true});
  };
  check_matrix(output, {"combine",
                        "output",
                        {DType::kBF16, DType::kF16, DType::kF32},
                        num_tokens,
                        config.hidden,
                        true});
  check_new_weights(config, num_tokens, options.topk_weights);
  cuda::SumOutput sums;
  sums.num_tokens = slot.call.tokens.count;
  sums.data = output.as<std::byte>();
  sums.dtype = output.dtype();
  sums.stride = stride_bytes(output);
  sums.are_aligned = is_aligned(output, config.hidden * bits_of(output.dtype()) / 8);
  if (options.topk_weights.has_value()) sums.topk_weights = options.topk_weights.as<float>();
  if (options.shared.has_value()) {
    check_addend(options.shared, "shared");
    sums.shared = options.shared.as<std::uint16_t>();
    sums.shared_stride = options.shared.stride(0);
    sums.shared_is_aligned = is_aligned(options.shared, config.hidden * 2);
  }
  require(options.bias.size() <= std::size(sums.bias), Errc::kNotSupported,
          "combine: {} bias partials are given, must be at most {}", options.bias.size(),
          std::size(sums.bias));
  for (const TensorView& bias : options.bias) {
    check_addend(bias, fmt::format("bias[{}]", sums.num_bias));
    sums.bias[sums.num_bias] = bias.as<std::uint16_t>();
    sums.bias_stride[sums.num_bias++] = bias.stride(0);
  }
  return sums;
}

void PushExchange::add_results(CombineCall& call, const Slot& slot, const TensorView& rows,
                               const DeviceCombineOptions& options) const {
  call.results = return_input(slot, rows, options);
  check_row_weights(shape_.config, buffer_rows(slot), options.row_weights);
  if (options.row_weights.has_value()) call.row_weights = options.row_weights.as<float>();
}

void PushExchange::add_output(CombineCall& call, const Slot& slot, const TensorView& output,
                              const DeviceCombineOptions& options) const {
  call.sums = sum_output(slot, output, options);
  check_returned_weights(shape_.config, slot.call.num_tokens(), options.returned_weights);
  if (options.returned_weights.has_value()) {
    call.returned_weights = options.returned_weights.as<std::uint32_t>();
  }
}

DeviceDispatched PushExchange::describe(const Slot& slot) const {
  const SlotMemory& args = slot.kernels.memory;
  const ExchangeConfig& config = shape_.config;
  const SlotMemory& routing = slot.kernels.memory;
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
    result.scales = TensorView(slot.call.tokens.tensor_scale, DType::kF32, {1});
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
  for (const PayloadMemory& payload : slot.kernels.memory.payloads) {
    result.payloads.emplace_back(payload.rows, DType::kU8,
                                 std::initializer_list<std::int64_t>{rows, payload.row_bytes});
  }
  if (config.overflow == Overflow::kDrop) {
    result.num_dropped = TensorView(routing.num_dropped, DType::kI32, {1});
  }
  return result;
}

}  // namespace switchyard

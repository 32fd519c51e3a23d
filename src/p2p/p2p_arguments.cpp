// SPDX-License-Identifier: Apache-2.0
//
// From the caller's tensors to what the kernels are given.

#include <algorithm>

#include "core/bytes.h"
#include "core/format.h"
#include "exchange/check_matrix.h"
#include "exchange/check_tokens.h"
#include "p2p/p2p_exchange.h"

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

void P2pExchange::check_input(const TensorView& tokens, const TensorView& topk_ids,
                              const TensorView& topk_weights,
                              const DeviceDispatchOptions& options) const {
  check_tokens(config_, shape_.num_scales, tokens, options.scales);
  require(tokens.shape(0) <= config_.max_tokens_per_rank, Errc::kInvalidArgument,
          "dispatch: tokens has {} rows, but max_tokens_per_rank is {}", tokens.shape(0),
          config_.max_tokens_per_rank);
  check_matrix(
      topk_ids,
      {"dispatch", "topk_ids", {DType::kI32, DType::kI64}, tokens.shape(0), config_.num_topk});
  check_topk_weights(config_, tokens.shape(0), topk_weights);
  check_tensor_scale(config_.scheme, options.tensor_scale);
}

void P2pExchange::set_input(Channel& channel, const TensorView& tokens, const TensorView& topk_ids,
                            const TensorView& topk_weights,
                            const DeviceDispatchOptions& options) const {
  DispatchArgs& args = channel.dispatch;
  args.tokens = tokens.as<std::byte>();
  args.token_stride = stride_bytes(tokens);
  args.num_tokens = static_cast<std::int32_t>(tokens.shape(0));
  args.token_dtype = tokens.dtype();
  args.aligned_tokens = is_aligned(tokens, config_.hidden * bits_of(tokens.dtype()) / 8);
  args.given_scales = nullptr;
  if (options.scales.has_value()) {
    args.given_scales = options.scales.as<std::byte>();
    args.given_scale_stride[0] = options.scales.stride(0);
    args.given_scale_stride[1] = options.scales.stride(1);
  }
  args.tensor_scale = options.tensor_scale.has_value() ? options.tensor_scale.as<float>() : nullptr;
  args.topk_ids = topk_ids.data();
  args.ids_are_64_bits = topk_ids.dtype() == DType::kI64;
  args.topk_weights = topk_weights.has_value() ? topk_weights.as<float>() : nullptr;
  channel.num_tokens = tokens.shape(0);
}

void P2pExchange::set_results(Channel& channel, const TensorView& rows,
                              const DeviceCombineOptions& options) const {
  const std::int64_t num_elements = checked_mul(shape_.max_buffer_rows, config_.hidden);
  const DType dtype = rows.dtype();
  const bool is_float = dtype == DType::kBF16 || dtype == DType::kF16 || dtype == DType::kF32;
  require(
      rows.has_value() && is_float && rows.is_contiguous() && rows.num_elements() == num_elements,
      Errc::kInvalidArgument,
      "combine: rows is {}, must be bf16, f16 or f32 [{}, {}], contiguous: a row for each of "
      "the receive buffer",
      rows, shape_.max_buffer_rows, config_.hidden);
  check_address(rows, "combine", "rows");
  CombineArgs& args = channel.combine;
  args.rows = rows.as<std::byte>();
  args.row_dtype = dtype;
  args.row_stride = config_.hidden * bits_of(dtype) / 8;
  args.aligned_rows = args.row_stride % static_cast<std::int64_t>(kUnitBytes) == 0 &&
                      reinterpret_cast<std::uintptr_t>(rows.data()) % kUnitBytes == 0;
  args.applies_weights = !options.rows_are_weighted && config_.sends_weights;
}

void P2pExchange::set_output(Channel& channel, const TensorView& output,
                             const DeviceCombineOptions& options) const {
  check_matrix(output, {"combine",
                        "output",
                        {DType::kBF16, DType::kF16, DType::kF32},
                        channel.num_tokens,
                        config_.hidden,
                        true});
  CombineArgs& args = channel.combine;
  args.output = output.as<std::byte>();
  args.output_dtype = output.dtype();
  args.output_stride = stride_bytes(output);
  args.aligned_output = is_aligned(output, config_.hidden * bits_of(output.dtype()) / 8);
  args.topk_weights = nullptr;
  if (options.topk_weights.has_value()) {
    require(config_.reduce == Reduce::kPerExpert, Errc::kInvalidArgument,
            "combine: topk_weights is given, but reduce is per_rank; pass the weights to dispatch");
    check_matrix(options.topk_weights,
                 {"combine", "topk_weights", {DType::kF32}, channel.num_tokens, config_.num_topk});
    args.topk_weights = options.topk_weights.as<float>();
  }
  require(options.bias.size() <= std::size(args.bias), Errc::kNotSupported,
          "combine: {} bias terms are given, must be at most {}", options.bias.size(),
          std::size(args.bias));
  args.num_bias = static_cast<std::int32_t>(options.bias.size());
  for (std::size_t i = 0; i < options.bias.size(); ++i) {
    check_matrix(options.bias[i], {"combine",
                                   fmt::format("bias[{}]", i),
                                   {DType::kBF16},
                                   channel.num_tokens,
                                   config_.hidden,
                                   true});
    args.bias[i] = options.bias[i].as<std::uint16_t>();
    args.bias_stride[i] = options.bias[i].stride(0);
  }
}

DeviceDispatched P2pExchange::describe(const Channel& channel) const {
  const DispatchArgs& args = channel.dispatch;
  const std::int64_t rows = shape_.max_buffer_rows;
  const std::int64_t local = shape_.ownership.count(group_.rank());
  const bool is_major = is_expert_major(config_.layout);
  const DType dtype = config_.scheme.is_simulated() ? DType::kBF16 : config_.scheme.dtype;
  DeviceDispatched result;
  result.handle = handle_of(channel);
  result.rows = config_.layout == Layout::kBatched
                    ? TensorView(args.rows, dtype, {local, shape_.receive.capacity, config_.hidden})
                    : TensorView(args.rows, dtype, {rows, config_.hidden});
  if (config_.scheme.group == ScaleGroup::kTensor) {
    result.scales = TensorView(args.tensor_scale, DType::kF32, {1});
  } else if (args.scales != nullptr) {
    result.scales = scale_blocks(config_, shape_, group_.rank(), rows).view(args.scales);
  }
  result.num_rows = TensorView(args.num_rows, DType::kI32, {local});
  result.total_rows = TensorView(args.total_rows, DType::kI32, {1});
  if (is_major) result.first_row = TensorView(args.first_row, DType::kI64, {local});
  const std::int64_t topk = config_.num_topk;
  if (!is_major) result.topk_ids = TensorView(args.row_ids, DType::kI32, {rows, topk});
  if (config_.sends_weights && is_major) {
    result.topk_weights = TensorView(args.row_weights, DType::kF32, {rows});
  } else if (config_.sends_weights) {
    result.topk_weights = TensorView(args.row_weights, DType::kF32, {rows, topk});
  }
  return result;
}

}  // namespace switchyard

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

void PushExchange::check_input(const DispatchCall& input, const Slot* earlier) const {
  const ExchangeConfig& config = shape_.config;
  const DispatchOptions& options = input.options;
  check_tokens(config, shape_.exchange.num_scales, input.tokens, options);
  const std::int64_t num_tokens = input.tokens.shape(0);
  (void)checked_max_tokens(config, options.max_tokens, num_tokens);
  if (earlier != nullptr) {
    require(num_tokens == earlier->dispatch.num_tokens(), Errc::kInvalidArgument,
            "dispatch_again: tokens has {} rows, must be {} as in the earlier dispatch", num_tokens,
            earlier->dispatch.num_tokens());
    require(options.max_tokens == 0 || options.max_tokens == earlier->dispatch.max_tokens,
            Errc::kInvalidArgument,
            "dispatch_again: options.max_tokens is {}, must be {} as in the earlier dispatch",
            options.max_tokens, earlier->dispatch.max_tokens);
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

PushDispatch PushExchange::push_dispatch(const DispatchCall& call, const Slot* earlier) const {
  const DispatchOptions& options = call.options;
  const PushDispatch* kept = earlier == nullptr ? nullptr : &earlier->dispatch;
  const std::int64_t asked = kept == nullptr ? options.max_tokens : kept->max_tokens;
  PushDispatch result;
  result.tokens = token_input(call);
  result.max_tokens = checked_max_tokens(shape_.config, asked, call.tokens.shape(0));
  result.call_max_tokens = kept == nullptr ? asked : kept->call_max_tokens;
  result.sizing = sizing_of(call, earlier);
  // Alone a rank gathers its own tokens, whose number the host knows.
  const bool is_alone = shape_.config.slices_experts && group_.size() == 1;
  const std::int64_t max_rows =
      is_alone ? call.tokens.shape(0) : shape_.buffer_rows(group_.rank(), result.max_tokens);
  result.num_rows = result.sizing == Sizing::kCounted ? kept->num_rows : max_rows;
  result.is_again = kept != nullptr;
  result.routing_only = options.routing_only;
  result.is_direct = shape_.can_be_direct() &&
                     switchyard::is_direct(path_, result.max_tokens, options.routing_only);
  if (options.routing_only) return result;
  for (const TensorView& payload : options.payloads) {
    result.payloads.push_back(payload.as<std::byte>());
  }
  return result;
}

cuda::TokenInput PushExchange::token_input(const DispatchCall& call) const {
  const TensorView& tokens = call.tokens;
  const DispatchOptions& options = call.options;
  cuda::TokenInput to;
  to.data = tokens.as<std::byte>();
  to.stride = stride_bytes(tokens);
  to.count = static_cast<std::int32_t>(tokens.shape(0));
  to.dtype = tokens.dtype();
  to.are_aligned = is_aligned(tokens, shape_.config.hidden * bits_of(tokens.dtype()) / 8);
  if (options.tensor_scale.has_value()) to.tensor_scale = options.tensor_scale.as<float>();
  if (call.topk_weights.has_value()) to.topk_weights = call.topk_weights.as<float>();
  if (call.earlier == nullptr) {
    to.ids = {call.topk_ids.data(), call.topk_ids.dtype() == DType::kI64};
  }
  if (options.routing_only) {  // every token is the same short row
    to.data = blank_.data();
    to.stride = 0;
  } else if (options.scales.has_value()) {
    to.scales = options.scales.as<std::byte>();
    to.scale_stride[0] = options.scales.stride(0);
    to.scale_stride[1] = options.scales.stride(1);
  }
  return to;
}

void PushExchange::add_results(PushCombine& to, const Slot& slot, const CombineCall& call) const {
  const ExchangeConfig& config = shape_.config;
  const TensorView& rows = call.rows;
  check_results(config, slot.dispatch.num_rows, rows);
  check_row_weights(config, slot.dispatch.num_rows, call.options.row_weights);
  const DType dtype = rows.dtype();
  const std::int64_t stride = config.hidden * bits_of(dtype) / 8;
  const bool are_unweighted = call.options.rows_are == RowsAre::kUnweighted && config.sends_weights;
  to.results = {.data = rows.as<std::byte>(),
                .stride = stride,
                .dtype = dtype,
                .applies_weights = are_unweighted && config.reduce != Reduce::kPerExpert &&
                                   shape_.main.shape.sends_routes,
                .are_aligned = stride % static_cast<std::int64_t>(kUnitBytes) == 0 &&
                               reinterpret_cast<std::uintptr_t>(rows.data()) % kUnitBytes == 0};
  if (call.options.row_weights.has_value()) to.row_weights = call.options.row_weights.as<float>();
}

void PushExchange::check_output_of(const Slot& slot, const CombineCall& call) const {
  const ExchangeConfig& config = shape_.config;
  const std::int64_t num_tokens = slot.dispatch.num_tokens();
  check_matrix(call.output, {"combine",
                             "output",
                             {DType::kBF16, DType::kF16, DType::kF32},
                             num_tokens,
                             config.hidden,
                             true});
  check_new_weights(config, num_tokens, call.options.topk_weights);
  check_returned_weights(config, num_tokens, call.options.returned_weights);
}

void PushExchange::add_output(PushCombine& to, const Slot& slot, const CombineCall& call) const {
  check_output_of(slot, call);
  to.sums = sum_output(slot, call);
  if (call.options.returned_weights.has_value()) {
    to.returned_weights = call.options.returned_weights.as<std::uint32_t>();
  }
}

cuda::SumOutput PushExchange::sum_output(const Slot& slot, const CombineCall& call) const {
  const std::int64_t hidden = shape_.config.hidden;
  const TensorView& output = call.output;
  const CombineOptions& options = call.options;
  const auto check_addend = [&](const TensorView& rows, const std::string& name) {
    check_matrix(rows, {"combine", name, {DType::kBF16}, slot.dispatch.num_tokens(), hidden, true});
  };
  cuda::SumOutput sums;
  sums.num_tokens = slot.dispatch.tokens.count;
  sums.data = output.as<std::byte>();
  sums.dtype = output.dtype();
  sums.stride = stride_bytes(output);
  sums.are_aligned = is_aligned(output, hidden * bits_of(output.dtype()) / 8);
  if (options.topk_weights.has_value()) sums.topk_weights = options.topk_weights.as<float>();
  if (options.shared.has_value()) {
    check_addend(options.shared, "shared");
    sums.shared = options.shared.as<std::uint16_t>();
    sums.shared_stride = options.shared.stride(0);
    sums.shared_is_aligned = is_aligned(options.shared, hidden * 2);
  }
  require(options.bias.size() <= std::size(sums.bias), Errc::kNotSupported,
          "combine: options.bias has {} tensors, must be at most {} on GPUs", options.bias.size(),
          std::size(sums.bias));
  for (const TensorView& bias : options.bias) {
    check_addend(bias, fmt::format("bias[{}]", sums.num_bias));
    sums.bias[sums.num_bias] = bias.as<std::uint16_t>();
    sums.bias_stride[sums.num_bias++] = bias.stride(0);
  }
  return sums;
}

Dispatched PushExchange::places(const DispatchHandle& handle) const {
  require(!options_.exact_memory, Errc::kNotSupported,
          "places: exact_memory takes memory when rows are received; receive first");
  return describe(slots_[handles_.index_of(handle, "places")]);
}

Dispatched PushExchange::describe(const Slot& slot) const {
  const SlotMemory& memory = slot.kernels.memory;
  const ReceivedMemory& received = slot.kernels.received;
  const ExchangeConfig& config = shape_.config;
  const std::int64_t rows = slot.dispatch.num_rows;
  const std::int64_t local = shape_.exchange.ownership.count(group_.rank());
  const bool is_major = is_expert_major(config.layout);
  const DType dtype = config.scheme.is_simulated() ? DType::kBF16 : config.scheme.dtype;
  Dispatched result;
  result.handle = handle_of(slot);
  ExpertRows& experts = result.experts;
  experts.scheme = config.scheme;
  experts.rows = config.layout == Layout::kBatched
                     ? TensorView(received.rows, dtype,
                                  {local, shape_.exchange.receive.capacity, config.hidden}, device_)
                     : TensorView(received.rows, dtype, {rows, config.hidden}, device_);
  if (config.scheme.group == ScaleGroup::kTensor) {
    experts.scales = TensorView(slot.dispatch.tokens.tensor_scale, DType::kF32, {1}, device_);
  } else if (shape_.exchange.num_scales > 0) {
    experts.scales =
        scale_blocks(config, shape_.exchange, group_.rank(), rows).view(received.scales, device_);
    experts.scale_layout = config.scale_layout;
  }
  if (config.scheme.needs_tensor_scale()) {
    experts.tensor_scale = TensorView(slot.dispatch.tokens.tensor_scale, DType::kF32, {1}, device_);
  }
  experts.num_rows = TensorView(memory.num_rows_of_expert, DType::kI32, {local}, device_);
  if (is_major) experts.first_row = TensorView(memory.first_row, DType::kI64, {local}, device_);
  result.total_rows = TensorView(memory.total_rows, DType::kI32, {1}, device_);
  const std::int64_t topk = config.num_topk;
  if (!is_major && topk > 0)
    result.topk_ids = TensorView(received.row_ids, DType::kI32, {rows, topk}, device_);
  if (config.sends_weights && is_major) {
    result.topk_weights = TensorView(received.row_weights, DType::kF32, {rows}, device_);
  } else if (config.sends_weights && topk > 0) {
    result.topk_weights = TensorView(received.row_weights, DType::kF32, {rows, topk}, device_);
  }
  for (std::size_t i = 0; i < received.payloads.size(); ++i) {
    result.payloads.emplace_back(received.payloads[i], DType::kU8,
                                 std::initializer_list<std::int64_t>{rows, config.payload_bytes[i]},
                                 device_);
  }
  if (config.overflow == Overflow::kDrop) {
    result.num_dropped = TensorView(memory.num_dropped, DType::kI32, {1}, device_);
  }
  if (slot.dispatch.sizing == Sizing::kCounted) result.host = host_counts(slot);
  return result;
}

}  // namespace switchyard

// SPDX-License-Identifier: Apache-2.0

#include "io/expert_tensors.h"

#include <cstring>

#include "core/bytes.h"
#include "core/format.h"
#include "io/checked_tensor.h"

namespace switchyard {
namespace {

/// One projection of several experts, each [rows, columns].
struct Stack {
  std::vector<std::string> names;
  std::int64_t rows;
  std::int64_t columns;
};

Tensor load_stack_scales(const Checkpoint& checkpoint, const Stack& stack, std::size_t num_local) {
  const std::int64_t shape[] = {cdiv(stack.rows, kScaleBlock), cdiv(stack.columns, kScaleBlock)};
  const std::int64_t count = shape[0] * shape[1];
  std::vector<std::string> names;
  std::vector<TensorView> views;
  for (std::size_t i = 0; i < num_local; ++i) {
    names.push_back(stack.names[i] + kScaleSuffix);
    views.push_back(checked_tensor(checkpoint, names.back(), shape));
  }
  Tensor scales(DType::kF32, {static_cast<std::int64_t>(num_local), shape[0], shape[1]});
  for (std::size_t i = 0; i < num_local; ++i) {
    float* to = scales.as<float>() + static_cast<std::int64_t>(i) * count;
    widen(checkpoint, names[i], views[i], to);
    check_scales(checkpoint, names[i], to, 0, count);
  }
  return scales;
}

void load_stack(const Checkpoint& checkpoint, const Stack& stack, std::size_t num_local,
                Tensor& weights, Tensor& scales) {
  const std::int64_t shape[] = {stack.rows, stack.columns};
  std::vector<TensorView> views;
  for (const std::string& name : stack.names) {
    const TensorView view = checked_tensor(checkpoint, name, shape);
    const DType dtype = views.empty() ? view.dtype() : views.front().dtype();
    if (view.dtype() != dtype) {
      fail_dtype(checkpoint, name, view, "the dtype of the other experts");
    }
    check_expert_dtype(checkpoint, name, view);
    views.push_back(view);
  }
  weights = Tensor(views.front().dtype(),
                   {static_cast<std::int64_t>(num_local), stack.rows, stack.columns});
  const std::size_t num_bytes = views.front().num_bytes();
  for (std::size_t i = 0; i < num_local; ++i) {
    std::memcpy(weights.as<std::byte>() + i * num_bytes, views[i].data(), num_bytes);
  }
  if (weights.dtype() == DType::kE4M3) scales = load_stack_scales(checkpoint, stack, num_local);
}

}  // namespace

void load_separate_experts(const Checkpoint& checkpoint, std::span<const std::string> modules,
                           const TensorNames& names, const MlpSizes& sizes, std::size_t num_local,
                           ExpertTensors& out) {
  const auto stack = [&](const char* projection, std::int64_t rows, std::int64_t columns) {
    Stack result{{}, rows, columns};
    for (const std::string& module : modules) {
      result.names.push_back(fmt::format("{}.{}.weight", module, projection));
    }
    return result;
  };
  const auto [hidden, intermediate] = sizes;
  load_stack(checkpoint, stack(names.gate, intermediate, hidden), num_local, out.gate,
             out.gate_scale);
  load_stack(checkpoint, stack(names.up, intermediate, hidden), num_local, out.up, out.up_scale);
  load_stack(checkpoint, stack(names.down, hidden, intermediate), num_local, out.down,
             out.down_scale);
}

}  // namespace switchyard

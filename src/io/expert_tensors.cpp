// SPDX-License-Identifier: Apache-2.0
//
// All shapes are checked against the file before memory is allocated, so a hostile config.json
// cannot request more than the checkpoint holds.

#include "io/expert_tensors.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>

#include "core/bytes.h"
#include "core/fail.h"
#include "core/text.h"

namespace switchyard {
namespace {

constexpr std::int64_t kScaleBlock = 128;
constexpr const char* kScaleSuffix = "_scale_inv";

using Shape3 = std::array<std::int64_t, 3>;

bool is_weight_dtype(DType dtype) {
  return dtype == DType::kBF16 || dtype == DType::kF16 || dtype == DType::kF32;
}

bool has_shape(const TensorView& view, std::span<const std::int64_t> shape) {
  bool same = view.num_dims() == static_cast<int>(shape.size());
  for (std::size_t dim = 0; same && dim < shape.size(); ++dim) {
    same = view.shape(static_cast<int>(dim)) == shape[dim];
  }
  return same;
}

[[noreturn]] void fail_shape(const Checkpoint& checkpoint, const std::string& name,
                             const TensorView& view, std::span<const std::int64_t> shape) {
  fail(Errc::kMalformedFile, "load_moe_layer: tensor {} of {} is {}, but config.json says [{}]",
       quote(name), checkpoint.file_of(name), view.describe(), fmt::join(shape, ", "));
}

TensorView checked_tensor(const Checkpoint& checkpoint, const std::string& name,
                          std::span<const std::int64_t> shape) {
  const TensorView view = checkpoint.tensor(name);
  if (!has_shape(view, shape)) fail_shape(checkpoint, name, view, shape);
  return view;
}

[[noreturn]] void fail_dtype(const Checkpoint& checkpoint, const std::string& name,
                             const TensorView& view, const char* want) {
  fail(Errc::kMalformedFile, "load_moe_layer: tensor {} of {} is {}, want {}", quote(name),
       checkpoint.file_of(name), view.describe(), want);
}

void check_expert_dtype(const Checkpoint& checkpoint, const std::string& name,
                        const TensorView& view) {
  if (is_weight_dtype(view.dtype()) || view.dtype() == DType::kE4M3) return;
  fail_dtype(checkpoint, name, view, "bf16, f16, f32 or e4m3");
}

// f16, bf16 and power-of-two scales are exact in f32.
float f16_value(std::uint16_t bits) {
  const int exponent = (bits >> 10) & 31;
  const int fraction = bits & 1023;
  float magnitude = std::ldexp(static_cast<float>(exponent == 0 ? fraction : fraction + 1024),
                               std::max(exponent, 1) - 25);
  if (exponent == 31) {
    magnitude = fraction == 0 ? std::numeric_limits<float>::infinity()
                              : std::numeric_limits<float>::quiet_NaN();
  }
  return (bits & 0x8000) != 0 ? -magnitude : magnitude;
}

float bf16_value(std::uint16_t bits) {
  const std::uint32_t wide = static_cast<std::uint32_t>(bits) << 16;
  float value = 0;
  std::memcpy(&value, &wide, sizeof value);
  return value;
}

float e8m0_value(std::uint8_t byte) {
  return byte == 255 ? std::numeric_limits<float>::quiet_NaN() : std::ldexp(1.0f, byte - 127);
}

// Checkpoints store biases and scales in several dtypes; callers get f32.
void widen(const Checkpoint& checkpoint, const std::string& name, const TensorView& view,
           float* out) {
  const auto count = static_cast<std::size_t>(view.num_elements());
  const auto* words = view.as<const std::uint16_t>();
  const auto* bytes = view.as<const std::uint8_t>();
  switch (view.dtype()) {
    case DType::kF32:
      if (count > 0) std::memcpy(out, view.data(), count * sizeof(float));
      return;
    case DType::kF16: std::transform(words, words + count, out, f16_value); return;
    case DType::kBF16: std::transform(words, words + count, out, bf16_value); return;
    case DType::kE8M0: std::transform(bytes, bytes + count, out, e8m0_value); return;
    default: fail_dtype(checkpoint, name, view, "f32, bf16, f16 or e8m0");
  }
}

void check_scales(const Checkpoint& checkpoint, const std::string& name, const float* scales,
                  std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) {
    require(std::isfinite(scales[i]) && scales[i] >= 0, Errc::kMalformedFile,
            "load_moe_layer: element {} of the weight scales {} of {} is {}, want a finite number "
            "from 0",
            i, quote(name), checkpoint.file_of(name), scales[i]);
  }
}

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
    check_scales(checkpoint, names[i], to, count);
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

/// [E, rows, columns] of a file, or [E, columns, rows].
struct FusedTensor {
  std::string name;
  TensorView view;
  std::int64_t rows;
  std::int64_t columns;
  bool is_transposed;
};

/// Columns of one matrix of `from` become rows; a tile keeps both sides in the cache.
template <typename Element>
void transpose(const Element* from, std::int64_t from_columns, std::int64_t num_rows,
               std::int64_t num_columns, Element* to) {
  constexpr std::int64_t kTile = 64;
  for (std::int64_t first = 0; first < num_rows; first += kTile) {
    const std::int64_t end = std::min(first + kTile, num_rows);
    for (std::int64_t c = 0; c < num_columns; ++c) {
      for (std::int64_t r = first; r < end; ++r) {
        to[r * num_columns + c] = from[c * from_columns + r];
      }
    }
  }
}

// Rows first_row to first_row + num_rows - 1 of expert `id`.
template <typename Element>
void copy_rows_of(const FusedTensor& fused, std::int64_t id, std::int64_t first_row,
                  std::int64_t num_rows, Element* to) {
  const Element* from = fused.view.as<const Element>() + id * fused.rows * fused.columns;
  if (fused.is_transposed) {
    transpose(from + first_row, fused.rows, num_rows, fused.columns, to);
  } else {
    std::copy_n(from + first_row * fused.columns, num_rows * fused.columns, to);
  }
}

Tensor load_rows(const FusedTensor& fused, std::int64_t first_row, std::int64_t num_rows,
                 std::span<const std::int32_t> expert_ids) {
  Tensor result(fused.view.dtype(),
                {static_cast<std::int64_t>(expert_ids.size()), num_rows, fused.columns});
  for (std::size_t i = 0; i < expert_ids.size(); ++i) {
    const std::int64_t id = expert_ids[i];
    const std::int64_t at = static_cast<std::int64_t>(i) * num_rows * fused.columns;
    switch (bits_of(fused.view.dtype())) {
      case 8: copy_rows_of(fused, id, first_row, num_rows, result.as<std::uint8_t>() + at); break;
      case 16: copy_rows_of(fused, id, first_row, num_rows, result.as<std::uint16_t>() + at); break;
      default: copy_rows_of(fused, id, first_row, num_rows, result.as<std::uint32_t>() + at);
    }
  }
  return result;
}

// Rows of blocks [first_row / 128, ...) of the requested experts' scales.
Tensor load_row_scales(const Checkpoint& checkpoint, const FusedTensor& fused,
                       std::int64_t first_row, std::int64_t num_rows,
                       std::span<const std::int32_t> expert_ids) {
  const std::string name = fused.name + kScaleSuffix;
  const std::int64_t columns = cdiv(fused.columns, kScaleBlock);
  require(
      !fused.is_transposed, Errc::kNotSupported,
      "load_moe_layer: tensor {} of {} is {}, want scaled weights as [experts, outputs, inputs]",
      quote(fused.name), checkpoint.file_of(fused.name), fused.view.describe());
  const Shape3 shape{fused.view.shape(0), cdiv(fused.rows, kScaleBlock), columns};
  const TensorView view = checked_tensor(checkpoint, name, shape);
  Tensor all(DType::kF32, shape);
  widen(checkpoint, name, view, all.as<float>());
  const std::int64_t rows = cdiv(num_rows, kScaleBlock);
  Tensor result(DType::kF32, {static_cast<std::int64_t>(expert_ids.size()), rows, columns});
  for (std::size_t i = 0; i < expert_ids.size(); ++i) {
    const float* from =
        all.as<float>() + (expert_ids[i] * shape[1] + first_row / kScaleBlock) * columns;
    check_scales(checkpoint, name, from, rows * columns);
    std::copy_n(from, rows * columns,
                result.as<float>() + static_cast<std::int64_t>(i) * rows * columns);
  }
  return result;
}

void check_fused_scales(const Checkpoint& checkpoint, const FusedTensor& gate_up) {
  require(gate_up.rows / 2 % kScaleBlock == 0, Errc::kNotSupported,
          "load_moe_layer: tensor {} of {} is {}, want gate and up of multiples of {} rows, which "
          "share no scale",
          quote(gate_up.name), checkpoint.file_of(gate_up.name), gate_up.view.describe(),
          kScaleBlock);
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

void load_fused_experts(const Checkpoint& checkpoint, const std::string& block,
                        const TensorNames& names, const MlpSizes& sizes, std::int64_t num_experts,
                        std::span<const std::int32_t> expert_ids, ExpertTensors& out) {
  const auto [hidden, intermediate] = sizes;
  FusedTensor gate_up{block + names.gate, {}, 2 * intermediate, hidden, false};
  FusedTensor down{block + names.down, {}, hidden, intermediate, false};
  for (FusedTensor* fused : {&gate_up, &down}) {
    fused->view = checkpoint.tensor(fused->name);
    check_expert_dtype(checkpoint, fused->name, fused->view);
  }
  const auto is_transposed = [&](const FusedTensor& fused) {
    return has_shape(fused.view, Shape3{num_experts, fused.columns, fused.rows});
  };
  const auto is_plain = [&](const FusedTensor& fused) {
    return has_shape(fused.view, Shape3{num_experts, fused.rows, fused.columns});
  };
  // Only one of the two can be square.
  if (is_transposed(gate_up) && is_transposed(down)) {
    gate_up.is_transposed = down.is_transposed = true;
  } else {
    for (const FusedTensor* fused : {&gate_up, &down}) {
      if (is_plain(*fused)) continue;
      fail_shape(checkpoint, fused->name, fused->view,
                 Shape3{num_experts, fused->rows, fused->columns});
    }
  }
  out.gate = load_rows(gate_up, 0, intermediate, expert_ids);
  out.up = load_rows(gate_up, intermediate, intermediate, expert_ids);
  out.down = load_rows(down, 0, hidden, expert_ids);
  if (gate_up.view.dtype() == DType::kE4M3) {
    check_fused_scales(checkpoint, gate_up);
    out.gate_scale = load_row_scales(checkpoint, gate_up, 0, intermediate, expert_ids);
    out.up_scale = load_row_scales(checkpoint, gate_up, intermediate, intermediate, expert_ids);
  }
  if (down.view.dtype() == DType::kE4M3) {
    out.down_scale = load_row_scales(checkpoint, down, 0, hidden, expert_ids);
  }
}

Tensor load_plain(const Checkpoint& checkpoint, const std::string& name,
                  std::initializer_list<std::int64_t> shape) {
  const TensorView view = checked_tensor(checkpoint, name, std::span(shape.begin(), shape.size()));
  if (!is_weight_dtype(view.dtype())) fail_dtype(checkpoint, name, view, "bf16, f16 or f32");
  Tensor result(view.dtype(), std::span(shape.begin(), shape.size()));
  if (view.num_bytes() > 0) std::memcpy(result.data(), view.data(), view.num_bytes());
  return result;
}

Tensor load_widened(const Checkpoint& checkpoint, const std::string& name,
                    std::initializer_list<std::int64_t> shape) {
  const TensorView view = checked_tensor(checkpoint, name, std::span(shape.begin(), shape.size()));
  Tensor result(DType::kF32, std::span(shape.begin(), shape.size()));
  widen(checkpoint, name, view, result.as<float>());
  return result;
}

}  // namespace switchyard

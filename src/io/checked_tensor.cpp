// SPDX-License-Identifier: Apache-2.0

#include "io/checked_tensor.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "core/fail.h"
#include "core/text.h"

namespace switchyard {
namespace {

bool is_weight_dtype(DType dtype) {
  return dtype == DType::kBF16 || dtype == DType::kF16 || dtype == DType::kF32;
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

}  // namespace

bool has_shape(const TensorView& view, std::span<const std::int64_t> shape) {
  bool same = view.num_dims() == static_cast<int>(shape.size());
  for (std::size_t dim = 0; same && dim < shape.size(); ++dim) {
    same = view.shape(static_cast<int>(dim)) == shape[dim];
  }
  return same;
}

void fail_shape(const Checkpoint& checkpoint, const std::string& name, const TensorView& view,
                std::span<const std::int64_t> shape) {
  fail(Errc::kMalformedFile, "load_moe_layer: tensor {} of {} is {}, but config.json says [{}]",
       quote(name), checkpoint.file_of(name), view.describe(), fmt::join(shape, ", "));
}

TensorView checked_tensor(const Checkpoint& checkpoint, const std::string& name,
                          std::span<const std::int64_t> shape) {
  const TensorView view = checkpoint.tensor(name);
  if (!has_shape(view, shape)) fail_shape(checkpoint, name, view, shape);
  return view;
}

void fail_dtype(const Checkpoint& checkpoint, const std::string& name, const TensorView& view,
                const char* want) {
  fail(Errc::kMalformedFile, "load_moe_layer: tensor {} of {} is {}, must be {}", quote(name),
       checkpoint.file_of(name), view.describe(), want);
}

void check_expert_dtype(const Checkpoint& checkpoint, const std::string& name,
                        const TensorView& view) {
  if (is_weight_dtype(view.dtype()) || view.dtype() == DType::kE4M3) return;
  fail_dtype(checkpoint, name, view, "bf16, f16, f32 or e4m3");
}

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
                  std::int64_t begin, std::int64_t end) {
  for (std::int64_t i = begin; i < end; ++i) {
    require(
        std::isfinite(scales[i]) && scales[i] >= 0, Errc::kMalformedFile,
        "load_moe_layer: element {} of the weight scales {} of {} is {}, must be a finite number "
        "from 0",
        i, quote(name), checkpoint.file_of(name), scales[i]);
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
  const TensorView view = checkpoint.tensor(name);
  std::vector<std::int64_t> found;
  for (int dim = 0; dim < view.num_dims(); ++dim) found.push_back(view.shape(dim));
  const auto without_leading_ones = [](std::span<const std::int64_t> sizes) {
    while (sizes.size() > 1 && sizes.front() == 1) sizes = sizes.subspan(1);
    return sizes;
  };
  const std::span<const std::int64_t> wanted(shape.begin(), shape.size());
  if (!std::ranges::equal(without_leading_ones(found), without_leading_ones(wanted))) {
    fail_shape(checkpoint, name, view, wanted);
  }
  Tensor result(DType::kF32, wanted);
  widen(checkpoint, name, view, result.as<float>());
  return result;
}

}  // namespace switchyard

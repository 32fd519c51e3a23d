// SPDX-License-Identifier: Apache-2.0
//
// quantize_batched and the fused activation on a GPU against the CPU, where instruments/conformance
// does not try them; all memory is compared. Needs a GPU; skips without one.

#include "switchyard/quantize_batched.h"

#include "quant/scheme.h"
#include "quantize_case.h"

namespace switchyard {
namespace {

using test::kGpuStream;
using test::TensorPair;

constexpr DType kFloats[] = {DType::kBF16, DType::kF16, DType::kF32};
constexpr std::int64_t kL = 5;
constexpr std::int64_t kC = 9;

// Describes any call of this file, on either processor.
struct Case {
  QuantScheme scheme;
  DType dtype = DType::kBF16;
  std::int64_t hidden = 0;  ///< elements per row of q
  ScaleLayout layout = ScaleLayout::kRowMajor;
  bool is_activated = false;
  bool is_batch = true;
  ActivationScale activation_scale = ActivationScale::kScheme;
  std::int64_t num_given = 0;  ///< number of static scales: 0, 1 or kL
  std::vector<std::int32_t> counts{4, 0, 9, 1, 7};

  std::int64_t width() const { return is_activated ? 2 * hidden : hidden; }
  bool has_scales() const {
    return has_row_scales(scheme) || (scheme.group == ScaleGroup::kTensor && !is_activated);
  }
  std::int64_t scale_rows() const { return scheme.group == ScaleGroup::kTensor ? 1 : kC; }
  std::string describe() const {
    return test::describe(scheme, dtype, kC, hidden) + " layout " +
           std::to_string(static_cast<int>(layout)) + (is_activated ? " activated" : "") +
           (is_batch ? "" : " matrix") + " given " + std::to_string(num_given);
  }
};

// What a call reads and writes.
struct Memory {
  TensorPair x, counts, q, scales, given;

  explicit Memory(const Case& c)
      : x(test::make_rows(c.dtype, num_experts(c) * kC, c.width(), c.width())),
        counts(TensorPair::bytes(sizeof(std::int32_t) * kL)),
        q(TensorPair::bytes(static_cast<std::size_t>(num_experts(c) * kC) *
                            row_bytes(c.scheme, c.hidden, c.dtype))),
        scales(TensorPair::bytes(
            4 *
            static_cast<std::size_t>(
                num_experts(c) * num_scale_elements(c.layout, kC, num_scales(c.scheme, c.hidden)) +
                1))),
        given(TensorPair::bytes(sizeof(float) * kL)) {
    set_counts(c.counts);
    counts.upload();
    for (std::int64_t e = 0; e < kL; ++e) {
      scalar::store(given.data(Device::cpu()), DType::kF32, e, 0.3f + static_cast<float>(e));
    }
    given.upload();
  }
  // On the host.
  void set_counts(const std::vector<std::int32_t>& values) {
    std::memcpy(counts.data(Device::cpu()), values.data(), sizeof(std::int32_t) * kL);
  }
  static std::int64_t num_experts(const Case& c) { return c.is_batch ? kL : 1; }
};

TensorView scales_view(const Case& c, std::byte* data, Device device) {
  if (!c.has_scales()) return {};
  const DType dtype = scale_dtype(c.scheme);
  const std::int64_t width = num_scales(c.scheme, c.hidden);
  return c.is_batch ? view_batched_scales(data, dtype, c.layout, kL, c.scale_rows(), width, device)
                    : view_scales(data, dtype, c.layout, kC, width, device);
}

void call(const Case& c, Memory& m, Stream stream) {
  const Device device = stream.device();
  const DType stored = stored_dtype(c.scheme, c.dtype);
  const TensorView scales = scales_view(c, m.scales.data(device), device);
  const TensorView given =
      c.num_given == 0 ? TensorView{}
                       : TensorView(m.given.data(device), DType::kF32, {c.num_given}, device);
  if (!c.is_batch) {
    silu_mul_quantize(TensorView(m.x.data(device), c.dtype, {kC, c.width()}, device), c.scheme,
                      TensorView(m.q.data(device), stored, {kC, c.hidden}, device), scales, stream,
                      c.activation_scale, given);
    return;
  }
  const TensorView x(m.x.data(device), c.dtype, {kL, kC, c.width()}, device);
  const TensorView q(m.q.data(device), stored, {kL, kC, c.hidden}, device);
  const TensorView counts(m.counts.data(device), DType::kI32, {kL}, device);
  if (c.is_activated) {
    silu_mul_quantize_batched(x, counts, c.scheme, q, scales, stream, c.activation_scale, given);
  } else {
    quantize_batched(x, counts, c.scheme, q, scales, stream, given);
  }
}

void expect_same(const Case& c) {
  SCOPED_TRACE(c.describe());
  Memory memory(c);
  call(c, memory, Stream::host());
  call(c, memory, kGpuStream);
  EXPECT_TRUE(memory.q.is_equal()) << "q";
  EXPECT_TRUE(memory.scales.is_equal()) << "scales";
}

TEST(QuantizeBatchedCudaTest, ScalesOfExpertsMayBeGiven) {
  REQUIRE_GPU();
  for (const QuantScheme& scheme : {schemes::kFp8Tensor, schemes::kInt8Tensor, schemes::kNvfp4}) {
    for (const std::int64_t num_given : {std::int64_t{1}, kL}) {
      Case c{scheme, DType::kBF16, 288};
      c.num_given = num_given;
      expect_same(c);
    }
  }
}

TEST(QuantizeBatchedCudaTest, TheFusedScaleOfBlocksOfAnySize) {
  REQUIRE_GPU();
  QuantScheme scheme = schemes::kFp8Block;
  scheme.block = 48;
  for (const DType dtype : kFloats) {
    for (const ScaleLayout layout : layouts_of(scheme)) {
      for (const std::int64_t hidden : {1, 128, 290, 2048}) {
        Case c{scheme, dtype, hidden, layout, true, true, ActivationScale::kFused};
        expect_same(c);
        c.is_batch = false;
        expect_same(c);
      }
    }
  }
}

// Counts in GPU memory cannot be refused, so kernels clamp them to the possible range.
TEST(QuantizeBatchedCudaTest, ImpossibleCountsTouchNothingElse) {
  REQUIRE_GPU();
  Case c{schemes::kFp8Block, DType::kBF16, 288};
  Memory memory(c);
  memory.set_counts({-5, 1000000, 3, -2147483647, 10});
  memory.counts.upload();
  memory.set_counts({0, 9, 3, 0, 9});
  call(c, memory, Stream::host());
  call(c, memory, kGpuStream);
  EXPECT_TRUE(memory.q.is_equal()) << "q";
  EXPECT_TRUE(memory.scales.is_equal()) << "scales";
}

}  // namespace
}  // namespace switchyard

// SPDX-License-Identifier: Apache-2.0
//
// quantize and dequantize on a GPU write the same bytes as the CPU and no others. Needs a GPU;
// skips without one.

#include <optional>

#include "switchyard/quantize_batched.h"

#include "cuda/base/launch.h"
#include "cuda_graph.h"
#include "quant/scheme.h"
#include "quantize_case.h"

namespace switchyard {
namespace {

using test::kGpuStream;
using test::TensorPair;

constexpr DType kFloats[] = {DType::kBF16, DType::kF16, DType::kF32};
constexpr float kGlobalScale = 600.0f;

struct Shape {
  std::int64_t num_rows;
  std::int64_t hidden;
};

struct Options {
  ScaleLayout layout = ScaleLayout::kRowMajor;
  std::int64_t gap = 0;          ///< elements between rows of x
  std::size_t misalignment = 0;  ///< in bytes, of x and q
  TensorPair* given = nullptr;   ///< static scales
  std::int64_t given_stride = 1;
  std::optional<float> scale_ub;
};

TensorView scales_view(const QuantScheme& scheme, const Shape& shape, ScaleLayout layout,
                       const void* data, Device device) {
  if (scheme.group == ScaleGroup::kTensor) return TensorView(data, DType::kF32, {1}, device);
  if (!has_row_scales(scheme)) return {};
  return view_scales(data, scale_dtype(scheme), layout, shape.num_rows,
                     num_scales(scheme, shape.hidden), device);
}

TensorView given_view(const QuantScheme& scheme, const Shape& shape, const Options& options,
                      Device device) {
  if (options.given == nullptr) return {};
  const std::byte* data = options.given->data(device);
  if (scheme.group != ScaleGroup::kToken) return TensorView(data, DType::kF32, {1}, device);
  return TensorView(data, DType::kF32, {shape.num_rows, 1}, {options.given_stride, 1}, device);
}

// Quantizes the same rows on both processors and compares all memory.
void expect_same_codes(const QuantScheme& scheme, DType dtype, const Shape& shape,
                       const Options& options = {}) {
  SCOPED_TRACE(test::describe(scheme, dtype, shape.num_rows, shape.hidden) + " layout " +
               std::to_string(static_cast<int>(options.layout)));
  const std::int64_t stride = shape.hidden + options.gap;
  TensorPair x = test::make_rows(dtype, shape.num_rows, shape.hidden, stride, options.misalignment);
  TensorPair q = TensorPair::bytes(
      static_cast<std::size_t>(shape.num_rows) * row_bytes(scheme, shape.hidden, dtype),
      options.misalignment);
  TensorPair scales = TensorPair::bytes(
      4 * static_cast<std::size_t>(
              num_scale_elements(options.layout, shape.num_rows, num_scales(scheme, shape.hidden)) +
              1));
  for (const Stream stream : {Stream::host(), kGpuStream}) {
    const Device device = stream.device();
    quantize(TensorView(x.data(device), dtype, {shape.num_rows, shape.hidden}, {stride, 1}, device),
             scheme,
             TensorView(q.data(device), stored_dtype(scheme, dtype), {shape.num_rows, shape.hidden},
                        device),
             scales_view(scheme, shape, options.layout, scales.data(device), device), stream,
             given_view(scheme, shape, options, device), options.scale_ub);
  }
  EXPECT_TRUE(q.is_equal()) << "q";
  EXPECT_TRUE(scales.is_equal()) << "scales";
  EXPECT_TRUE(x.is_equal()) << "x";
}

TensorPair make_floats(const std::vector<float>& values) {
  TensorPair floats = TensorPair::bytes(values.size() * sizeof(float));
  std::memcpy(floats.data(Device::cpu()), values.data(), values.size() * sizeof(float));
  floats.upload();
  return floats;
}

bool allows(const QuantScheme& scheme, std::int64_t hidden) {
  return scheme.dtype != DType::kE2M1 || hidden % 2 == 0;
}

TEST(QuantizeCudaTest, BlocksOfAnySize) {
  REQUIRE_GPU();
  for (const QuantScheme& scheme : test::unnamed_schemes()) {
    for (const DType dtype : kFloats) {
      for (const std::int64_t hidden : {1, 7, 300, 1031}) {
        expect_same_codes(scheme, dtype, {9, hidden});
      }
    }
    if (HasFailure()) return;
  }
}

TEST(QuantizeCudaTest, RowsApartAndOffTheirAlignment) {
  REQUIRE_GPU();
  TensorPair global = make_floats({kGlobalScale});
  for (const QuantScheme& scheme : named_schemes()) {
    Options options;
    options.given = scheme.needs_tensor_scale() ? &global : nullptr;
    options.gap = 5;
    options.misalignment = 4;
    for (const DType dtype : kFloats) expect_same_codes(scheme, dtype, {9, 1026}, options);
  }
}

// Rows longer than a thread block's registers hold, and enough rows to fill the GPU.
TEST(QuantizeCudaTest, LongRowsAndManyRows) {
  REQUIRE_GPU();
  TensorPair global = make_floats({kGlobalScale});
  for (const QuantScheme& scheme : named_schemes()) {
    Options options;
    options.given = scheme.needs_tensor_scale() ? &global : nullptr;
    for (const DType dtype : kFloats) {
      expect_same_codes(scheme, dtype, {3, 50002}, options);
      expect_same_codes(scheme, dtype, {5000, 64}, options);
    }
  }
}

// So many rows that each block of any GPU processes several, of every kind that a warp can meet. A
// row may end inside a warp and leave threads of a block without one.
TEST(QuantizeCudaTest, ManyActivatedRowsToFourBits) {
  REQUIRE_GPU();
  TensorPair global = make_floats({kGlobalScale});
  for (const QuantScheme& scheme : {schemes::kNvfp4, schemes::kMxfp4}) {
    const std::int64_t ctas = cuda::num_multiprocessors();
    for (const Shape& shape : {Shape{60 * ctas + 3, 1024}, Shape{120 * ctas + 1, 48}}) {
      SCOPED_TRACE(test::describe(scheme, DType::kBF16, shape.num_rows, shape.hidden));
      const std::int64_t width = 2 * shape.hidden;
      TensorPair x = test::make_rows(DType::kBF16, shape.num_rows, width, width);
      TensorPair q = TensorPair::bytes(static_cast<std::size_t>(shape.num_rows) *
                                       row_bytes(scheme, shape.hidden, DType::kBF16));
      TensorPair scales = TensorPair::bytes(
          static_cast<std::size_t>(shape.num_rows * num_scales(scheme, shape.hidden)));
      for (const Stream stream : {Stream::host(), kGpuStream}) {
        const Device device = stream.device();
        const TensorView one = scheme.needs_tensor_scale()
                                   ? TensorView(global.data(device), DType::kF32, {1}, device)
                                   : TensorView{};
        silu_mul_quantize(
            TensorView(x.data(device), DType::kBF16, {shape.num_rows, width}, device), scheme,
            TensorView(q.data(device), DType::kE2M1, {shape.num_rows, shape.hidden}, device),
            scales_view(scheme, shape, ScaleLayout::kRowMajor, scales.data(device), device), stream,
            ActivationScale::kScheme, one);
      }
      EXPECT_TRUE(q.is_equal()) << "q";
      EXPECT_TRUE(scales.is_equal()) << "scales";
    }
  }
}

TEST(QuantizeCudaTest, ScalesMayBeGivenOrBounded) {
  REQUIRE_GPU();
  TensorPair one = make_floats({0.37f});
  TensorPair zero = make_floats({0.0f});
  TensorPair tiny = make_floats({1e-42f});
  TensorPair rows = make_floats({0.5f, -1, 0.01f, -1, 3.0f, -1, 1e-30f, -1, 1e30f, -1, 0.0f, -1,
                                 0.3f, -1, 1.0f, -1, 7.0f, -1});
  for (const DType dtype : kFloats) {
    for (const std::int64_t hidden : {1, 130, 7168}) {
      for (TensorPair* given : {&one, &zero, &tiny}) {
        Options options;
        options.given = given;
        expect_same_codes(schemes::kFp8Tensor, dtype, {9, hidden}, options);
        expect_same_codes(schemes::kInt8Tensor, dtype, {9, hidden}, options);
      }
      Options by_row;
      by_row.given = &rows;
      by_row.given_stride = 2;
      expect_same_codes(schemes::kFp8Token, dtype, {9, hidden}, by_row);
      for (const float scale_ub : {1e-3f, 1.0f, 1e30f}) {
        Options bounded;
        bounded.scale_ub = scale_ub;
        expect_same_codes(schemes::kFp8Token, dtype, {9, hidden}, bounded);
      }
    }
  }
}

// Random bytes as codes and scales, which include all kinds of NaN codes and scales.
void expect_same_values(const QuantScheme& scheme, DType stored, DType output, const Shape& shape,
                        ScaleLayout layout) {
  SCOPED_TRACE(test::describe(scheme, output, shape.num_rows, shape.hidden) + " from " +
               name_of(stored));
  const std::int64_t stride = shape.hidden + 3;
  const auto random = [](TensorPair& memory, std::size_t num_bytes, std::uint64_t seed) {
    for (std::size_t i = 0; i < num_bytes; ++i) {
      memory.data(Device::cpu())[i] = static_cast<std::byte>(random_bits(seed, i));
    }
    memory.upload();
  };
  const std::size_t q_bytes =
      static_cast<std::size_t>(shape.num_rows) * row_bytes(scheme, shape.hidden, stored);
  TensorPair q = TensorPair::bytes(q_bytes);
  random(q, q_bytes, 5);
  const std::size_t scale_bytes =
      4 * static_cast<std::size_t>(
              num_scale_elements(layout, shape.num_rows, num_scales(scheme, shape.hidden)) + 1);
  TensorPair scales = TensorPair::bytes(scale_bytes);
  random(scales, scale_bytes, 6);
  TensorPair y = TensorPair::bytes(static_cast<std::size_t>(shape.num_rows * stride) *
                                   static_cast<std::size_t>(bits_of(output) / 8));
  TensorPair global = make_floats({kGlobalScale});
  for (const Stream stream : {Stream::host(), kGpuStream}) {
    const Device device = stream.device();
    dequantize(
        TensorView(q.data(device), stored, {shape.num_rows, shape.hidden}, device),
        scales_view(scheme, shape, layout, scales.data(device), device), scheme,
        TensorView(y.data(device), output, {shape.num_rows, shape.hidden}, {stride, 1}, device),
        stream, TensorView(global.data(device), DType::kF32, {1}, device));
  }
  EXPECT_TRUE(y.is_equal()) << "y";
}

TEST(QuantizeCudaTest, EveryCodeBecomesTheSameValue) {
  REQUIRE_GPU();
  std::vector<QuantScheme> schemes = named_schemes();
  for (const QuantScheme& scheme : test::unnamed_schemes()) schemes.push_back(scheme);
  for (const QuantScheme& scheme : schemes) {
    for (const DType output : kFloats) {
      for (const ScaleLayout layout : test::matrix_layouts_of(scheme)) {
        for (const std::int64_t hidden : {0, 1, 2, 7, 100, 128, 7168, 7170}) {
          if (!allows(scheme, hidden)) continue;
          for (const DType input : kFloats) {
            const DType stored = stored_dtype(scheme, input);
            if (!scheme.is_simulated() && input != DType::kBF16) continue;
            expect_same_values(scheme, stored, output, {9, hidden}, layout);
          }
        }
      }
    }
    if (HasFailure()) return;
  }
}

// A capture allocates nothing and waits for nothing; a replay reads the current contents.
TEST(QuantizeCudaTest, CallsMayBeCaptured) {
  REQUIRE_GPU();
  const cuda::OwnedStream stream;
  for (const QuantScheme& scheme : {schemes::kFp8Tensor, schemes::kFp8Token, schemes::kFp8Block}) {
    const Shape shape{9, 512};
    TensorPair x = test::make_rows(DType::kBF16, shape.num_rows, shape.hidden, shape.hidden);
    TensorPair q = TensorPair::bytes(static_cast<std::size_t>(shape.num_rows * shape.hidden));
    TensorPair scales = TensorPair::bytes(4 * static_cast<std::size_t>(shape.num_rows * 4));
    const auto call = [&](Stream on) {
      const Device device = on.device();
      quantize(TensorView(x.data(device), DType::kBF16, {shape.num_rows, shape.hidden}, device),
               scheme,
               TensorView(q.data(device), DType::kE4M3, {shape.num_rows, shape.hidden}, device),
               scales_view(scheme, shape, ScaleLayout::kRowMajor, scales.data(device), device), on);
    };
    const test::CudaGraph graph(stream.get(),
                                [&] { call(Stream::cuda(stream.get(), test::kGpu.index)); });
    for (int round = 0; round < 3; ++round) {
      for (std::int64_t h = 0; h < shape.hidden; ++h) {
        scalar::store(x.data(Device::cpu()), DType::kBF16, h, test::element(6, h + 1000 * round));
      }
      x.upload();
      call(Stream::host());
      graph.replay(stream.get());
      cuda::check_cuda(cudaStreamSynchronize(stream.get()), "replay");
      EXPECT_TRUE(q.is_equal()) << "q";
      EXPECT_TRUE(scales.is_equal()) << "scales";
    }
  }
}

}  // namespace
}  // namespace switchyard

// SPDX-License-Identifier: Apache-2.0
//
// Calls work on the GPU that their arguments name, which is not the thread's current one, and leave
// that as it was. Needs two GPUs; skips without.

#include <gtest/gtest.h>

#include "switchyard/permute.h"
#include "switchyard/quant.h"
#include "switchyard/weight_and_reduce.h"

#include "gpu_arena.h"
#include "support/errors.h"
#include "support/ranks.h"
#include "unit/moe/small_layer.h"

namespace switchyard::test {
namespace {

int current_gpu() {
  int index = -1;
  cuda::check_cuda(cudaGetDevice(&index), "cudaGetDevice");
  return index;
}

/// Fails when the current GPU is another one than at its start.
class KeepsCurrentGpu {
 public:
  explicit KeepsCurrentGpu(const char* what) : what_(what), gpu_(current_gpu()) {}
  KeepsCurrentGpu(const KeepsCurrentGpu&) = delete;
  KeepsCurrentGpu& operator=(const KeepsCurrentGpu&) = delete;
  ~KeepsCurrentGpu() { EXPECT_EQ(current_gpu(), gpu_) << what_; }

 private:
  const char* what_;
  int gpu_;
};

template <typename T>
Tensor filled(DType dtype, std::initializer_list<std::int64_t> shape, Device device, T value) {
  const Tensor host(dtype, shape);
  for (std::int64_t i = 0; i < host.view().num_elements(); ++i) host.as<T>()[i] = value;
  return host.to(device);
}

class OtherGpuTest : public testing::TestWithParam<int> {
 protected:
  // The current GPU, and the one that calls work on.
  void SetUp() override {
    if (num_gpus() < 2) GTEST_SKIP() << "needs two GPUs";
    cuda::check_cuda(cudaSetDevice(GetParam()), "cudaSetDevice");
  }
  static Device other() { return Device::cuda(1 - GetParam()); }
  static Stream stream() { return Stream::default_of(other()); }
};

TEST_P(OtherGpuTest, FunctionsWorkThereAndKeepTheCurrentOne) {
  const KeepsCurrentGpu all("all");
  const Tensor x = filled<std::uint16_t>(DType::kBF16, {4, 128}, other(), 0x3F80);
  const Tensor q(DType::kE4M3, {4, 128}, other());
  const Tensor scales(DType::kF32, {4, 1}, other());
  const Tensor y(DType::kBF16, {4, 128}, other());
  EXPECT_EQ(current_gpu(), GetParam());
  quantize(x, schemes::kFp8Block, q, scales, stream());
  EXPECT_EQ(current_gpu(), GetParam());
  dequantize(q, scales, schemes::kFp8Block, y, stream());
  EXPECT_EQ(current_gpu(), GetParam());
  const Tensor ids = filled<std::int32_t>(DType::kI32, {4, 1}, other(), 0);
  const Tensor counts(DType::kI32, {1}, other());
  count_expert_num_tokens(ids, counts, {}, stream());
  EXPECT_EQ(current_gpu(), GetParam());
  const Tensor sum(DType::kBF16, {4, 128}, other());
  WeightAndReduceArguments arguments;
  arguments.expert_output = TensorView(y.data(), DType::kBF16, {4, 1, 128}, other());
  arguments.topk_ids = ids;
  arguments.apply_router_weight_on_input = true;
  (void)weight_and_reduce(WeightAndReduce::contiguous(), arguments, sum, stream());
  EXPECT_EQ(current_gpu(), GetParam());
  const Downloaded result(sum, stream());
  for (std::int64_t i = 0; i < 4 * 128; ++i) ASSERT_EQ(result.as<std::uint16_t>()[i], 0x3F80) << i;
  EXPECT_EQ(*Downloaded(counts, stream()).as<std::int32_t>(), 4);
}

TEST_P(OtherGpuTest, ExchangeClassAndLayerWorkThereAndKeepTheCurrentOne) {
  run_ranks(1, [&](const Group& group) {
    cuda::check_cuda(cudaSetDevice(GetParam()), "cudaSetDevice");
    const KeepsCurrentGpu all("all");
    const Tensor tokens = filled<std::uint16_t>(DType::kBF16, {4, 16}, other(), 0x3F80);
    const Tensor ids = filled<std::int64_t>(DType::kI64, {4, 2}, other(), -1);
    const Tensor weights = filled<float>(DType::kF32, {4, 2}, other(), 1.0f);
    const Tensor output = filled<std::uint16_t>(DType::kBF16, {4, 16}, other(), 0xFFFF);
    {
      Exchange exchange(group, exchange_config(), {.device = other()});
      EXPECT_EQ(current_gpu(), GetParam());
      const Dispatched got = exchange.dispatch(tokens, ids, weights, stream());
      EXPECT_EQ(got.experts.rows.device(), other());
      EXPECT_EQ(current_gpu(), GetParam());
      exchange.combine(got.handle, got.experts.rows, output, stream());
      EXPECT_EQ(current_gpu(), GetParam());
      const Downloaded sums(output, stream());  // waits
      exchange.check();
      for (std::int64_t i = 0; i < 4 * 16; ++i) ASSERT_EQ(sums.as<std::uint16_t>()[i], 0) << i;
    }
    EXPECT_EQ(current_gpu(), GetParam());
    const auto layer = make_layer(group, other(), other());
    EXPECT_EQ(current_gpu(), GetParam());
    layer->apply({tokens, ids, weights}, output, stream());
    EXPECT_EQ(current_gpu(), GetParam());
    const Downloaded sums(output, stream());
    layer->check();
    for (std::int64_t i = 0; i < 4 * 16; ++i) ASSERT_EQ(sums.as<std::uint16_t>()[i], 0) << i;
  });
}

// Errors keep it too.
TEST_P(OtherGpuTest, RefusedCallsKeepTheCurrentOne) {
  const KeepsCurrentGpu all("all");
  const Tensor here(DType::kBF16, {4, 128}, Device::cuda(GetParam()));
  const Tensor there(DType::kBF16, {4, 128}, other());
  const Tensor q(DType::kE4M3, {4, 128}, other());
  const Tensor scales(DType::kF32, {4, 1}, other());
  expect_invalid("must lie on " + name_of(other()),
                 [&] { quantize(here, schemes::kFp8Block, q, scales, stream()); });
  expect_invalid("must be f32 [4, 1]",
                 [&] { quantize(there, schemes::kFp8Block, q, there, stream()); });
}

INSTANTIATE_TEST_SUITE_P(All, OtherGpuTest, testing::Values(0, 1));

}  // namespace
}  // namespace switchyard::test

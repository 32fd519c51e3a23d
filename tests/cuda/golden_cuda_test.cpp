// SPDX-License-Identifier: Apache-2.0
//
// The library on a GPU against the golden vectors. Needs a GPU; skips without one.

#include <cstring>

#include "cuda/experts/expert_kernels.h"
#include "gpu.h"
#include "support/golden_activation.h"
#include "support/golden_layouts.h"
#include "support/golden_quantize.h"
#include "support/golden_reduce.h"

namespace switchyard {
namespace {

using test::Golden;
using test::kGpuStream;

TEST(GoldenCudaTest, QuantizeGivesTheBytesOfTheOriginals) {
  REQUIRE_GPU();
  const Golden golden("quantize");
  test::expect_golden_quantize(golden, kGpuStream);
  golden.expect_all_taken();
}

TEST(GoldenCudaTest, BatchesInEveryScaleLayoutGiveTheBytesOfTheOriginals) {
  REQUIRE_GPU();
  test::expect_golden_batched_quantize(Golden("layouts"), kGpuStream);
}

// One row of pairs, through the kernel between the two products of an expert.
TEST(GoldenCudaTest, ActivationsAreWithinTheErrorOfExp) {
  REQUIRE_GPU();
  const Golden golden("activation");
  const std::int64_t count = golden("gate").num_elements();
  const Tensor pairs(DType::kF32, {2, count});
  std::memcpy(pairs.as<float>(), golden("gate").data(), golden("gate").num_bytes());
  std::memcpy(pairs.as<float>() + count, golden("up").data(), golden("up").num_bytes());
  const Tensor gate_up = pairs.to(test::kGpu);
  const Tensor y(DType::kF32, {count}, test::kGpu);
  for (const test::NamedActivation& test : test::kGoldenActivations) {
    cuda::ActivationJob job;
    job.ranges.capacity = job.ranges.total_rows = 1;
    job.gate_up = gate_up.as<float>();
    job.gate_up_stride = 2 * count;
    job.activation = test.activation;
    job.y = y.data();
    job.y_dtype = DType::kF32;
    job.width = count;
    cuda::launch_activation(job, kGpuStream);
    const Tensor got = y.to(Device::cpu(), kGpuStream);
    test::expect_golden_activation(golden, test, got.as<float>());
  }
  test::expect_golden_silu_quantize(golden, kGpuStream);
  golden.expect_all_taken();
}

TEST(GoldenCudaTest, WeightsSumsAndPermutationsGiveTheBytesOfTheOriginals) {
  REQUIRE_GPU();
  const Golden golden("reduce");
  test::expect_golden_reduce(golden, kGpuStream);
  golden.expect_all_taken();
}

}  // namespace
}  // namespace switchyard

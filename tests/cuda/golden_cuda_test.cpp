// SPDX-License-Identifier: Apache-2.0
//
// The library on a GPU against the golden vectors. Needs a GPU; skips without one.

#include "gpu.h"
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

TEST(GoldenCudaTest, WeightsSumsAndPermutationsGiveTheBytesOfTheOriginals) {
  REQUIRE_GPU();
  const Golden golden("reduce");
  test::expect_golden_reduce(golden, kGpuStream);
  golden.expect_all_taken();
}

}  // namespace
}  // namespace switchyard

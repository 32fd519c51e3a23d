// SPDX-License-Identifier: Apache-2.0
//
// Includes the umbrella in a program, so its declarations must link. The generated files of this
// test include every header.

#include <gtest/gtest.h>

#include "switchyard/switchyard.h"

namespace switchyard {
namespace {

TEST(HeadersTest, OneBlockShapeServesPermuteAndQuantConfig) {
  const BlockShape block = deep_gemm_block_shape();
  EXPECT_EQ(QuantConfig::fp8_w8a8({.block_shape = block}).block_shape(), block);
}

}  // namespace
}  // namespace switchyard

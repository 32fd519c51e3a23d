// SPDX-License-Identifier: Apache-2.0
//
// Divisions computed as products, on the host: kernels run the same code.

#include "cuda/base/kernel_math.h"

#include <cstdint>
#include <vector>

#include <gtest/gtest.h>

#include "core/random.h"

namespace switchyard {
namespace {

constexpr std::int32_t kMax = 2147483647;

void expect_quotients(std::int32_t divisor) {
  const cuda::FastDivisor by(divisor);
  std::vector<std::int64_t> numerators{0, 1, kMax, kMax - 1};
  for (const std::int64_t multiple : {1, 2, 3, 1000, kMax / divisor}) {
    for (const std::int64_t near : {-1, 0, 1}) numerators.push_back(multiple * divisor + near);
  }
  for (std::uint64_t i = 0; i < 50; ++i) {
    numerators.push_back(
        static_cast<std::int64_t>(random_bits(static_cast<std::uint64_t>(divisor), i) >> 33));
  }
  for (const std::int64_t n : numerators) {
    if (n < 0 || n > kMax) continue;
    ASSERT_EQ(by.quotient(static_cast<std::int32_t>(n)), n / divisor) << n << " / " << divisor;
  }
}

TEST(FastDivisorTest, EqualsDivision) {
  for (std::int32_t divisor = 1; divisor < 3000; ++divisor) expect_quotients(divisor);
  for (std::uint64_t i = 0; i < 3000; ++i) {
    expect_quotients(static_cast<std::int32_t>(random_bits(7, i) >> 33 | 1));
  }
  for (const std::int32_t divisor : {kMax, kMax - 1, 1 << 30, (1 << 30) + 1, 65535, 65536, 65537}) {
    expect_quotients(divisor);
  }
}

TEST(KernelOwnershipTest, EqualsExpertOwnership) {
  for (const int num_experts : {1, 2, 7, 61, 64, 256, 257, 32768}) {
    for (const int num_ranks : {1, 2, 3, 7, 8, 63, 64}) {
      const ExpertOwnership want{num_experts, num_ranks};
      const cuda::KernelOwnership got(want);
      for (int rank = 0; rank < num_ranks; ++rank) {
        ASSERT_EQ(got.count(rank), want.count(rank));
        ASSERT_EQ(got.first(rank), want.first(rank));
      }
      for (int expert = 0; expert < num_experts; ++expert) {
        ASSERT_EQ(got.owner(expert), want.owner(expert)) << expert << " of " << num_experts;
      }
    }
  }
}

TEST(KernelOwnershipTest, EqualsExpertOwnershipWithATable) {
  for (const std::vector<int>& first :
       std::vector<std::vector<int>>{{0, 7}, {0, 0, 5, 5, 6, 6}, {0, 3, 3, 3}, {0, 1, 9, 12}}) {
    const ExpertOwnership want{first.back(), static_cast<int>(first.size()) - 1, false,
                               first.data()};
    const std::vector<std::int32_t> table = cuda::KernelOwnership::make_table(want);
    const cuda::KernelOwnership got(want, table.data());
    for (int rank = 0; rank < want.num_ranks; ++rank) {
      ASSERT_EQ(got.count(rank), want.count(rank));
      ASSERT_EQ(got.first(rank), want.first(rank));
    }
    for (int expert = 0; expert < want.num_experts; ++expert) {
      ASSERT_EQ(got.owner(expert), want.owner(expert)) << expert;
    }
  }
}

}  // namespace
}  // namespace switchyard

// SPDX-License-Identifier: Apache-2.0

#include "reference/batched.h"

#include <gmock/gmock.h>

#include "support/errors.h"

namespace switchyard::reference {
namespace {

using ::testing::ElementsAre;

// Rank 1 of two, experts 2 and 3 of four. Token 1 names expert 3 twice.
const RankInput kInput{Table<float>(3, 1, {10, 20, 30}),
                       Table<std::int32_t>(3, 2, {2, 0, 3, 3, 2, -1}),
                       Table<float>(3, 2, {0.5f, 9, 0.25f, 1, 2, 9})};

TEST(BatchedOracleTest, TokensFillTheirExpertsInOrder) {
  const PreparedBatch batch = prepare_batched(kInput, 4, 2, 1, 3);
  EXPECT_THAT(batch.rows.data, ElementsAre(10, 30, 0, 20, 0, 0));
  EXPECT_THAT(batch.counts, ElementsAre(2, 1, 0, 0));
}

TEST(BatchedOracleTest, WeightsOfOneExpertAdd) {
  const Table<float> outputs(6, 1, {1, 2, 99, 4, 99, 99});
  EXPECT_THAT(finalize_batched(kInput, 2, 1, outputs, DType::kF32).data, ElementsAre(0.5f, 5, 4));
  EXPECT_THAT(finalize_batched(kInput, 2, 1, outputs, DType::kF32, true).data,
              ElementsAre(1, 4, 2));
}

TEST(BatchedOracleTest, EachExpertIsQuantizedByItself) {
  const PreparedBatch batch = prepare_batched(kInput, 4, 2, 1, 3, schemes::kFp8Tensor);
  ASSERT_EQ(batch.quantized.size(), 2u);
  EXPECT_THAT(batch.quantized[0].scales.data, ElementsAre(30.0f / 448.0f));
  EXPECT_THAT(batch.quantized[1].scales.data, ElementsAre(20.0f / 448.0f));
}

TEST(BatchedOracleTest, CapacityAndWeighedInputAreChecked) {
  test::expect_invalid("expert 0 has 2 tokens, capacity is 1",
                       [] { (void)prepare_batched(kInput, 4, 2, 1, 1); });
  test::expect_invalid("weighs_input with 2 choices",
                       [] { (void)prepare_batched(kInput, 4, 2, 1, 3, schemes::kNone, {}, true); });
  const RankInput one{Table<float>(1, 1, 3.0f), Table<std::int32_t>(1, 1, 0),
                      Table<float>(1, 1, 0.5f)};
  EXPECT_THAT(prepare_batched(one, 1, 1, 0, 1, schemes::kNone, {}, true).rows.data,
              ElementsAre(1.5f));
}

}  // namespace
}  // namespace switchyard::reference

// SPDX-License-Identifier: Apache-2.0

#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

#include <gmock/gmock.h>

#include "switchyard/permute.h"

#include "quant/bf16.h"
#include "quant/f16.h"
#include "reference/reference.h"
#include "support/errors.h"

namespace switchyard {
namespace {

using reference::Table;
using test::expect_invalid;
using ::testing::ElementsAre;

float get(const TensorView& tensor, std::int64_t i) {
  switch (tensor.dtype()) {
    case DType::kF32: return tensor.as<float>()[i];
    case DType::kBF16: return f32_from_bf16(tensor.as<std::uint16_t>()[i]);
    default: return f32_from_f16(tensor.as<std::uint16_t>()[i]);
  }
}

Table<float> table_of(const TensorView& tensor) {
  Table<float> table(tensor.shape(0), tensor.shape(1));
  for (std::size_t i = 0; i < table.data.size(); ++i) {
    table.data[i] = get(tensor, static_cast<std::int64_t>(i));
  }
  return table;
}

// 1 + 2^-8 lies halfway between two bf16 values: the sum is rounded once, to the even one.
TEST(UnpermuteTest, KnownAnswer) {
  const std::vector<float> rows = {1.0f, -1.0f, 0x1p-8f, 4.0f, 0x1p-8f, 8.0f};
  const std::vector<std::int32_t> ids = {0, 2, 1, -1, -1, -1};
  const std::vector<std::int32_t> inv_perm = {0, 1, 2, 77, 77, 77};  // 77 is never read
  const std::vector<float> weights = {1.0f, 1.0f, 0.5f, 9.0f, 9.0f, 9.0f};
  const Tensor out(DType::kBF16, {3, 2});
  std::fill_n(out.as<std::uint16_t>(), 6, std::uint16_t{0x7FC0});
  ep_gather(TensorView::of(rows.data(), {3, 2}), TensorView::of(ids.data(), {3, 2}),
            TensorView::of(weights.data(), {3, 2}), TensorView::of(inv_perm.data(), {3, 2}), {},
            out);
  EXPECT_THAT(table_of(out).data, ElementsAre(1.0f, 3.0f, 0x1p-9f, 4.0f, 0.0f, 0.0f));
}

TEST(UnpermuteTest, MapDropsExpertsOfOtherRanks) {
  const std::vector<float> rows = {3.0f};
  const std::vector<std::int64_t> ids = {5, 4};
  const std::vector<std::int32_t> map = {-1, -1, -1, -1, 0, -1};
  const std::vector<std::int32_t> inv_perm = {std::numeric_limits<std::int32_t>::min(), 0};
  const Tensor out(DType::kF32, {1, 1});
  ep_gather(TensorView::of(rows.data(), {1, 1}), TensorView::of(ids.data(), {1, 2}), {},
            TensorView::of(inv_perm.data(), {1, 2}), TensorView::of(map.data(), {6}), out);
  EXPECT_EQ(out.as<float>()[0], 3.0f);
}

TEST(UnpermuteTest, StridedRowsAndOutput) {
  const std::vector<float> rows = {1, 2, 0, 3, 4, 0};
  const std::vector<std::int32_t> inv_perm = {1, 0};
  const Tensor memory(DType::kF32, {2, 4});
  const TensorView out(memory.data(), DType::kF32, {2, 2}, {4, 1});
  const TensorView places = TensorView::of(inv_perm.data(), {2, 1});
  ep_gather(TensorView(rows.data(), DType::kF32, {2, 2}, {3, 1}), places, {}, places, {}, out);
  const float* got = memory.as<float>();
  EXPECT_THAT(std::vector<float>(got, got + 8), ElementsAre(3, 4, 0, 0, 1, 2, 0, 0));
}

TEST(UnpermuteTest, WrongArgumentsAreErrors) {
  const Tensor rows(DType::kBF16, {4, 8});
  const Tensor weights(DType::kF32, {2, 1});
  const Tensor out(DType::kBF16, {2, 8});
  const std::vector<std::int32_t> ids = {0, 0};
  std::vector<std::int32_t> inv_perm = {3, 4};
  const TensorView ids_view = TensorView::of(ids.data(), {2, 1});
  const TensorView places = TensorView::of(inv_perm.data(), {2, 1});
  const auto gather = [&](const TensorView& from, const TensorView& w, const TensorView& to) {
    return [&, from, w, to] { ep_gather(from, ids_view, w, places, {}, to); };
  };
  expect_invalid("inv_perm[1, 0] is 4, but expert_output has 4 rows", gather(rows, weights, out));
  inv_perm[1] = -1;
  expect_invalid("inv_perm[1, 0] is -1", gather(rows, weights, out));
  inv_perm[1] = 0;
  expect_invalid("expert_output is absent", gather({}, weights, out));
  expect_invalid("topk_weights is bf16 [4, 8], must be f32 [2, 1]", gather(rows, rows, out));
  expect_invalid("output is bf16 [4, 8]", gather(rows, weights, rows));
  const TensorView codes(rows.data(), DType::kE4M3, {4, 8});
  expect_invalid("expert_output is e4m3", gather(codes, weights, out));
}

}  // namespace
}  // namespace switchyard

// SPDX-License-Identifier: Apache-2.0
//
// Rows and scales land where the oracle puts them, in every dtype and layout; nothing else changes.

#include "switchyard/permute.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>

#include "core/random.h"
#include "reference/permute.h"
#include "support/elements.h"
#include "support/errors.h"

namespace switchyard {
namespace {

using reference::AlignedRows;
using reference::Table;
using namespace test;
using ::testing::ElementsAre;

TensorView view(const Table<std::int64_t>& ids) {
  return TensorView::of(ids.data.data(), {ids.rows, ids.cols});
}

Tensor random_tensor(DType dtype, std::initializer_list<std::int64_t> shape) {
  Tensor tensor(dtype, shape);
  for (std::size_t i = 0; i < tensor.view().num_bytes(); ++i) {
    tensor.as<std::uint8_t>()[i] = static_cast<std::uint8_t>(random_bits(5, i) | 1);  // never 0
  }
  return tensor;
}

// Choices without an expert, an expert named twice by a token, and experts without rows.
Table<std::int64_t> random_ids(std::int64_t num_tokens, std::int64_t num_topk,
                               std::int64_t num_experts) {
  Table<std::int64_t> ids(num_tokens, num_topk);
  for (std::size_t i = 0; i < ids.data.size(); ++i) {
    const std::uint64_t bits = random_bits(17, i);
    const auto id = static_cast<std::int64_t>(bits % static_cast<std::uint64_t>(num_experts));
    ids.data[i] = (bits >> 40) % 8 == 0 ? -1 : id;
  }
  return ids;
}

const std::byte* element(const TensorView& tensor, std::int64_t n, std::int64_t s) {
  const std::int64_t bytes = bits_of(tensor.dtype()) / 8;
  return tensor.as<std::byte>() + (n * tensor.stride(0) + s * tensor.stride(1)) * bytes;
}

void expect_rows(const TensorView& x, const TensorView& permuted, const AlignedRows& want) {
  const auto row_bytes = static_cast<std::size_t>(x.shape(1) * bits_of(x.dtype()) / 8);
  const std::int64_t x_stride = x.stride(0) * bits_of(x.dtype()) / 8;
  const std::int64_t stride = permuted.stride(0) * bits_of(x.dtype()) / 8;
  for (std::size_t n = 0; n < want.rows.size(); ++n) {
    if (want.rows[n].token < 0) continue;
    ASSERT_EQ(std::memcmp(permuted.as<std::byte>() + static_cast<std::int64_t>(n) * stride,
                          x.as<std::byte>() + want.rows[n].token * x_stride, row_bytes),
              0)
        << "row " << n;
  }
}

void expect_scales(const TensorView& scales, const TensorView& permuted, const AlignedRows& want) {
  const auto bytes = static_cast<std::size_t>(bits_of(scales.dtype()) / 8);
  const std::vector<std::byte> zero(bytes);
  for (std::int64_t n = 0; n < permuted.shape(0); ++n) {
    const auto i = static_cast<std::size_t>(n);
    const std::int64_t token = i < want.rows.size() ? want.rows[i].token : -1;
    for (std::int64_t s = 0; s < scales.shape(1); ++s) {
      const std::byte* expected = token < 0 ? zero.data() : element(scales, token, s);
      ASSERT_EQ(std::memcmp(element(permuted, n, s), expected, bytes), 0) << n << ", " << s;
    }
  }
}

// Tokens 10, 20, 30 with two choices each; alignment 4.
TEST(PermuteTest, KnownAnswer) {
  const std::vector<float> x = {10, 11, 20, 21, 30, 31};
  const std::vector<float> scales = {1, 2, 3};
  const Table<std::int64_t> ids(3, 2, {1, 0, -1, 1, 0, 0});
  const Permuted permuted =
      permute(TensorView::of(x.data(), {3, 2}), TensorView::of(scales.data(), {3, 1}), view(ids), 2,
              {.alignment = 4});
  ASSERT_EQ(permuted.x.shape(0), 8);
  const float* rows = permuted.x.as<float>();
  EXPECT_THAT(std::vector<float>(rows, rows + 6), ElementsAre(10, 11, 30, 31, 30, 31));
  EXPECT_THAT(std::vector<float>(rows + 8, rows + 12), ElementsAre(10, 11, 20, 21));
  const float* scale = permuted.scales.as<float>();
  EXPECT_THAT(std::vector<float>(scale, scale + 8), ElementsAre(1, 3, 3, 0, 1, 2, 0, 0));
}

// More bytes than most last-level caches hold, so rows bypass the cache.
TEST(PermuteTest, LargeBuffersEqualTheOracle) {
  const Table<std::int64_t> ids = random_ids(700, 8, 64);
  const AlignedRows want = reference::permute(ids, {}, 64, 128);
  const Tensor x = random_tensor(DType::kBF16, {700, 7168});
  const Permuted permuted = permute(x, {}, view(ids), 64);
  expect_rows(x, permuted.x, want);
}

// Columns without rows have stride 0.
TEST(PermuteTest, NoRowsNeedNoPlaceForScales) {
  const Table<std::int64_t> ids(3, 2, -1);
  const Tensor x = random_tensor(DType::kE4M3, {3, 256});
  const Tensor scales = random_tensor(DType::kF32, {3, 2});
  for (const ScaleLayout layout : {ScaleLayout::kColumnMajor, ScaleLayout::kColumnMajorAligned}) {
    const Permuted permuted = permute(x, scales, view(ids), 2, {}, {.scale_layout = layout});
    EXPECT_EQ(permuted.x.shape(0), 0);
    EXPECT_EQ(permuted.scales.shape(1), 2);
  }
}

TEST(PermuteTest, ScalesOfEveryLayoutAndDType) {
  const Table<std::int64_t> ids = random_ids(33, 6, 16);
  const AlignedRows want = reference::permute(ids, {}, 16, 5);
  const auto num_rows = static_cast<std::int64_t>(want.rows.size());
  const Tensor x = random_tensor(DType::kE4M3, {33, 64});
  for (const DType dtype : {DType::kF32, DType::kE8M0, DType::kE4M3, DType::kBF16, DType::kI64}) {
    for (const std::int64_t num_scales : {0, 1, 7, 56}) {
      const Tensor scales = random_tensor(dtype, {33, num_scales});
      for (const ScaleLayout layout :
           {ScaleLayout::kRowMajor, ScaleLayout::kColumnMajor, ScaleLayout::kColumnMajorAligned}) {
        const Permuted permuted =
            permute(x, scales, view(ids), 16, {.alignment = 5}, {.scale_layout = layout});
        ASSERT_EQ(permuted.scales.shape(0), num_rows);
        ASSERT_NO_FATAL_FAILURE(expect_scales(scales, permuted.scales, want));
        if (layout == ScaleLayout::kColumnMajorAligned) {
          EXPECT_EQ(permuted.scales.stride(1), (num_rows + 3) / 4 * 4);
        }
      }
    }
  }
}

TEST(PermuteTest, ExponentBytesArePackedFourToAWord) {
  const std::vector<std::uint8_t> scales = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10};  // [2, 5]
  const Table<std::int64_t> ids(2, 1, {1, 0});
  const Tensor x = random_tensor(DType::kE4M3, {2, 160});
  const TensorView bytes(scales.data(), DType::kE8M0, {2, 5});
  const Permuted permuted =
      permute(x, bytes, view(ids), 2, {.alignment = 2},
              {.scale_layout = ScaleLayout::kColumnMajorAligned, .packs_scales = true});
  EXPECT_EQ(permuted.scales.dtype(), DType::kI32);
  ASSERT_EQ(permuted.scales.shape(1), 2);
  const auto* words = permuted.scales.as<std::uint32_t>();  // columns of 4 rows
  EXPECT_THAT(std::vector<std::uint32_t>(words, words + 8),
              ElementsAre(0x09080706u, 0, 0x04030201u, 0, 0x0Au, 0, 0x05u, 0));
}

TEST(PermuteTest, ExpertRowsNameTheRowsOfEachExpert) {
  const Table<std::int64_t> ids(3, 2, {1, 0, -1, 1, 0, 0});
  const Tensor x = random_tensor(DType::kE4M3, {3, 16});
  const Tensor scale = random_tensor(DType::kF32, {1});
  Permuted made = permute(x, scale, view(ids), 2, {.alignment = 4});
  const Permuted permuted = std::move(made);
  const ExpertRows rows = permuted.expert_rows(schemes::kFp8Tensor);
  EXPECT_EQ(rows.rows.data(), permuted.x.data());
  EXPECT_EQ(rows.scales.data(), scale.data());
  EXPECT_EQ(rows.scheme, schemes::kFp8Tensor);
  EXPECT_THAT(elements<std::int64_t>(rows.first_row), ElementsAre(0, 4));
  EXPECT_THAT(elements<std::int32_t>(rows.num_rows), ElementsAre(3, 2));

  const Tensor by_row = random_tensor(DType::kF32, {3, 1});
  const Permuted quantized = permute(x, by_row, view(ids), 2, {.alignment = 4},
                                     {.scale_layout = ScaleLayout::kColumnMajorAligned});
  const ExpertRows with_scales = quantized.expert_rows(schemes::kFp8Token);
  EXPECT_EQ(with_scales.scales.data(), quantized.scales.data());
  EXPECT_EQ(with_scales.scales.stride(1), quantized.scales.stride(1));
}

/// Memory for ep_scatter: rows and columns of scales are further apart than they are long.
struct Outputs {
  Tensor x;
  Tensor scales;
  Tensor m_indices;
  Tensor inv_perm;
  Tensor first_row{DType::kI64, {16}};
  Tensor counts{DType::kI32, {16}};
  Tensor needed{DType::kI64, {1}};
  ScatterOutputs views;

  Outputs(const Table<std::int64_t>& ids, std::int64_t num_rows, std::int64_t hidden,
          std::int64_t num_scales)
      : x(random_tensor(DType::kBF16, {num_rows, hidden + 3})),
        scales(random_tensor(DType::kF32, {num_scales, num_rows + 2})),
        m_indices(DType::kI32, {num_rows}),
        inv_perm(DType::kI32, {ids.rows, ids.cols}) {
    views.x = TensorView(x.data(), DType::kBF16, {num_rows, hidden}, {hidden + 3, 1});
    views.scales =
        TensorView(scales.data(), DType::kF32, {num_rows, num_scales}, {1, num_rows + 2});
    views.m_indices = m_indices;
    views.inv_perm = inv_perm;
    views.first_row = first_row;
    views.expert_num_tokens = counts;
    views.num_rows = needed;
  }
};

TEST(EpScatterTest, StridedInputsAndGivenOutputs) {
  const Table<std::int64_t> ids = random_ids(33, 6, 16);
  const AlignedRows want = reference::permute(ids, {}, 16, 8);
  const auto num_rows = static_cast<std::int64_t>(want.rows.size()) + 2;
  const Tensor x_memory = random_tensor(DType::kBF16, {33, 50});
  const TensorView x(x_memory.data(), DType::kBF16, {33, 48}, {50, 1});
  const Tensor scale_memory = random_tensor(DType::kF32, {4, 40});
  const TensorView scales(scale_memory.data(), DType::kF32, {33, 4}, {1, 40});
  const Outputs outputs(ids, num_rows, 48, 4);
  const Outputs before(ids, num_rows, 48, 4);
  ep_scatter(x, scales, view(ids), {.alignment = 8}, outputs.views);
  expect_rows(x, outputs.views.x, want);
  expect_scales(scales, outputs.views.scales, want);
  for (std::size_t t = 0; t < want.inv_perm.data.size(); ++t) {
    ASSERT_EQ(outputs.inv_perm.as<std::int32_t>()[t], want.inv_perm.data[t]);
  }
  for (std::size_t e = 0; e < 16; ++e) {
    ASSERT_EQ(outputs.first_row.as<std::int64_t>()[e], want.first_row[e]);
    const auto rows_of_e = std::count_if(want.rows.begin(), want.rows.end(), [&](const auto& row) {
      return row.token >= 0 && row.expert == static_cast<std::int32_t>(e);
    });
    ASSERT_EQ(outputs.counts.as<std::int32_t>()[e], rows_of_e);
  }
  EXPECT_EQ(*outputs.needed.as<std::int64_t>(), num_rows - 2);
  // Rows without a token and the gaps between rows keep their contents.
  for (std::int64_t n = 0; n < num_rows; ++n) {
    const auto i = static_cast<std::size_t>(n);
    const bool is_padding = i >= want.rows.size() || want.rows[i].token < 0;
    EXPECT_EQ(outputs.m_indices.as<std::int32_t>()[n], is_padding ? -1 : want.rows[i].expert);
    const std::int64_t begin = n * 51 + (is_padding ? 0 : 48);
    ASSERT_EQ(
        std::memcmp(outputs.x.as<std::uint16_t>() + begin, before.x.as<std::uint16_t>() + begin,
                    static_cast<std::size_t>(2 * ((n + 1) * 51 - begin))),
        0);
  }
}

TEST(EpScatterTest, WrongArgumentsAreErrors) {
  const Table<std::int64_t> ids(3, 2, {1, 0, -1, 1, 0, 0});
  const Tensor x = random_tensor(DType::kBF16, {3, 8});
  const Tensor scales = random_tensor(DType::kF32, {3, 2});
  const Outputs outputs(ids, 8, 8, 2);
  const PermuteOptions options{.alignment = 4};
  const auto expect = [&](Errc code, const std::string& phrase, const TensorView& rows,
                          const TensorView& row_scales, const ScatterOutputs& to) {
    expect_error(code, phrase, [&] { ep_scatter(rows, row_scales, view(ids), options, to); });
  };
  ScatterOutputs to = outputs.views;
  expect(Errc::kInvalidArgument, "x is absent", {}, scales, to);
  expect(Errc::kInvalidArgument, "ep_scatter: scales is f32 [2, 3]", x,
         TensorView(scales.data(), DType::kF32, {2, 3}), to);
  expect(Errc::kInvalidArgument, "must be [8, scales] for scales f32 [3, 2]", x, scales, [&] {
    auto o = to;
    o.scales = {};
    return o;
  }());
  expect(Errc::kInvalidArgument, "must be i32 with 8 contiguous elements", x, scales, [&] {
    auto o = to;
    o.m_indices = {};
    return o;
  }());
  expect(Errc::kInvalidArgument, "must be rows that do not overlap", x, scales, [&] {
    auto o = to;
    o.x = TensorView(x.data(), DType::kBF16, {8, 8}, {7, 1});
    return o;
  }());
  expect(Errc::kInvalidArgument, "must be elements that do not overlap", x, scales, [&] {
    auto o = to;
    o.scales = TensorView(scales.data(), DType::kF32, {8, 2}, {1, 7});
    return o;
  }());
  expect(Errc::kInvalidArgument, "output x is f32 [8, 8]", x, scales, [&] {
    auto o = to;
    o.x = TensorView(x.data(), DType::kF32, {8, 8});
    return o;
  }());
  expect(Errc::kInvalidArgument, "overflows", x, scales, [&] {
    auto o = to;
    o.x = TensorView(x.data(), DType::kBF16, {8, 8}, {std::numeric_limits<std::int64_t>::max(), 1});
    return o;
  }());
  to.x = TensorView(outputs.x.data(), DType::kBF16, {7, 8});
  to.scales = TensorView(outputs.scales.data(), DType::kF32, {7, 2});
  to.m_indices = TensorView(outputs.m_indices.data(), DType::kI32, {7});
  expect(Errc::kWorkspaceTooSmall, "has 7 rows, needs 8", x, scales, to);
}

TEST(PermuteTest, WrongArgumentsAreErrors) {
  const Table<std::int64_t> ids(3, 2, {1, 0, -1, 1, 0, 0});
  const Tensor x = random_tensor(DType::kBF16, {3, 8});
  const Tensor scales = random_tensor(DType::kF32, {3, 2});
  const auto call = [&](const TensorView& rows, const TensorView& row_scales,
                        const PermuteMemory& memory) {
    return [&, memory] { (void)permute(rows, row_scales, view(ids), 2, {}, memory); };
  };
  expect_invalid("packs_scales with scales f32 [3, 2], must be e8m0",
                 call(x, scales, {.packs_scales = true}));
  expect_invalid("scale_layout is swizzled",
                 call(x, scales, {.scale_layout = ScaleLayout::kSwizzled}));
  const TensorView odd(x.data(), DType::kE2M1, {3, 7});
  expect_invalid("must be rows of whole bytes", call(odd, {}, {}));
  const TensorView columns(x.data(), DType::kBF16, {3, 8}, {1, 3});
  expect_invalid("with contiguous rows", call(columns, {}, {}));
  expect_error(Errc::kWorkspaceTooSmall, "permute: the buffer has 3 rows, needs 256",
               call(x, {}, {.x = x}));
}

}  // namespace
}  // namespace switchyard

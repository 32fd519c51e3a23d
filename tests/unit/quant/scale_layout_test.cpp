// SPDX-License-Identifier: Apache-2.0

#include "switchyard/scale_layout.h"

#include <algorithm>
#include <array>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include "quant/scale_layout.h"
#include "support/errors.h"

namespace switchyard {
namespace {

using test::expect_error;

constexpr std::int64_t kHuge = std::numeric_limits<std::int64_t>::max();
constexpr std::array<ScaleLayout, 3> kRowLayouts{ScaleLayout::kRowMajor, ScaleLayout::kColumnMajor,
                                                 ScaleLayout::kColumnMajorAligned};
// Rows: none, one, a prime, a full tile, one more, several. Scales: partial and full quads.
constexpr std::array<std::int64_t, 6> kRows{0, 1, 37, 128, 129, 260};
constexpr std::array<std::int64_t, 6> kScales{0, 1, 3, 4, 7, 16};

// Distinct for neighbors, never 0.
std::vector<std::uint8_t> numbered(std::int64_t count) {
  std::vector<std::uint8_t> values(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < values.size(); ++i)
    values[i] = static_cast<std::uint8_t>(i % 251 + 1);
  return values;
}

// The tiles as a permuted view: [N/128][4][32][S/4][4] becomes [N/128][S/4][32][4][4].
std::vector<std::uint8_t> permuted_tiles(const std::vector<std::uint8_t>& rows, std::int64_t n,
                                         std::int64_t s) {
  std::vector<std::uint8_t> tiles;
  for (std::int64_t row_tile = 0; row_tile < n; row_tile += 128) {
    for (std::int64_t quad = 0; quad < s; quad += 4) {
      for (std::int64_t inner = 0; inner < 32; ++inner) {
        for (std::int64_t outer = 0; outer < 128; outer += 32) {
          for (std::int64_t j = 0; j < 4; ++j) {
            const std::int64_t row = row_tile + outer + inner;
            const bool exists = row < n && quad + j < s;
            tiles.push_back(exists ? rows[static_cast<std::size_t>(row * s + quad + j)] : 0);
          }
        }
      }
    }
  }
  return tiles;
}

std::vector<std::uint8_t> bytes_of(const Tensor& tensor) {
  const auto* data = tensor.as<std::uint8_t>();
  return {data, data + tensor.view().num_elements()};
}

TEST(ScaleLayoutTest, EveryLayoutHasOneName) {
  for (const auto& [layout, name] :
       {std::pair{ScaleLayout::kRowMajor, "row_major"},
        std::pair{ScaleLayout::kColumnMajor, "column_major"},
        std::pair{ScaleLayout::kColumnMajorAligned, "column_major_aligned"},
        std::pair{ScaleLayout::kSwizzled, "swizzled"}}) {
    EXPECT_STREQ(name_of(layout), name);
    EXPECT_EQ(scale_layout_from_name(name), layout);
  }
  for (const char* name : {"", "row", "column", "column_aligned", "Swizzled"}) {
    EXPECT_EQ(scale_layout_from_name(name), std::nullopt) << name;
  }
  EXPECT_STREQ(name_of(static_cast<ScaleLayout>(4)), "unknown");
}

TEST(ScaleLayoutTest, TilesHaveTheKnownOffsets) {
  struct Known {
    std::int64_t row, scale, offset;
  };
  std::vector<std::uint8_t> rows(256 * 8, 0);
  for (const Known& known : {Known{0, 0, 0}, Known{1, 0, 16}, Known{32, 0, 4}, Known{33, 5, 533},
                             Known{127, 7, 1023}, Known{128, 0, 1024}, Known{200, 6, 1674}}) {
    const auto at = static_cast<std::size_t>(known.row * 8 + known.scale);
    rows[at] = 1;
    const Tensor tiles = swizzle_scales(TensorView::of(rows.data(), {256, 8}));
    ASSERT_EQ(tiles.view().num_elements(), 2048);
    for (std::int64_t i = 0; i < 2048; ++i) {
      ASSERT_EQ(tiles.as<std::uint8_t>()[i], i == known.offset ? 1 : 0) << known.row << " " << i;
    }
    rows[at] = 0;
    const ScaleGeometry geometry{ScaleLayout::kSwizzled, 256, 8, 1};
    EXPECT_EQ(geometry.index(known.row, known.scale), known.offset);
  }
}

TEST(ScaleLayoutTest, TilesAreThePermutedViewAndComeBackCropped) {
  for (const std::int64_t n : kRows) {
    for (const std::int64_t s : kScales) {
      const std::vector<std::uint8_t> rows = numbered(n * s);
      const Tensor tiles = swizzle_scales(TensorView::of(rows.data(), {n, s}));
      ASSERT_EQ(bytes_of(tiles), permuted_tiles(rows, n, s)) << n << " " << s;
      EXPECT_EQ(tiles.shape(0), num_scale_elements(ScaleLayout::kSwizzled, n, s));
      ASSERT_EQ(bytes_of(unswizzle_scales(tiles, n, s)), rows) << n << " " << s;
    }
  }
}

TEST(ScaleLayoutTest, ABatchIsSwizzledAnExpertAtATime) {
  constexpr std::int64_t kExperts = 3;
  constexpr std::int64_t kCapacity = 130;
  constexpr std::int64_t kS = 5;
  const std::vector<std::uint8_t> rows = numbered(kExperts * kCapacity * kS);
  const Tensor tiles = swizzle_scales(TensorView::of(rows.data(), {kExperts, kCapacity, kS}));
  std::vector<std::uint8_t> want;
  for (std::int64_t e = 0; e < kExperts; ++e) {
    const auto first = rows.begin() + e * kCapacity * kS;
    const auto plane = permuted_tiles({first, first + kCapacity * kS}, kCapacity, kS);
    want.insert(want.end(), plane.begin(), plane.end());
  }
  EXPECT_EQ(bytes_of(tiles), want);
}

TEST(ScaleLayoutTest, PaddingOfTilesIsCleared) {
  const std::vector<std::uint8_t> rows = numbered(3 * 5);
  OwnedScales tiles = make_scales(DType::kU8, ScaleLayout::kSwizzled, 3, 5);
  for (std::int64_t i = 0; i < 1024; ++i) tiles.memory.as<std::uint8_t>()[i] = 0xCC;
  relayout_scales(TensorView::of(rows.data(), {3, 5}), tiles.view);
  EXPECT_EQ(bytes_of(tiles.memory), permuted_tiles(rows, 3, 5));
}

TEST(ScaleLayoutTest, ViewsHaveTheStridesThatConsumersWant) {
  const auto strides = [](ScaleLayout layout) {
    const TensorView view = view_scales(nullptr, DType::kF32, layout, 6, 56);
    EXPECT_EQ(view.shape(0), 6);
    EXPECT_EQ(view.shape(1), 56);
    return std::array{view.stride(0), view.stride(1)};
  };
  EXPECT_EQ(strides(ScaleLayout::kRowMajor), (std::array<std::int64_t, 2>{56, 1}));
  EXPECT_EQ(strides(ScaleLayout::kColumnMajor), (std::array<std::int64_t, 2>{1, 6}));
  EXPECT_EQ(strides(ScaleLayout::kColumnMajorAligned), (std::array<std::int64_t, 2>{1, 8}));
  const auto batched = [](ScaleLayout layout) {
    const TensorView view = view_batched_scales(nullptr, DType::kF32, layout, 3, 6, 56);
    return std::array{view.stride(0), view.stride(1), view.stride(2)};
  };
  EXPECT_EQ(batched(ScaleLayout::kRowMajor), (std::array<std::int64_t, 3>{336, 56, 1}));
  EXPECT_EQ(batched(ScaleLayout::kColumnMajor), (std::array<std::int64_t, 3>{336, 1, 6}));
  EXPECT_EQ(batched(ScaleLayout::kColumnMajorAligned), (std::array<std::int64_t, 3>{448, 1, 8}));
  EXPECT_EQ(view_scales(nullptr, DType::kE8M0, ScaleLayout::kSwizzled, 129, 9).describe(),
            "e8m0 [2, 3, 32, 4, 4]");
  EXPECT_EQ(
      view_batched_scales(nullptr, DType::kE8M0, ScaleLayout::kSwizzled, 3, 129, 9).describe(),
      "e8m0 [3, 2, 3, 32, 4, 4]");
}

TEST(ScaleLayoutTest, SizesAgreeWithTheGeometryOfBothProcessors) {
  for (const ScaleLayout layout : {ScaleLayout::kRowMajor, ScaleLayout::kColumnMajor,
                                   ScaleLayout::kColumnMajorAligned, ScaleLayout::kSwizzled}) {
    for (const std::int64_t n : kRows) {
      for (const std::int64_t s : kScales) {
        const ScaleGeometry geometry{layout, n, s};
        EXPECT_EQ(num_scale_elements(layout, n, s), geometry.num_elements());
        if (layout == ScaleLayout::kSwizzled || n == 0 || s == 0) continue;
        const TensorView view = view_scales(nullptr, DType::kF32, layout, n, s);
        EXPECT_EQ((n - 1) * view.stride(0) + (s - 1) * view.stride(1),
                  geometry.index(n - 1, s - 1));
      }
    }
  }
}

// A round trip through all layouts restores the same values, for each element width.
TEST(ScaleLayoutTest, RelayoutIsAPermutation) {
  for (const DType dtype : {DType::kE4M3, DType::kBF16, DType::kF32}) {
    for (const std::int64_t n : {1, 37, 129}) {
      const OwnedScales first = make_batched_scales(dtype, ScaleLayout::kRowMajor, 2, n, 7);
      const std::int64_t num_bytes = static_cast<std::int64_t>(first.memory.view().num_bytes());
      const std::vector<std::uint8_t> want = numbered(num_bytes);
      std::copy(want.begin(), want.end(), first.memory.as<std::uint8_t>());
      for (const ScaleLayout layout : kRowLayouts) {
        const OwnedScales second = make_batched_scales(dtype, layout, 2, n, 7);
        const OwnedScales third = make_batched_scales(dtype, ScaleLayout::kSwizzled, 2, n, 7);
        const OwnedScales last = make_batched_scales(dtype, ScaleLayout::kRowMajor, 2, n, 7);
        relayout_scales(first.view, second.view);
        relayout_scales(second.view, third.view);
        relayout_scales(third.view, last.view);
        const auto* back = last.memory.as<std::uint8_t>();
        EXPECT_EQ(std::vector<std::uint8_t>(back, back + num_bytes), want)
            << name_of(dtype) << " " << n << " " << static_cast<int>(layout);
      }
    }
  }
}

// Any number of rows without scales needs no memory.
TEST(ScaleLayoutTest, RowsWithoutScalesCostNothing) {
  const TensorView none(nullptr, DType::kU8, {std::int64_t{1} << 58, 0});
  relayout_scales(none, none);
  EXPECT_EQ(swizzle_scales(none).shape(0), 0);
  pack_ue8m0(none, TensorView(nullptr, DType::kI32, {std::int64_t{1} << 58, 0}));
}

TEST(ScaleLayoutTest, RefusesWrongShapesAndHostileSizes) {
  const Errc code = Errc::kInvalidArgument;
  const Tensor rows(DType::kU8, {3, 5});
  const Tensor tiles(DType::kU8, {1, 2, 32, 4, 4});
  expect_error(code, "num_rows is -1, must be at least 0",
               [] { (void)num_scale_elements(ScaleLayout::kRowMajor, -1, 4); });
  for (const ScaleLayout layout :
       {ScaleLayout::kRowMajor, ScaleLayout::kColumnMajorAligned, ScaleLayout::kSwizzled}) {
    expect_error(code, "overflows 64 bits",
                 [&] { (void)num_scale_elements(layout, kHuge - 1, 3); });
    expect_error(code, "overflows 64 bits", [&] {
      (void)view_batched_scales(nullptr, DType::kF32, layout, std::int64_t{1} << 31,
                                std::int64_t{1} << 31, 4);
    });
  }
  expect_error(code, "scale_layout is 9, must be row_major,",
               [] { (void)num_scale_elements(static_cast<ScaleLayout>(9), 1, 1); });
  expect_error(code, "must be the rows and scales of u8 [3, 5]", [&] {
    relayout_scales(rows, Tensor(DType::kU8, {3, 6}));
  });
  expect_error(code, "must be the rows and scales of u8 [3, 9]", [&] {
    relayout_scales(Tensor(DType::kU8, {3, 9}), tiles);
  });
  expect_error(code, "must be the rows and scales", [&] {
    relayout_scales(rows, Tensor(DType::kF32, {3, 5}));
  });
  expect_error(code, "from is absent", [&] { relayout_scales({}, rows); });
  expect_error(code, "must be contiguous tiles", [&] {
    relayout_scales(rows, Tensor(DType::kU8, {1, 2, 16, 8, 4}));
  });
  expect_error(code, "one or two bytes", [&] {
    (void)swizzle_scales(Tensor(DType::kF32, {1, 4}));
  });
  expect_error(code, "must be 1024 contiguous elements for [3, 5]",
               [&] { (void)unswizzle_scales(rows, 3, 5); });
}

}  // namespace
}  // namespace switchyard

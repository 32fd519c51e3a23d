// SPDX-License-Identifier: Apache-2.0
//
// group_shape.h: which elements of a matrix share a quantization scale.
#pragma once

#include <array>
#include <cstdint>

#include "switchyard/export.h"

namespace switchyard {

/// Rows and columns of a block: {128, 128} for weights.
using BlockShape = std::array<std::int32_t, 2>;

/// Rows and columns of the tile that shares a scale; -1 is the full extent.
/// Row 0 occurs only when a weight-only builder of QuantConfig is given the block {0, g} or
/// {0, -1}.
/// Mirrors vLLM's GroupShape.
struct GroupShape {
  std::int32_t row = -1;  ///< rows of the tile
  std::int32_t col = -1;  ///< columns of the tile

  constexpr bool is_per_tensor() const { return row == -1 && col == -1; }  ///< one scale for all
  constexpr bool is_per_token() const { return row == 1 && col == -1; }    ///< one scale per row
  constexpr bool is_per_channel() const { return row == -1 && col == 1; }  ///< one scale per column
  /// One scale per `col` elements of a row.
  constexpr bool is_per_group() const { return row == 1 && col >= 1; }
  friend constexpr bool operator==(const GroupShape&, const GroupShape&) = default;
};

namespace group_shapes {
/// @{ Shapes with a name.
inline constexpr GroupShape kPerTensor{-1, -1};
inline constexpr GroupShape kPerToken{1, -1};
inline constexpr GroupShape kPerChannel{-1, 1};
/// @}
}  // namespace group_shapes

}  // namespace switchyard

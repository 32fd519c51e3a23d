// SPDX-License-Identifier: Apache-2.0
//
// scale_layout.h: where scale s of row n lies, for both processors.
#pragma once

#include <cstddef>
#include <cstdint>

#include "switchyard/quant.h"

#include "core/host_device.h"

namespace switchyard {

/// Scales of `num_rows` rows that are laid out together: a tensor, or one expert of a batch.
struct ScaleGeometry {
  ScaleLayout layout = ScaleLayout::kRowMajor;
  std::int64_t num_rows = 0;
  std::int64_t num_scales = 0;     ///< per row
  std::int64_t element_bytes = 4;  ///< per scale

  static constexpr std::int64_t kTileRows = 128;
  static constexpr std::int64_t kTileScales = 4;
  static constexpr std::int64_t kTileElements = kTileRows * kTileScales;

  SWITCHYARD_HOST_DEVICE constexpr std::int64_t tiles_in_row() const {
    return (num_scales + kTileScales - 1) / kTileScales;
  }
  SWITCHYARD_HOST_DEVICE constexpr std::int64_t column_stride() const {
    if (layout == ScaleLayout::kColumnMajor) return num_rows;
    return layout == ScaleLayout::kColumnMajorAligned ? (num_rows + 3) / 4 * 4 : 1;
  }

  /// Elements of memory, padding included.
  SWITCHYARD_HOST_DEVICE constexpr std::int64_t num_elements() const {
    switch (layout) {
      case ScaleLayout::kSwizzled:
        return (num_rows + kTileRows - 1) / kTileRows * tiles_in_row() * kTileElements;
      case ScaleLayout::kColumnMajorAligned: return column_stride() * num_scales;
      default: return num_rows * num_scales;
    }
  }

  /// The element of scale `s` of row `n`. In a tile, rows 32 apart are adjacent: row m and scale s
  /// are at (m % 32) * 16 + (m / 32) * 4 + s % 4.
  SWITCHYARD_HOST_DEVICE constexpr std::int64_t index(std::int64_t n, std::int64_t s) const {
    switch (layout) {
      case ScaleLayout::kRowMajor: return n * num_scales + s;
      case ScaleLayout::kSwizzled: {
        const std::int64_t tile = n / kTileRows * tiles_in_row() + s / kTileScales;
        const std::int64_t m = n % kTileRows;
        return tile * kTileElements + m % 32 * 16 + m / 32 * 4 + s % kTileScales;
      }
      default: return n + s * column_stride();
    }
  }

  SWITCHYARD_HOST_DEVICE constexpr std::size_t num_bytes() const {
    return static_cast<std::size_t>(num_elements() * element_bytes);
  }
};

}  // namespace switchyard

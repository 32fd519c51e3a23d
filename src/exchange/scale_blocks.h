// SPDX-License-Identifier: Apache-2.0
//
// scale_blocks.h: the scales of a receive buffer: one block for all rows or, in layout batched, one
// block per expert, so that an expert's scales are laid out as its GEMM expects them.
#pragma once

#include <cstddef>
#include <cstdint>

#include "switchyard/tensor.h"

#include "quant/scale_layout.h"

namespace switchyard {

struct ScaleBlocks {
  ScaleGeometry block;
  DType dtype = DType::kF32;
  std::int64_t num_blocks = 1;
  bool is_batched = false;

  std::size_t num_bytes() const { return block.num_bytes() * static_cast<std::size_t>(num_blocks); }

  /// Copies the scales of one row, contiguous in `scales`, to their places in `memory`.
  void place(const std::byte* scales, std::int64_t row, std::byte* memory) const;

  /// [N, S], or [L, C, S] in a batch; tiles where swizzled (switchyard/scale_layout.h).
  TensorView view(const void* memory, Device device = Device::cpu()) const;
};

}  // namespace switchyard

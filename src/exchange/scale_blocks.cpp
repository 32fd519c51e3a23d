// SPDX-License-Identifier: Apache-2.0

#include "exchange/scale_blocks.h"

#include <cstring>

#include "switchyard/scale_layout.h"

namespace switchyard {

void ScaleBlocks::place(const std::byte* scales, std::int64_t row, std::byte* memory) const {
  const std::int64_t bytes = block.element_bytes;
  if (block.layout == ScaleLayout::kRowMajor) {
    const auto row_bytes = static_cast<std::size_t>(block.num_scales * bytes);
    std::memcpy(memory + static_cast<std::size_t>(row) * row_bytes, scales, row_bytes);
    return;
  }
  const std::int64_t number = is_batched ? row / block.num_rows : 0;
  const std::int64_t row_in_block = row - number * block.num_rows;
  std::byte* to = memory + static_cast<std::size_t>(number) * block.num_bytes();
  for (std::int64_t s = 0; s < block.num_scales; ++s) {
    std::memcpy(to + block.index(row_in_block, s) * bytes, scales + s * bytes,
                static_cast<std::size_t>(bytes));
  }
}

TensorView ScaleBlocks::view(const void* memory) const {
  // Row-major blocks follow one another as if they were a single block.
  if (block.layout == ScaleLayout::kRowMajor) {
    return TensorView(memory, dtype, {num_blocks * block.num_rows, block.num_scales});
  }
  return is_batched ? view_batched_scales(memory, dtype, block.layout, num_blocks, block.num_rows,
                                          block.num_scales)
                    : view_scales(memory, dtype, block.layout, block.num_rows, block.num_scales);
}

}  // namespace switchyard

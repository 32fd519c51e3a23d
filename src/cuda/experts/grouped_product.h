// SPDX-License-Identifier: Apache-2.0
//
// grouped_product.h: rows times one bf16 matrix per expert, on the tensor cores of a Hopper GPU,
// with counts that only the GPU knows.
#pragma once

#include <cstddef>

#include "switchyard/stream.h"

#include "cuda/experts/expert_kernels.h"

namespace switchyard::cuda {

/// What 16-byte copies need of addresses, and of the bytes from one row to the next.
inline constexpr std::size_t kGroupedAlignment = 16;

/// Of the current GPU.
std::size_t grouped_scratch_bytes(std::int64_t num_experts);

/// y = x * w^T, or y += x * w^T if `adds`. x and weights [experts][num_outputs][depth] are bf16, y
/// is bf16 or f32, all aligned to kGroupedAlignment, as are their rows; bias and num_columns are
/// ignored. Only counted rows are read and written. `scratch`, aligned to 256 bytes, is in use
/// until the work has completed. Asynchronous; may be captured. Errors: kSystem.
void launch_grouped_product(const ExpertProduct& product, bool adds, std::byte* scratch,
                            Stream stream);

}  // namespace switchyard::cuda

// SPDX-License-Identifier: Apache-2.0
//
// arguments.h: what calls shaped like DeepEP's and FlashInfer's do with their arguments.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "switchyard/quant.h"
#include "switchyard/tensor.h"

#include "core/fail.h"
#include "exchange/pool/kept_dispatch.h"
#include "plan/permute.h"

namespace switchyard {

/// The counts [L] of a dispatch that was received on CPUs.
inline std::span<const std::int32_t> counts_of(const TensorView& num_rows) {
  return {num_rows.as<std::int32_t>(), static_cast<std::size_t>(num_rows.shape(0))};
}

/// An i32 tensor on CPUs with the values of a list.
template <typename List>
Tensor to_i32(const List& list) {
  Tensor tensor(DType::kI32, {static_cast<std::int64_t>(list.size())});
  std::int64_t i = 0;
  for (const std::int64_t value : list) {
    require(value >= std::numeric_limits<std::int32_t>::min() &&
                value <= std::numeric_limits<std::int32_t>::max(),
            Errc::kInvalidArgument, "dispatch: entry {} is {}, must fit in 32 bits", i, value);
    tensor.as<std::int32_t>()[i++] = static_cast<std::int32_t>(value);
  }
  return tensor;
}

/// `view` with another dtype of the same width; absent stays absent.
TensorView retyped(const TensorView& view, DType dtype);

/// The scheme of the caller's rows: e4m3 with opaque 4-byte scales, one per token or one per
/// cdiv(H, S) elements, passed and received as f32; bf16 without scales.
/// Errors: kInvalidArgument.
QuantScheme scheme_of_rows(const char* function, const TensorView& x, const TensorView& scales);

/// Errors: kInvalidArgument unless x is [T, H] and topk_idx [T, K].
void check_ids(const char* function, const TensorView& x, const TensorView& topk_idx);

/// Results, which the originals take in bf16 alone. Errors: kInvalidArgument.
void check_bf16(const char* function, const TensorView& x);

/// Ids of a tensor [T, K], for kernels.
IdTable ids_for_kernel(const TensorView& ids);

/// An i64 copy of ids [T, K], i32 or i64, on the device of the pool. On a GPU any negative id
/// becomes -1, and rows from *num_rows on, if it is given, become -1.
Tensor copy_ids(const char* function, const TensorPool& pool, const TensorView& ids, Stream stream,
                const TensorView& num_rows = {});

/// A copy of a contiguous tensor, from the pool.
Tensor copy_of(const TensorPool& pool, const TensorView& from, Stream stream);

/// True when `ids`, i32 or i64, equal those of the copy. On CPUs.
bool is_same_ids(const TensorView& ids, const TensorView& copy);

/// Errors: kInvalidArgument when the size does not fit in i32.
std::int32_t narrow_size(const char* function, const char* name, std::int64_t size);

/// Errors: kInvalidArgument for an alignment outside 1 to 2^31 - 1.
void check_alignment(const char* function, std::int64_t alignment);

/// Rows per expert, rounded up to the alignment.
std::vector<std::int64_t> aligned_counts(std::span<const std::int32_t> counts,
                                         std::int64_t alignment);

/// Errors: kInvalidArgument unless there are at most two.
void check_bias(const char* function, const std::vector<TensorView>& bias);

}  // namespace switchyard

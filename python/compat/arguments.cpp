// SPDX-License-Identifier: Apache-2.0

#include "compat/arguments.h"

#include <cstring>

#include "core/bytes.h"
#include "core/format.h"
#include "device/compat_rows.h"
#include "plan/id_tensor.h"

namespace switchyard {

TensorView retyped(const TensorView& view, DType dtype) {
  if (!view.has_value()) return {};
  return TensorView(view.data(), dtype, {view.shape(0), view.shape(1)},
                    {view.stride(0), view.stride(1)}, view.device());
}

QuantScheme scheme_of_rows(const char* function, const TensorView& x, const TensorView& scales) {
  require(x.has_value() && x.num_dims() == 2, Errc::kInvalidArgument, "{}: x is {}, must be [T, H]",
          function, x);
  if (!scales.has_value()) {
    require(x.dtype() == DType::kBF16, Errc::kInvalidArgument,
            "{}: x is {} without scales, must be bf16, or e4m3 with scales", function, x);
    return schemes::kNone;
  }
  const std::int64_t hidden = x.shape(1);
  require(x.dtype() == DType::kE4M3 &&
              (scales.dtype() == DType::kI32 || scales.dtype() == DType::kF32) &&
              scales.num_dims() == 2 && scales.shape(0) == x.shape(0) && scales.shape(1) >= 1 &&
              scales.shape(1) <= hidden && hidden <= std::numeric_limits<std::int32_t>::max(),
          Errc::kInvalidArgument,
          "{}: x is {} with scales {}, must be e4m3 [T, H] with f32 or i32 [T, S]", function, x,
          scales);
  QuantScheme scheme = schemes::kFp8Block;
  scheme.block = static_cast<std::int32_t>(cdiv(hidden, scales.shape(1)));
  if (scales.shape(1) == 1) scheme = schemes::kFp8Token;
  require(num_scales(scheme, hidden) == scales.shape(1), Errc::kInvalidArgument,
          "{}: {} scales for {} elements, must be one for each block of as many elements", function,
          scales.shape(1), hidden);
  return scheme;
}

void check_ids(const char* function, const TensorView& x, const TensorView& topk_idx) {
  require(x.has_value() && x.num_dims() == 2 && topk_idx.has_value() && topk_idx.num_dims() == 2 &&
              topk_idx.shape(0) == x.shape(0),
          Errc::kInvalidArgument, "{}: x is {} and topk_idx {}, must be [T, H] and [T, K]",
          function, x, topk_idx);
}

void check_bf16(const char* function, const TensorView& x) {
  require(!x.has_value() || x.dtype() == DType::kBF16, Errc::kInvalidArgument,
          "{}: x is {}, must be bf16, as which rows travel; round it first", function, x);
}

IdTable ids_for_kernel(const TensorView& ids) {
  return {ids.data(),   ids.dtype() == DType::kI64, ids.shape(0), ids.shape(1), ids.stride(0),
          ids.stride(1)};
}

Tensor copy_ids(const char* function, const TensorPool& pool, const TensorView& ids, Stream stream,
                const TensorView& num_rows) {
  require_ids(function, "topk_idx", ids);
  Tensor copy = pool.make(DType::kI64, {ids.shape(0), ids.shape(1)});
  if (stream.device().is_cpu()) {
    const IdTensor from(function, "topk_idx", ids);
    for (std::int64_t i = 0; i < ids.num_elements(); ++i) copy.as<std::int64_t>()[i] = from[i];
    return copy;
  }
  cuda::RenameIdsArgs args;
  args.from = ids_for_kernel(ids);
  args.to = ids_for_kernel(copy);
  args.num_ids = std::numeric_limits<std::int64_t>::max();
  args.num_rows = num_rows.has_value() ? num_rows.as<std::int32_t>() : nullptr;
  on_gpu::rename_ids(args, stream);
  return copy;
}

Tensor copy_of(const TensorPool& pool, const TensorView& from, Stream stream) {
  std::vector<std::int64_t> shape;
  for (int d = 0; d < from.num_dims(); ++d) shape.push_back(from.shape(d));
  Tensor copy = pool.make(from.dtype(), shape);
  if (stream.device().is_cuda()) {
    on_gpu::copy(from, copy, stream);
  } else if (from.num_bytes() > 0) {
    std::memcpy(copy.data(), from.data(), from.num_bytes());
  }
  return copy;
}

bool is_same_ids(const TensorView& ids, const TensorView& copy) {
  const bool is_id_tensor = ids.has_value() && ids.is_contiguous() && ids.num_dims() == 2 &&
                            (ids.dtype() == DType::kI64 || ids.dtype() == DType::kI32);
  if (!is_id_tensor || ids.shape(0) != copy.shape(0) || ids.shape(1) != copy.shape(1)) return false;
  const IdTensor given("is_same_ids", "ids", ids);
  const auto* kept = copy.as<std::int64_t>();
  for (std::int64_t i = 0; i < ids.num_elements(); ++i) {
    if (given[i] != kept[i]) return false;
  }
  return true;
}

std::int32_t narrow_size(const char* function, const char* name, std::int64_t size) {
  require(size >= 0 && size <= std::numeric_limits<std::int32_t>::max(), Errc::kInvalidArgument,
          "{}: {} is {}, must fit in 32 bits", function, name, size);
  return static_cast<std::int32_t>(size);
}

void check_alignment(const char* function, std::int64_t alignment) {
  require(alignment >= 1 && alignment <= std::numeric_limits<std::int32_t>::max(),
          Errc::kInvalidArgument, "{}: expert_alignment is {}, must be from 1 to {}", function,
          alignment, std::numeric_limits<std::int32_t>::max());
}

std::vector<std::int64_t> aligned_counts(std::span<const std::int32_t> counts,
                                         std::int64_t alignment) {
  std::vector<std::int64_t> aligned;
  for (const std::int32_t count : counts) {
    aligned.push_back(align_up<std::int64_t>(count, alignment));
  }
  return aligned;
}

void check_bias(const char* function, const std::vector<TensorView>& bias) {
  require(bias.size() <= 2, Errc::kInvalidArgument, "{}: {} bias tensors, must be at most 2",
          function, bias.size());
}

}  // namespace switchyard

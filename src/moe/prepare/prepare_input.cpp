// SPDX-License-Identifier: Apache-2.0
//
// What goes into dispatch: weights on the input, ids in physical numbering, the size of the call.

#include <algorithm>

#include "core/check_matrix.h"
#include "core/fail.h"
#include "core/format.h"
#include "moe/prepare/exchange_prepare_finalize.h"
#include "quant/rows.h"

namespace switchyard {
namespace {

template <typename Id>
void map_ids(const Id* ids, std::int64_t count, const std::vector<std::int32_t>& table,
             std::int32_t* mapped) {
  for (std::int64_t i = 0; i < count; ++i) {
    if (ids[i] < -1 || ids[i] >= static_cast<Id>(table.size())) {
      fail(Errc::kInvalidArgument,
           "prepare: topk_ids[{}] is {}, must be -1 or an expert from 0 to {}", i, ids[i],
           table.size() - 1);
    }
    mapped[i] = ids[i] < 0 ? -1 : table[static_cast<std::size_t>(ids[i])];
  }
}

}  // namespace

// The product is f32, rounded once to the dtype of the row.
TensorView ExchangePrepareFinalize::weigh_input(MicroBatch& batch,
                                                const PrepareArguments& arguments) const {
  const TensorView& hidden = arguments.hidden;
  const TensorView& weights = arguments.topk_weights;
  check_weighed_input(recipe_, config_, hidden, weights);
  const std::int64_t num_tokens = hidden.shape(0);
  const std::int64_t width = hidden.shape(1);
  batch.weighted = Tensor(hidden.dtype(), {num_tokens, width});
  std::vector<float> row(static_cast<std::size_t>(width));
  const QuantScheme plain{hidden.dtype()};
  const std::int64_t row_bytes = width * bits_of(hidden.dtype()) / 8;
  for (std::int64_t t = 0; t < num_tokens; ++t) {
    dequantize_row(plain, hidden.as<std::byte>() + t * row_bytes, nullptr, hidden.dtype(), width,
                   row.data());
    for (float& value : row) value *= weights.as<float>()[t];
    quantize_row(plain, row.data(), DType::kF32, width,
                 batch.weighted.as<std::byte>() + t * row_bytes, nullptr);
  }
  batch.ones = Tensor(DType::kF32, {num_tokens, 1});
  std::fill_n(batch.ones.as<float>(), num_tokens, 1.0f);
  return batch.weighted;
}

// After dispatch took the rows: arguments that it refuses leave the caller's memory as it was.
void ExchangePrepareFinalize::write_weighted(const MicroBatch& batch,
                                             const TensorView& hidden) const {
  const auto* from = batch.weighted.as<std::byte>();
  std::copy(from, from + batch.weighted.view().num_bytes(), hidden.as<std::byte>());
}

TensorView ExchangePrepareFinalize::to_physical(MicroBatch& batch,
                                                const TensorView& topk_ids) const {
  const std::vector<std::int32_t>& table = config_.global_to_physical;
  const bool is_id = topk_ids.dtype() == DType::kI32 || topk_ids.dtype() == DType::kI64;
  if (table.empty() || topk_ids.num_dims() != 2 || !is_id || !topk_ids.is_contiguous()) {
    return topk_ids;  // what is wrong with them is for dispatch to say
  }
  check_address(topk_ids, "prepare", "topk_ids");
  batch.physical_ids = Tensor(DType::kI32, {topk_ids.shape(0), topk_ids.shape(1)});
  auto* mapped = batch.physical_ids.as<std::int32_t>();
  if (topk_ids.dtype() == DType::kI32) {
    map_ids(topk_ids.as<std::int32_t>(), topk_ids.num_elements(), table, mapped);
  } else {
    map_ids(topk_ids.as<std::int64_t>(), topk_ids.num_elements(), table, mapped);
  }
  return batch.physical_ids;
}

}  // namespace switchyard

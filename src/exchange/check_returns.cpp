// SPDX-License-Identifier: Apache-2.0

#include "exchange/check_returns.h"

#include "core/check_matrix.h"
#include "core/fail.h"
#include "core/format.h"
#include "exchange/check_tokens.h"

namespace switchyard {
namespace {

void require_one_owner(const ExchangeConfig& config, const char* name) {
  require(
      !config.slices_experts, Errc::kInvalidArgument,
      "combine: {} is given, but experts are sliced and every rank serves every choice; leave it "
      "out",
      name);
}

}  // namespace

void check_new_weights(const ExchangeConfig& config, std::int64_t num_tokens,
                       const TensorView& topk_weights) {
  if (!topk_weights.has_value()) return;
  require(config.reduce == Reduce::kPerExpert, Errc::kInvalidArgument,
          "combine: topk_weights is given, but reduce is {}; pass the weights to dispatch",
          name_of(config.reduce));
  check_matrix(topk_weights,
               {"combine", "topk_weights", {DType::kF32}, num_tokens, config.num_topk});
}

void check_results(const ExchangeConfig& config, std::int64_t num_buffer_rows,
                   const TensorView& rows) {
  const DType dtype = rows.dtype();
  const bool is_float = dtype == DType::kBF16 || dtype == DType::kF16 || dtype == DType::kF32;
  const bool is_batch = config.layout == Layout::kBatched && rows.num_dims() == 3;
  const bool is_shaped =
      (is_batch || rows.num_dims() == 2) && rows.shape(is_batch ? 2 : 1) == config.hidden &&
      (is_batch ? rows.shape(0) * rows.shape(1) : rows.shape(0)) == num_buffer_rows;
  require(rows.has_value() && is_float && is_shaped && rows.is_contiguous(), Errc::kInvalidArgument,
          "combine: rows is {}, must be bf16, f16 or f32 [{}, {}], contiguous: one row for each of "
          "the receive buffer",
          rows, num_buffer_rows, config.hidden);
  check_wire_type("combine", "rows", rows, config.combine_scheme, "combine_scheme");
  check_address(rows, "combine", "rows");
}

void check_row_weights(const ExchangeConfig& config, std::int64_t num_buffer_rows,
                       const TensorView& row_weights) {
  if (!row_weights.has_value()) return;
  const std::int64_t columns = is_expert_major(config.layout) ? 1 : config.num_topk;
  require_one_owner(config, "row_weights");
  require(config.sends_weights && columns > 0, Errc::kInvalidArgument,
          "combine: row_weights is given, but weights do not travel; set sends_weights");
  require(row_weights.dtype() == DType::kF32 && row_weights.is_contiguous() &&
              row_weights.num_dims() >= 1 && row_weights.shape(0) == num_buffer_rows &&
              row_weights.num_elements() == num_buffer_rows * columns,
          Errc::kInvalidArgument, "combine: row_weights is {}, must be f32 [{}, {}], contiguous",
          row_weights, num_buffer_rows, columns);
  check_address(row_weights, "combine", "row_weights");
}

void check_returned_weights(const ExchangeConfig& config, std::int64_t num_tokens,
                            const TensorView& returned_weights) {
  if (!returned_weights.has_value()) return;
  require_one_owner(config, "returned_weights");
  require(config.sends_weights && config.num_topk > 0, Errc::kInvalidArgument,
          "combine: returned_weights is given, but weights do not travel; set sends_weights");
  check_matrix(returned_weights,
               {"combine", "returned_weights", {DType::kF32}, num_tokens, config.num_topk});
}

void check_both_weights(const TensorView& row_weights, const TensorView& returned_weights) {
  require(
      row_weights.has_value() || !returned_weights.has_value(), Errc::kInvalidArgument,
      "combine: returned_weights is requested, but no row_weights are given; every rank must pass "
      "them");
}

void check_row_sources(const RowSources& sources, std::int64_t num_rows, int num_ranks) {
  const auto check = [](const char* name, const TensorView& list, std::int64_t size) {
    require(!list.has_value() || (list.dtype() == DType::kI32 && list.num_elements() == size &&
                                  list.is_contiguous()),
            Errc::kInvalidArgument, "write_row_sources: {} is {}, must be i32 [{}], contiguous",
            name, list, size);
  };
  check("rank", sources.rank, num_rows);
  check("token", sources.token, num_rows);
  check("k", sources.k, num_rows);
  check("rows_per_rank", sources.rows_per_rank, num_ranks);
}

}  // namespace switchyard

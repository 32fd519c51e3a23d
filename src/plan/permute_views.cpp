// SPDX-License-Identifier: Apache-2.0

#include "plan/permute_views.h"

#include <limits>
#include <span>
#include <vector>

#include "core/bytes.h"
#include "core/format.h"

namespace switchyard {
namespace {

// Checks and counts the ids, and compares the counts with those that the caller passed, if any.
std::vector<std::int32_t> counts_of(const char* function, const IdTable& ids,
                                    std::int64_t num_local_experts, const PermuteOptions& options) {
  std::vector<std::int32_t> counts(checked_num_experts(function, num_local_experts));
  count_experts(function, ids, expert_lookup(function, options.expert_map), true, counts);
  const TensorView& known = options.expert_num_tokens;
  if (!known.has_value()) return counts;
  check_flat(function, "expert_num_tokens", known, DType::kI32, num_local_experts);
  for (std::size_t e = 0; e < counts.size(); ++e) {
    require(known.as<std::int32_t>()[e] == counts[e], Errc::kInvalidArgument,
            "{}: expert_num_tokens[{}] is {}, but topk_ids name this expert {} times", function, e,
            known.as<std::int32_t>()[e], counts[e]);
  }
  return counts;
}

// Fills first_row from counts; returns the number of rows needed.
std::int64_t start_rows(const char* function, std::span<const std::int32_t> counts,
                        std::int64_t alignment, std::span<std::int64_t> first_row) {
  const std::int64_t num_rows = start_experts(function, counts, alignment, first_row);
  require(num_rows <= std::numeric_limits<std::int32_t>::max(), Errc::kInvalidArgument,
          "{}: {} rows, at most 2^31 - 1; rows are named by 32-bit indices", function, num_rows);
  return num_rows;
}

}  // namespace

IdTable id_table(const char* function, const TensorView& topk_ids) {
  const bool is_64_bit = topk_ids.dtype() == DType::kI64;
  require(topk_ids.num_dims() == 2 && (is_64_bit || topk_ids.dtype() == DType::kI32),
          Errc::kInvalidArgument, "{}: topk_ids is {}, must be i32 or i64 [T, K]", function,
          topk_ids);
  return {topk_ids.data(),   is_64_bit,          topk_ids.shape(0),
          topk_ids.shape(1), topk_ids.stride(0), topk_ids.stride(1)};
}

IdTable any_id_table(const char* function, const TensorView& topk_ids) {
  if (topk_ids.num_dims() == 2) return id_table(function, topk_ids);
  const bool is_id = topk_ids.dtype() == DType::kI32 || topk_ids.dtype() == DType::kI64;
  require(topk_ids.has_value() && is_id && topk_ids.is_contiguous(), Errc::kInvalidArgument,
          "{}: topk_ids is {}, must be contiguous i32 or i64", function, topk_ids);
  return id_table(function,
                  TensorView(topk_ids.data(), topk_ids.dtype(), {topk_ids.num_elements(), 1}));
}

MappedIds check_mapped_ids(const TensorView& topk_ids, const TensorView& expert_map,
                           const TensorView& local_ids) {
  constexpr const char* kFunction = "apply_expert_map";
  const IdTable ids = any_id_table(kFunction, topk_ids);
  require(expert_map.has_value(), Errc::kInvalidArgument,
          "apply_expert_map: expert_map is absent, must be i32 [experts]");
  const ExpertLookup lookup = expert_lookup(kFunction, expert_map);
  bool is_alike =
      local_ids.num_dims() == topk_ids.num_dims() && local_ids.dtype() == topk_ids.dtype();
  for (int dim = 0; is_alike && dim < topk_ids.num_dims(); ++dim) {
    is_alike = local_ids.shape(dim) == topk_ids.shape(dim);
  }
  require(is_alike, Errc::kInvalidArgument,
          "apply_expert_map: local_ids is {}, must be the shape and dtype of topk_ids, {}",
          local_ids, topk_ids);
  return {ids, lookup, any_id_table(kFunction, local_ids)};
}

ExpertLookup expert_lookup(const char* function, const TensorView& expert_map) {
  if (!expert_map.has_value()) return {};
  require(expert_map.num_dims() == 1 && expert_map.dtype() == DType::kI32, Errc::kInvalidArgument,
          "{}: expert_map is {}, must be i32 [experts]", function, expert_map);
  // An empty tensor may have no memory; a null map would mean "no map".
  static constexpr std::int32_t kEmpty = -1;
  const std::int32_t* data = expert_map.as<std::int32_t>();
  return {data == nullptr ? &kEmpty : data, expert_map.shape(0), expert_map.stride(0)};
}

void check_flat(const char* function, const char* name, const TensorView& tensor, DType dtype,
                std::int64_t num_elements) {
  require(tensor.has_value() && tensor.dtype() == dtype && tensor.is_contiguous() &&
              tensor.num_elements() == num_elements,
          Errc::kInvalidArgument, "{}: {} is {}, must be {} with {} contiguous elements", function,
          name, tensor, name_of(dtype), num_elements);
}

std::size_t checked_num_experts(const char* function, std::int64_t num_local_experts) {
  constexpr std::int64_t kMaxExperts = 65535;
  require(num_local_experts >= 0 && num_local_experts <= kMaxExperts, Errc::kInvalidArgument,
          "{}: num_local_experts is {}, must be from 0 to {}", function, num_local_experts,
          kMaxExperts);
  return static_cast<std::size_t>(num_local_experts);
}

PermutePlan build_plan(const char* function, const IdTable& ids, std::int64_t num_local_experts,
                       const PermuteOptions& options, std::int64_t max_rows) {
  PermutePlan plan;
  plan.expert_num_tokens = counts_of(function, ids, num_local_experts, options);
  const std::vector<std::int32_t>& counts = plan.expert_num_tokens;
  plan.first_row.resize(counts.size());
  const std::int64_t needed = start_rows(function, counts, options.alignment, plan.first_row);
  require(max_rows == -1 || max_rows >= needed, Errc::kWorkspaceTooSmall,
          "{}: the buffer has {} rows, needs {}; ask compute_aligned_m()", function, max_rows,
          needed);
  plan.m_indices = Tensor(DType::kI32, {max_rows == -1 ? needed : max_rows});
  plan.inv_perm = Tensor(DType::kI32, {ids.num_tokens, ids.num_topk});
  mark_rows(counts, plan.first_row, options.alignment, options.compat_padding,
            {plan.m_indices.as<std::int32_t>(), static_cast<std::size_t>(plan.num_rows())});
  std::vector<std::int64_t> next_row = plan.first_row;
  assign_rows(ids, expert_lookup(function, options.expert_map), next_row,
              plan.inv_perm.as<std::int32_t>());
  return plan;
}

}  // namespace switchyard

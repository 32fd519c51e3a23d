// SPDX-License-Identifier: Apache-2.0
//
// weight_and_reduce.cpp: each policy finds the rows of a token; weigh_reduce_row sums them.

#include "switchyard/weight_and_reduce.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "core/bytes.h"
#include "core/format.h"
#include "cpu/permute_rows.h"
#include "cpu/weigh_reduce.h"
#include "plan/permute_views.h"
#include "quant/bits.h"
#include "quant/rows.h"

namespace switchyard {
namespace {

constexpr const char* kFunction = "weight_and_reduce";

bool is_float(DType dtype) {
  return dtype == DType::kF32 || dtype == DType::kBF16 || dtype == DType::kF16;
}

bool has_same_shape(const TensorView& a, const TensorView& b) {
  if (a.num_dims() != b.num_dims()) return false;
  for (int dim = 0; dim < a.num_dims(); ++dim) {
    if (a.shape(dim) != b.shape(dim)) return false;
  }
  return true;
}

bool is_same_tensor(const TensorView& a, const TensorView& b) {
  if (a.data() != b.data() || a.dtype() != b.dtype() || !has_same_shape(a, b)) return false;
  for (int dim = 0; dim < a.num_dims(); ++dim) {
    if (a.stride(dim) != b.stride(dim)) return false;
  }
  return true;
}

TensorView no_op(const TensorView& rows, const TensorView& output) {
  require(rows.has_value(), Errc::kInvalidArgument,
          "weight_and_reduce: expert_output is absent, want [T, H]");
  if (!output.has_value() || is_same_tensor(rows, output)) return rows;
  require(has_same_shape(rows, output) && rows.dtype() == output.dtype(), Errc::kInvalidArgument,
          "weight_and_reduce: output is {}, want the shape and dtype of expert_output, {}", output,
          rows);
  const ByteRows from = byte_rows(kFunction, "expert_output", rows, false);
  const ByteRows to = byte_rows(kFunction, "output", output, true);
  for (std::int64_t n = 0; n < from.num_rows; ++n) {
    std::memcpy(to.row(n), from.row(n), from.row_bytes);
  }
  return output;
}

// What the two policies that sum have in common, checked.
struct Sum {
  IdTable ids;
  const float* weights = nullptr;  // null when they were applied before the experts
  ByteRows out;
  std::int64_t hidden = 0;
  DType dtype = DType::kBF16;

  Sum(const WeightAndReduceArguments& arguments, const TensorView& output)
      : ids(id_table(kFunction, arguments.topk_ids)), dtype(arguments.expert_output.dtype()) {
    const TensorView& rows = arguments.expert_output;
    require(rows.has_value() && is_float(dtype) && rows.is_contiguous() && rows.num_dims() >= 2 &&
                rows.num_dims() <= 3,
            Errc::kInvalidArgument,
            "weight_and_reduce: expert_output is {}, want contiguous bf16, f16 or f32", rows);
    hidden = rows.shape(rows.num_dims() - 1);
    require(output.num_dims() == 2 && output.dtype() == dtype &&
                output.shape(0) == ids.num_tokens && output.shape(1) == hidden,
            Errc::kInvalidArgument, "weight_and_reduce: output is {}, want {} [{}, {}]", output,
            name_of(dtype), ids.num_tokens, hidden);
    out = byte_rows(kFunction, "output", output, true);
    if (arguments.apply_router_weight_on_input) return;
    const TensorView& given = arguments.topk_weights;
    require(given.num_dims() == 2 && given.shape(0) == ids.num_tokens &&
                given.shape(1) == ids.num_topk && given.dtype() == DType::kF32 &&
                given.is_contiguous(),
            Errc::kInvalidArgument, "weight_and_reduce: topk_weights is {}, want f32 [{}, {}]",
            given, ids.num_tokens, ids.num_topk);
    weights = given.as<float>();
  }

  std::size_t row_bytes() const { return out.row_bytes; }

  void write(std::int64_t t, const std::vector<const void*>& rows, const float* scales) const {
    weigh_reduce_row(rows.data(), dtype, scales, static_cast<int>(rows.size()), hidden, out.row(t),
                     dtype);
  }
};

// row = round(row * weight). Not a sum of one row: that would turn -0 into +0.
void weigh_row(std::byte* row, DType dtype, std::int64_t hidden, float weight) {
  constexpr std::int64_t kBlock = 1024;
  float x[kBlock];
  auto* half = reinterpret_cast<std::uint16_t*>(row);
  auto* full = reinterpret_cast<float*>(row);
  for (std::int64_t first = 0; first < hidden; first += kBlock) {
    const std::int64_t count = std::min(kBlock, hidden - first);
    if (dtype == DType::kBF16) bf16_to_f32(half + first, count, x);
    if (dtype == DType::kF16) f16_to_f32(half + first, count, x);
    if (dtype == DType::kF32) std::copy_n(full + first, count, x);
    for (std::int64_t h = 0; h < count; ++h) x[h] = canonical_f32(x[h] * weight);
    if (dtype == DType::kBF16) f32_to_bf16(x, count, half + first);
    if (dtype == DType::kF16) f32_to_f16(x, count, half + first);
    if (dtype == DType::kF32) std::copy_n(x, count, full + first);
  }
}

void contiguous(const WeightAndReduce& policy, const WeightAndReduceArguments& arguments,
                const TensorView& output) {
  const Sum sum(arguments, output);
  const TensorView& given = arguments.expert_output;
  const IdTable& ids = sum.ids;
  const std::int64_t num_rows = checked_mul(ids.num_tokens, ids.num_topk);
  const bool is_flat = given.num_dims() == 2;
  require(is_flat ? given.shape(0) == num_rows
                  : given.shape(0) == ids.num_tokens && given.shape(1) == ids.num_topk,
          Errc::kInvalidArgument, "weight_and_reduce: expert_output is {}, want [{}, {}, {}]",
          given, ids.num_tokens, ids.num_topk, sum.hidden);
  ExpertLookup lookup;
  if (policy.skips_padding) {
    lookup = expert_lookup(kFunction, arguments.expert_map);
    check_ids(kFunction, ids, lookup);
  }
  std::vector<const void*> rows;
  for (std::int64_t t = 0; t < ids.num_tokens; ++t) {
    rows.clear();
    for (std::int64_t k = 0; k < ids.num_topk; ++k) {
      if (policy.skips_padding && lookup.local(ids.at(t, k)) < 0) continue;
      const std::int64_t n = t * ids.num_topk + k;
      std::byte* row = given.as<std::byte>() + n * static_cast<std::int64_t>(sum.row_bytes());
      rows.push_back(row);
      if (sum.weights != nullptr) weigh_row(row, sum.dtype, sum.hidden, sum.weights[n]);
    }
    sum.write(t, rows, nullptr);
  }
}

// The row of each (token, local expert): experts hand out their rows to tokens in order.
class BatchedRows {
 public:
  BatchedRows(const IdTable& ids, std::int64_t first_expert, const TensorView& rows)
      : ids_(ids), first_(first_expert), next_(static_cast<std::size_t>(rows.shape(0))) {}

  // Local experts of token t, ascending, each once.
  const std::vector<std::int64_t>& experts_of(std::int64_t t) {
    experts_.clear();
    for (std::int64_t k = 0; k < ids_.num_topk; ++k) {
      const std::int64_t id = ids_.at(t, k);
      if (id >= first_ && id - first_ < static_cast<std::int64_t>(next_.size())) {
        experts_.push_back(id - first_);
      }
    }
    std::sort(experts_.begin(), experts_.end());
    experts_.erase(std::unique(experts_.begin(), experts_.end()), experts_.end());
    return experts_;
  }
  std::int64_t take(std::int64_t expert) { return next_[static_cast<std::size_t>(expert)]++; }

  float weight(std::int64_t t, std::int64_t expert, const float* weights) const {
    if (weights == nullptr) return 1.0f;
    float sum = 0.0f;
    for (std::int64_t k = 0; k < ids_.num_topk; ++k) {
      if (ids_.at(t, k) == first_ + expert) sum += weights[t * ids_.num_topk + k];
    }
    return sum;
  }

 private:
  IdTable ids_;
  std::int64_t first_;
  std::vector<std::int64_t> next_;
  std::vector<std::int64_t> experts_;
};

void check_capacity(BatchedRows batched, const IdTable& ids, std::int64_t capacity) {
  for (std::int64_t t = 0; t < ids.num_tokens; ++t) {
    for (const std::int64_t expert : batched.experts_of(t)) {
      require(batched.take(expert) < capacity, Errc::kInvalidArgument,
              "weight_and_reduce: local expert {} has more than {} tokens, the rows of "
              "expert_output",
              expert, capacity);
    }
  }
}

void naive_batched(const WeightAndReduce& policy, const WeightAndReduceArguments& arguments,
                   const TensorView& output) {
  const Sum sum(arguments, output);
  const TensorView& given = arguments.expert_output;
  require(given.num_dims() == 3, Errc::kInvalidArgument,
          "weight_and_reduce: expert_output is {}, want [experts, capacity, {}]", given,
          sum.hidden);
  require(policy.rank >= 0, Errc::kInvalidArgument,
          "weight_and_reduce: rank is {}, must not be negative", policy.rank);
  const std::int64_t capacity = given.shape(1);
  BatchedRows batched(sum.ids, checked_mul<std::int64_t>(policy.rank, given.shape(0)), given);
  check_capacity(batched, sum.ids, capacity);
  std::vector<const void*> rows;
  std::vector<float> weights;
  for (std::int64_t t = 0; t < sum.ids.num_tokens; ++t) {
    rows.clear();
    weights.clear();
    for (const std::int64_t expert : batched.experts_of(t)) {
      const std::int64_t n = expert * capacity + batched.take(expert);
      rows.push_back(given.as<std::byte>() + n * static_cast<std::int64_t>(sum.row_bytes()));
      weights.push_back(batched.weight(t, expert, sum.weights));
    }
    sum.write(t, rows, weights.data());
  }
}

}  // namespace

const char* name_of(WeightAndReduceKind kind) noexcept {
  switch (kind) {
    case WeightAndReduceKind::kDelegate: return "delegate";
    case WeightAndReduceKind::kNoOp: return "no_op";
    case WeightAndReduceKind::kContiguous: return "contiguous";
    case WeightAndReduceKind::kNaiveBatched: return "naive_batched";
  }
  return "unknown";
}

TensorView weight_and_reduce(const WeightAndReduce& policy,
                             const WeightAndReduceArguments& arguments, const TensorView& output) {
  switch (policy.kind) {
    case WeightAndReduceKind::kNoOp: return no_op(arguments.expert_output, output);
    case WeightAndReduceKind::kContiguous: contiguous(policy, arguments, output); return output;
    case WeightAndReduceKind::kNaiveBatched:
      naive_batched(policy, arguments, output);
      return output;
    case WeightAndReduceKind::kDelegate: break;
  }
  fail(Errc::kInvalidArgument,
       "weight_and_reduce: the policy is delegate, want one that prepare/finalize chose; ask "
       "or_else()");
}

}  // namespace switchyard

// SPDX-License-Identifier: Apache-2.0
//
// weight_and_reduce.cpp: each policy finds the rows of a token; weigh_reduce_row sums them.

#include "switchyard/weight_and_reduce.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "core/fail.h"
#include "cpu/host_reduce.h"
#include "cpu/weigh_reduce.h"
#include "plan/sum_views.h"
#include "quant/bits.h"
#include "quant/rows.h"

namespace switchyard {
namespace {

constexpr const char* kFunction = "weight_and_reduce";

TensorView no_op(const TensorView& rows, const TensorView& output) {
  const NoOpViews views = check_no_op(rows, output);
  if (!views.is_copy) return rows;
  for (std::int64_t n = 0; n < views.from.num_rows; ++n) {
    std::memcpy(views.to.row(n), views.from.row(n), views.from.row_bytes);
  }
  return output;
}

void write_sum(const SumViews& sum, std::int64_t t, const std::vector<const void*>& rows,
               const float* weights) {
  weigh_reduce_row(rows.data(), sum.dtype, weights, static_cast<int>(rows.size()), sum.hidden,
                   sum.out.row(t), sum.dtype);
}

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
  const SumViews sum = check_contiguous(policy, arguments, output);
  const IdTable& ids = sum.ids;
  if (policy.skips_padding) check_ids(kFunction, ids, sum.lookup);
  std::vector<const void*> rows;
  for (std::int64_t t = 0; t < ids.num_tokens; ++t) {
    rows.clear();
    for (std::int64_t k = 0; k < ids.num_topk; ++k) {
      if (policy.skips_padding && sum.lookup.local(ids.at(t, k)) < 0) continue;
      const std::int64_t n = t * ids.num_topk + k;
      rows.push_back(sum.row(n));
      if (sum.weights != nullptr) weigh_row(sum.row(n), sum.dtype, sum.hidden, sum.weights[n]);
    }
    write_sum(sum, t, rows, nullptr);
  }
}

// The row of each (token, local expert): experts hand out their rows to tokens in order.
class BatchedRows {
 public:
  explicit BatchedRows(const SumViews& sum)
      : ids_(sum.ids), first_(sum.first_expert), next_(static_cast<std::size_t>(sum.num_local)) {}

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
  const SumViews sum = check_naive_batched(policy, arguments, output);
  BatchedRows batched(sum);
  check_capacity(batched, sum.ids, sum.capacity);
  std::vector<const void*> rows;
  std::vector<float> weights;
  for (std::int64_t t = 0; t < sum.ids.num_tokens; ++t) {
    rows.clear();
    weights.clear();
    for (const std::int64_t expert : batched.experts_of(t)) {
      rows.push_back(sum.row(expert * sum.capacity + batched.take(expert)));
      weights.push_back(batched.weight(t, expert, sum.weights));
    }
    write_sum(sum, t, rows, weights.data());
  }
}

}  // namespace

namespace host {

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
  fail_delegate();
}

}  // namespace host

}  // namespace switchyard

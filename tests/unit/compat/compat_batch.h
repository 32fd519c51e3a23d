// SPDX-License-Identifier: Apache-2.0
//
// compat_batch.h: tokens that identify their origin, as in DeepEP's own tests: each element of a
// row is rank - 128, except the last, the token's number. Every rank knows all batches.
#pragma once

#include <algorithm>
#include <cstring>
#include <set>
#include <vector>

#include "switchyard/tensor.h"

#include "conformance/random_batch.h"
#include "plan/expert_ownership.h"
#include "quant/bf16.h"

namespace switchyard::test {

struct ViewShape {
  int num_ranks = 2;
  std::int32_t num_experts = 8;
  std::int32_t num_topk = 3;
  std::int64_t max_tokens = 9;  ///< rank r has max_tokens - r tokens, at least 0
  std::int64_t hidden = 256;

  ExpertOwnership ownership() const { return {num_experts, num_ranks}; }
};

/// Sizes that do not divide evenly, a single rank, more ranks than experts.
inline std::vector<ViewShape> view_shapes() {
  return {{1, 4, 2, 5, 256}, {2, 8, 3, 9, 256}, {3, 7, 4, 6, 256}, {5, 3, 2, 4, 128}};
}

class ViewBatch {
 public:
  ViewBatch(const ViewShape& shape, int rank)
      : shape_(shape),
        input_(conformance::random_tokens({shape.num_experts, shape.num_topk, 1, 0.2},
                                          std::max<std::int64_t>(0, shape.max_tokens - rank),
                                          static_cast<std::uint64_t>(rank) * 100 + 7)),
        x_(DType::kBF16, {num_tokens(), shape.hidden}),
        ids_(DType::kI64, {num_tokens(), shape.num_topk}) {
    for (std::int64_t i = 0; i < x_.view().num_elements(); ++i) {
      x_.as<std::uint16_t>()[i] = bf16_from_f32(element(rank, i / shape.hidden, i % shape.hidden));
    }
    std::copy(input_.topk_ids.data.begin(), input_.topk_ids.data.end(), ids_.as<std::int64_t>());
  }

  std::int64_t num_tokens() const { return input_.num_tokens(); }
  const Tensor& x() const { return x_; }
  const Tensor& ids() const { return ids_; }
  std::int32_t id(std::int64_t t, std::int64_t k) const { return input_.topk_ids(t, k); }
  float weight(std::int64_t t, std::int64_t k) const { return input_.topk_weights(t, k); }
  TensorView weights() const {
    return TensorView::of(input_.topk_weights.data.data(),
                          {num_tokens(), std::int64_t{shape_.num_topk}});
  }
  TensorView ids32() const {
    return TensorView::of(input_.topk_ids.data.data(),
                          {num_tokens(), std::int64_t{shape_.num_topk}});
  }
  float element(int rank, std::int64_t token, std::int64_t column) const {
    return static_cast<float>(column + 1 == shape_.hidden ? token : rank - 128);
  }
  /// Ranks that hold an expert of the token.
  std::set<int> ranks_of(std::int64_t t) const {
    std::set<int> ranks;
    for (int k = 0; k < shape_.num_topk; ++k) {
      if (id(t, k) >= 0) ranks.insert(shape_.ownership().owner(id(t, k)));
    }
    return ranks;
  }

 private:
  ViewShape shape_;
  reference::RankInput input_;
  Tensor x_;
  Tensor ids_;
};

inline std::vector<ViewBatch> all_batches(const ViewShape& shape) {
  std::vector<ViewBatch> batches;
  for (int r = 0; r < shape.num_ranks; ++r) batches.emplace_back(shape, r);
  return batches;
}

/// Tokens of all ranks that reach `rank`, by (source rank, token).
inline std::vector<std::pair<int, std::int64_t>> arrivals_at(const std::vector<ViewBatch>& batches,
                                                             int rank) {
  std::vector<std::pair<int, std::int64_t>> arrivals;
  for (std::size_t s = 0; s < batches.size(); ++s) {
    for (std::int64_t t = 0; t < batches[s].num_tokens(); ++t) {
      if (batches[s].ranks_of(t).count(rank) > 0) arrivals.emplace_back(static_cast<int>(s), t);
    }
  }
  return arrivals;
}

inline float bf16_at(const TensorView& view, std::int64_t index) {
  return f32_from_bf16(view.as<std::uint16_t>()[index]);
}

inline std::vector<std::uint8_t> bytes_of(const TensorView& view) {
  std::vector<std::uint8_t> bytes(view.num_bytes());
  if (!bytes.empty()) std::memcpy(bytes.data(), view.data(), bytes.size());
  return bytes;
}

/// [rows, H] bf16 with random values.
inline Tensor random_bias(std::int64_t rows, std::int64_t hidden, std::uint64_t seed) {
  const reference::Table<float> values = conformance::random_table(rows, hidden, seed);
  Tensor bias(DType::kBF16, {rows, hidden});
  std::transform(values.data.begin(), values.data.end(), bias.as<std::uint16_t>(), bf16_from_f32);
  return bias;
}

}  // namespace switchyard::test

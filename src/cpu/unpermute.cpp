// SPDX-License-Identifier: Apache-2.0
//
// unpermute.cpp: sums each token's rows with weigh_reduce_row, wherever they are. Every index is
// checked before the first row is written.

#include <vector>

#include "core/fail.h"
#include "core/require_device.h"
#include "cpu/permute_rows.h"
#include "cpu/weigh_reduce.h"
#include "plan/host_permute.h"

namespace switchyard {
namespace {

template <typename T>
T element(const TensorView& tensor, std::int64_t t, std::int64_t k) {
  return tensor.as<T>()[t * tensor.stride(0) + k * tensor.stride(1)];
}

// The rows and weights of one token, k ascending.
struct TokenRows {
  std::vector<const void*> rows;
  std::vector<float> weights;
};

struct Gather {
  IdTable ids;
  ExpertLookup lookup;
  TensorView inv_perm;
  TensorView weights;
  ByteRows rows;

  template <typename Visit>
  void for_each_row(std::int64_t t, const Visit& visit) const {
    for (std::int64_t k = 0; k < ids.num_topk; ++k) {
      if (lookup.local(ids.at(t, k)) >= 0) visit(k, element<std::int32_t>(inv_perm, t, k));
    }
  }

  void check_rows() const {
    for (std::int64_t t = 0; t < ids.num_tokens; ++t) {
      for_each_row(t, [&](std::int64_t k, std::int64_t row) {
        require(row >= 0 && row < rows.num_rows, Errc::kInvalidArgument,
                "ep_gather: inv_perm[{}, {}] is {}, but expert_output has {} rows", t, k, row,
                rows.num_rows);
      });
    }
  }

  void collect(std::int64_t t, TokenRows& token_rows) const {
    token_rows.rows.clear();
    token_rows.weights.clear();
    for_each_row(t, [&](std::int64_t k, std::int64_t row) {
      token_rows.rows.push_back(rows.row(row));
      if (weights.has_value()) token_rows.weights.push_back(element<float>(weights, t, k));
    });
  }
};

}  // namespace

namespace host {

void check_inv_perm(const TensorView& inv_perm) {
  if (inv_perm.num_dims() != 2 || inv_perm.dtype() != DType::kI32) return;  // ep_gather says so
  for (std::int64_t t = 0; t < inv_perm.shape(0); ++t) {
    for (std::int64_t k = 0; k < inv_perm.shape(1); ++k) {
      const auto row = element<std::int32_t>(inv_perm, t, k);
      require(row >= -1, Errc::kInvalidArgument,
              "unpermute_and_reduce: inv_perm[{}, {}] is {}, must be a row, or -1 for none", t, k,
              row);
    }
  }
}

void ep_gather(const TensorView& expert_output, const TensorView& topk_ids,
               const TensorView& topk_weights, const TensorView& inv_perm,
               const TensorView& expert_map, const TensorView& output) {
  const GatherViews views =
      check_gather(expert_output, topk_ids, topk_weights, inv_perm, expert_map, output);
  check_ids("ep_gather", views.ids, views.lookup);
  const Gather gather{views.ids, views.lookup, inv_perm, topk_weights, views.rows};
  gather.check_rows();

  TokenRows token_rows;
  for (std::int64_t t = 0; t < views.ids.num_tokens; ++t) {
    gather.collect(t, token_rows);
    const float* weights = topk_weights.has_value() ? token_rows.weights.data() : nullptr;
    weigh_reduce_row(token_rows.rows.data(), expert_output.dtype(), weights,
                     static_cast<int>(token_rows.rows.size()), output.shape(1), views.out.row(t),
                     output.dtype());
  }
}

}  // namespace host

void unpermute_and_reduce(const TensorView& expert_output, const PermutePlan& plan,
                          const TensorView& topk_weights, const TensorView& output) {
  // inv_perm is negative for exactly the dropped choices, so it serves as ids too.
  require_host(
      "unpermute_and_reduce",
      {{"expert_output", expert_output}, {"topk_weights", topk_weights}, {"output", output}});
  host::ep_gather(expert_output, plan.inv_perm, topk_weights, plan.inv_perm, {}, output);
}

}  // namespace switchyard

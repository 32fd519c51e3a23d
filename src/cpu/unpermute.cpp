// SPDX-License-Identifier: Apache-2.0
//
// unpermute.cpp: a token's rows, wherever they lie, summed by weigh_reduce_row. Every index is
// checked before the first row is written.

#include <vector>

#include "core/fail.h"
#include "core/format.h"
#include "cpu/permute_rows.h"
#include "cpu/weigh_reduce.h"
#include "plan/permute_views.h"

namespace switchyard {
namespace {

bool is_float(DType dtype) {
  return dtype == DType::kF32 || dtype == DType::kBF16 || dtype == DType::kF16;
}

void check_matrix(const char* name, const TensorView& tensor, DType dtype, const IdTable& ids) {
  require(tensor.num_dims() == 2 && tensor.dtype() == dtype && tensor.shape(0) == ids.num_tokens &&
              tensor.shape(1) == ids.num_topk,
          Errc::kInvalidArgument, "ep_gather: {} is {}, want {} [{}, {}]", name, tensor,
          name_of(dtype), ids.num_tokens, ids.num_topk);
}

void check_floats(const TensorView& expert_output, const TensorView& output, const IdTable& ids) {
  require(expert_output.num_dims() == 2 && is_float(expert_output.dtype()), Errc::kInvalidArgument,
          "ep_gather: expert_output is {}, want bf16, f16 or f32 [rows, hidden]", expert_output);
  require(output.num_dims() == 2 && is_float(output.dtype()) && output.shape(0) == ids.num_tokens &&
              output.shape(1) == expert_output.shape(1),
          Errc::kInvalidArgument, "ep_gather: output is {}, want bf16, f16 or f32 [{}, {}]", output,
          ids.num_tokens, expert_output.shape(1));
}

template <typename T>
T element(const TensorView& tensor, std::int64_t t, std::int64_t k) {
  return tensor.as<T>()[t * tensor.stride(0) + k * tensor.stride(1)];
}

// The rows and weights of one token, k ascending.
struct Terms {
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

  void collect(std::int64_t t, Terms& terms) const {
    terms.rows.clear();
    terms.weights.clear();
    for_each_row(t, [&](std::int64_t k, std::int64_t row) {
      terms.rows.push_back(rows.row(row));
      if (weights.has_value()) terms.weights.push_back(element<float>(weights, t, k));
    });
  }
};

}  // namespace

void ep_gather(const TensorView& expert_output, const TensorView& topk_ids,
               const TensorView& topk_weights, const TensorView& inv_perm,
               const TensorView& expert_map, const TensorView& output) {
  const IdTable ids = id_table("ep_gather", topk_ids);
  const ExpertLookup lookup = expert_lookup("ep_gather", expert_map);
  check_floats(expert_output, output, ids);
  check_matrix("inv_perm", inv_perm, DType::kI32, ids);
  if (topk_weights.has_value()) check_matrix("topk_weights", topk_weights, DType::kF32, ids);
  check_ids("ep_gather", ids, lookup);
  const ByteRows out = byte_rows("ep_gather", "output", output, true);
  const Gather gather{ids, lookup, inv_perm, topk_weights,
                      byte_rows("ep_gather", "expert_output", expert_output, false)};
  gather.check_rows();

  Terms terms;
  for (std::int64_t t = 0; t < ids.num_tokens; ++t) {
    gather.collect(t, terms);
    const float* weights = topk_weights.has_value() ? terms.weights.data() : nullptr;
    weigh_reduce_row(terms.rows.data(), expert_output.dtype(), weights,
                     static_cast<int>(terms.rows.size()), output.shape(1), out.row(t),
                     output.dtype());
  }
}

void unpermute_and_reduce(const TensorView& expert_output, const PermutePlan& plan,
                          const TensorView& topk_weights, const TensorView& output) {
  // inv_perm is negative for exactly the dropped choices, so it serves as ids too.
  ep_gather(expert_output, plan.inv_perm, topk_weights, plan.inv_perm, {}, output);
}

}  // namespace switchyard

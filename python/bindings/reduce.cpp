// SPDX-License-Identifier: Apache-2.0

#include <string>
#include <utility>

#include "switchyard/weight_and_reduce.h"

#include "core/fail.h"
#include "gil.h"
#include "module.h"
#include "names.h"
#include "tensors.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

namespace switchyard::python {
namespace {

nb::object reduce(nb::handle expert_output, nb::handle topk_weights, nb::handle topk_ids,
                  const std::string& kind, std::int32_t rank, bool skips_padding,
                  nb::handle expert_map, bool apply_router_weight_on_input, nb::handle out,
                  nb::handle stream_argument) {
  const WeightAndReduce policy{enum_from<WeightAndReduceKind>(kind), rank, skips_padding};
  const bool is_no_op = policy.kind == WeightAndReduceKind::kNoOp;
  Arrays arrays(stream_argument);
  // "contiguous" weighs rows where they are.
  const bool writes_rows =
      policy.kind == WeightAndReduceKind::kContiguous && !apply_router_weight_on_input;
  const WeightAndReduceArguments arguments{
      .expert_output = writes_rows ? arrays.out(expert_output, "weight_and_reduce: expert_output")
                                   : arrays.in(expert_output, "weight_and_reduce: expert_output"),
      .topk_weights = arrays.in(topk_weights, "weight_and_reduce: topk_weights"),
      .topk_ids = arrays.in(topk_ids, "weight_and_reduce: topk_ids"),
      .expert_map = arrays.in(expert_map, "weight_and_reduce: expert_map"),
      .apply_router_weight_on_input = apply_router_weight_on_input};
  const TensorView& rows = arguments.expert_output;
  const std::int64_t num_tokens =
      arguments.topk_ids.num_dims() == 2 ? arguments.topk_ids.shape(0) : 0;
  nb::object result = nb::borrow(out);
  if (out.is_none() && !is_no_op && rows.num_dims() > 0) {
    result = nb::cast(arrays.allocate(rows.dtype(), {num_tokens, rows.shape(rows.num_dims() - 1)}));
  }
  const TensorView output = arrays.out(result, "weight_and_reduce: out");
  PyTensor workspace;
  std::span<std::byte> scratch;
  const Stream stream = arrays.stream();
  if (stream.device().is_cuda() && policy.kind == WeightAndReduceKind::kNaiveBatched &&
      rows.num_dims() == 3) {
    const std::size_t bytes = weight_and_reduce_workspace_bytes(
        policy, num_tokens, arguments.topk_ids.shape(1), rows.shape(0));
    workspace = arrays.allocate(DType::kU8, {static_cast<std::int64_t>(bytes)});
    scratch = {workspace.view.as<std::byte>(), bytes};
  }
  without_gil([&] { weight_and_reduce(policy, arguments, output, stream, scratch); });
  return is_no_op && out.is_none() ? nb::borrow(expert_output) : result;
}

}  // namespace

void bind_reduce(nb::module_& m) {
  m.def("weight_and_reduce", &reduce, nb::arg("expert_output"),
        nb::arg("topk_weights").none() = nb::none(), nb::arg("topk_ids").none() = nb::none(),
        nb::kw_only(), nb::arg("kind") = "contiguous", nb::arg("rank") = 0,
        nb::arg("skips_padding") = false, nb::arg("expert_map").none() = nb::none(),
        nb::arg("apply_router_weight_on_input") = false, nb::arg("out").none() = nb::none(),
        nb::arg("stream").none() = nb::none(),
        nb::sig("def weight_and_reduce(expert_output: Array, topk_weights: Array | None = None, "
                "topk_ids: Array | None = None, *, kind: Literal['delegate', 'no_op', "
                "'contiguous', 'naive_batched'] = 'contiguous', rank: int = 0, skips_padding: bool "
                "= False, expert_map: Array | None = None, apply_router_weight_on_input: bool = "
                "False, out: Array | None = None, stream: StreamLike = None) -> Tensor"),
        "[T, H]: weighs the expert rows of each token and sums them (vLLM's TopKWeightAndReduce "
        "classes).\n\n"
        "contiguous     expert_output [T, K, H]; its rows are weighed IN PLACE, rounded, then "
        "summed\n"
        "naive_batched  expert_output [L, C, H]; an expert's tokens, ascending, fill its first "
        "rows;\n"
        "               local expert e is expert rank * L + e\n"
        "no_op          rows are final: returns expert_output, or copies it into `out`\n"
        "delegate       an error: the prepare/finalize object chooses");
}

}  // namespace switchyard::python

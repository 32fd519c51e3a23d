// SPDX-License-Identifier: Apache-2.0

#include "switchyard/router.h"

#include <string>

#include "core/fail.h"
#include "gil.h"
#include "module.h"
#include "names.h"
#include "tensors.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

namespace switchyard::python {
namespace {

PyTensor logits_of(nb::handle hidden_array, nb::handle gate_array) {
  Arrays arrays;
  const TensorView hidden = arrays.in(hidden_array, "router_logits: hidden");
  const TensorView gate = arrays.in(gate_array, "router_logits: gate");
  if (hidden.num_dims() != 2 || gate.num_dims() != 2) {
    fail(Errc::kInvalidArgument,
         "router_logits: hidden is {} and gate {}, must be [T, H] and [E, H]", hidden.describe(),
         gate.describe());
  }
  PyTensor logits = arrays.allocate(DType::kF32, {hidden.shape(0), gate.shape(0)});
  without_gil([&] { router_logits(hidden, gate, logits.view); });
  return logits;
}

nb::tuple select(nb::handle logits_array, std::int32_t num_topk, nb::handle bias_array,
                 const std::string& scoring, bool norm_topk_prob, float routed_scaling_factor,
                 const std::string& group_selection, std::int32_t num_groups,
                 std::int32_t topk_groups, bool bias_on_logits, float norm_min, float jitter) {
  Arrays arrays;
  const TensorView logits = arrays.in(logits_array, "select_experts: logits");
  const TensorView bias = arrays.in(bias_array, "select_experts: bias");
  if (logits.num_dims() != 2)
    fail(Errc::kInvalidArgument, "select_experts: logits are {}, must be [T, E]",
         logits.describe());
  require(num_topk >= 1, Errc::kInvalidArgument,
          "select_experts: num_topk is {}, must be at least 1", num_topk);
  const RouterConfig config{.num_experts = static_cast<std::int32_t>(logits.shape(1)),
                            .num_topk = num_topk,
                            .scoring = enum_from<Scoring>(scoring),
                            .norm_topk_prob = norm_topk_prob,
                            .routed_scaling_factor = routed_scaling_factor,
                            .group_selection = enum_from<GroupSelection>(group_selection),
                            .num_groups = num_groups,
                            .topk_groups = topk_groups,
                            .norm_min = norm_min,
                            .bias_on_logits = bias_on_logits,
                            .jitter = jitter};
  PyTensor ids = arrays.allocate(DType::kI32, {logits.shape(0), num_topk});
  PyTensor weights = arrays.allocate(DType::kF32, {logits.shape(0), num_topk});
  without_gil([&] { select_experts(config, logits, bias, ids.view, weights.view); });
  return nb::make_tuple(std::move(ids), std::move(weights));
}

}  // namespace

void bind_router(nb::module_& m) {
  m.def("router_logits", &logits_of, nb::arg("hidden"), nb::arg("gate"),
        nb::sig("def router_logits(hidden: Array, gate: Array) -> Tensor"),
        "f32 [T, E]: hidden [T, H] times gate [E, H] transposed, the same bits on every machine. "
        "CPUs only.");
  m.def(
      "select_experts", &select, nb::arg("logits"), nb::arg("num_topk"), nb::kw_only(),
      nb::arg("bias").none() = nb::none(), nb::arg("scoring") = "softmax",
      nb::arg("norm_topk_prob") = false, nb::arg("routed_scaling_factor") = 1.0f,
      nb::arg("group_selection") = "none", nb::arg("num_groups") = 1, nb::arg("topk_groups") = 1,
      nb::arg("bias_on_logits") = false, nb::arg("norm_min") = 0.0f, nb::arg("jitter") = 0.01f,
      nb::sig(
          "def select_experts(logits: Array, num_topk: int, *, bias: Array | None = None, scoring: "
          "Literal['softmax', 'sigmoid', 'sparse_mixer'] = 'softmax', norm_topk_prob: bool = "
          "False, "
          "routed_scaling_factor: float = 1.0, group_selection: Literal['none', 'max', 'top2_sum'] "
          "= 'none', num_groups: int = 1, topk_groups: int = 1, bias_on_logits: bool = False, "
          "norm_min: float = 0.0, jitter: float = 0.01) -> tuple[Tensor, Tensor]"),
      "(topk_ids i32 [T, K], topk_weights f32 [T, K]), best first, from f32 logits [T, E]. CPUs "
      "only.\n"
      "bias      f32 [E], added to the scores for the choice only; with bias_on_logits (gpt-oss) "
      "to\n"
      "          the logits\n"
      "norm_min  norm_topk_prob divides by no less (Ernie-4.5)\n"
      "jitter    of sparse_mixer (PhiMoE: router_jitter_noise)");
}

}  // namespace switchyard::python

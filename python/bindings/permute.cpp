// SPDX-License-Identifier: Apache-2.0
//
// permute and its inverse, and the helpers around them. On a GPU the buffer has room for any
// routing, because only the GPU knows the counts.

#include "switchyard/permute.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "switchyard/scale_layout.h"

#include "core/fail.h"
#include "exchange.h"
#include "gil.h"
#include "module.h"
#include "names.h"
#include "tensors.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

namespace switchyard::python {
namespace {

struct PyPermuted {
  PyTensor x;
  nb::object scales;  ///< Tensor or None
  PyTensor m_indices;
  PyTensor inv_perm;
  PyTensor first_row;
  PyTensor expert_num_tokens;
};

struct PermuteArguments {
  TensorView x;
  TensorView scales;
  TensorView topk_ids;
  std::int32_t num_local_experts = 0;
  PermuteOptions options;
  PermuteMemory memory;
};

// On the host: exactly as many rows as there are.
PyPermuted permute_on_host(PermuteArguments& args, Arrays& arrays) {
  auto made = std::make_shared<Permuted>(without_gil([&] {
    return permute(args.x, args.scales, args.topk_ids, args.num_local_experts, args.options,
                   args.memory);
  }));
  // One scale for the tensor is the caller's memory, and so may the rows be.
  const auto owner =
      std::make_shared<std::pair<std::shared_ptr<Permuted>, std::shared_ptr<const void>>>(
          made, keep_all(arrays.take_held()));
  const auto tensor = [&](const TensorView& view) { return PyTensor{view, owner}; };
  const PermutePlan& plan = made->plan;
  const auto num_experts = static_cast<std::int64_t>(plan.first_row.size());
  return {tensor(made->x),
          tensor_or_none(made->scales, owner, Stream::host()),
          tensor(plan.m_indices),
          tensor(plan.inv_perm),
          tensor(TensorView::of(plan.first_row.data(), {num_experts})),
          tensor(TensorView::of(plan.expert_num_tokens.data(), {num_experts}))};
}

PyTensor allocate_packed(const PermuteArguments& args, Arrays& arrays, std::int64_t num_rows) {
  const std::int64_t num = args.scales.shape(1);
  const DType dtype = args.memory.packs_scales ? DType::kI32 : args.scales.dtype();
  const std::int64_t columns = args.memory.packs_scales ? (num + 3) / 4 : num;
  PyTensor memory =
      arrays.allocate(dtype, {num_scale_elements(args.memory.scale_layout, num_rows, columns)});
  memory.view = view_scales(memory.view.data(), dtype, args.memory.scale_layout, num_rows, columns,
                            memory.view.device());
  return memory;
}

PyPermuted permute_on_gpu(PermuteArguments& args, Arrays& arrays, Stream stream) {
  const std::int64_t tokens = args.topk_ids.shape(0), topk = args.topk_ids.shape(1);
  const std::int64_t experts = args.num_local_experts;
  const std::int64_t rows = args.memory.x.has_value()
                                ? args.memory.x.shape(0)
                                : compute_aligned_m(tokens, topk, experts, args.options.alignment);
  PyPermuted made{args.memory.x.has_value()
                      ? PyTensor{args.memory.x, keep_all(arrays.take_held()), stream}
                      : arrays.allocate(args.x.dtype(), {rows, args.x.shape(1)}),
                  nb::none(),
                  arrays.allocate(DType::kI32, {rows}),
                  arrays.allocate(DType::kI32, {tokens, topk}),
                  arrays.allocate(DType::kI64, {experts}),
                  arrays.allocate(DType::kI32, {experts})};
  TensorView scattered;
  if (args.scales.has_value()) {
    PyTensor scales = allocate_packed(args, arrays, rows);
    scattered = scales.view;
    made.scales = nb::cast(std::move(scales));
  }
  const auto bytes = static_cast<std::int64_t>(ep_scatter_workspace_bytes(tokens, topk, experts));
  const PyTensor workspace = arrays.allocate(DType::kU8, {bytes});
  const ScatterOutputs outputs{.x = made.x.view,
                               .scales = scattered,
                               .m_indices = made.m_indices.view,
                               .inv_perm = made.inv_perm.view,
                               .first_row = made.first_row.view,
                               .expert_num_tokens = made.expert_num_tokens.view};
  without_gil([&] {
    ep_scatter(args.x, args.scales, args.topk_ids, args.options, outputs, stream,
               {workspace.view.as<std::byte>(), static_cast<std::size_t>(bytes)});
  });
  return made;
}

PyPermuted permute_rows(nb::handle x, nb::handle topk_ids, std::int32_t num_local_experts,
                        nb::handle scales, nb::handle expert_map, nb::handle expert_num_tokens,
                        std::int64_t alignment, const std::string& compat_padding,
                        const std::string& scale_layout, bool packs_scales, nb::handle out,
                        nb::handle stream_argument) {
  Arrays arrays(stream_argument);
  PermuteArguments args{
      .x = arrays.in(x, "permute: x"),
      .scales = arrays.in(scales, "permute: scales"),
      .topk_ids = arrays.in(topk_ids, "permute: topk_ids"),
      .num_local_experts = num_local_experts,
      .options = {.expert_map = arrays.in(expert_map, "permute: expert_map"),
                  .expert_num_tokens = arrays.in(expert_num_tokens, "permute: expert_num_tokens"),
                  .alignment = alignment,
                  .compat_padding = enum_from<CompatPadding>(compat_padding)},
      .memory = {.scale_layout = enum_from<ScaleLayout>(scale_layout),
                 .packs_scales = packs_scales,
                 .x = arrays.out(out, "permute: out")}};
  if (args.x.num_dims() != 2 || args.topk_ids.num_dims() != 2) {
    fail(Errc::kInvalidArgument, "permute: x is {} and topk_ids {}, must be [T, H] and [T, K]",
         args.x.describe(), args.topk_ids.describe());
  }
  const Stream stream = arrays.stream();
  return stream.device().is_cpu() ? permute_on_host(args, arrays)
                                  : permute_on_gpu(args, arrays, stream);
}

nb::object allocate_output(Arrays& arrays, nb::handle out, const TensorView& rows,
                           std::int64_t num_tokens) {
  if (!out.is_none()) return nb::borrow(out);
  if (rows.num_dims() < 1)
    fail(Errc::kInvalidArgument, "output: rows are {}, must be [M, H]", rows.describe());
  return nb::cast(arrays.allocate(rows.dtype(), {num_tokens, rows.shape(rows.num_dims() - 1)}));
}

nb::object unpermute(nb::handle rows_array, nb::handle plan, nb::handle topk_weights,
                     nb::handle out, nb::handle stream_argument) {
  Arrays arrays(stream_argument);
  const TensorView rows = arrays.in(rows_array, "unpermute_and_reduce: expert_output");
  const nb::object places =
      nb::isinstance<PyPermuted>(plan) ? plan.attr("inv_perm") : nb::borrow(plan);
  const TensorView inv_perm = arrays.in(places, "unpermute_and_reduce: inv_perm");
  const TensorView weights = arrays.in(topk_weights, "unpermute_and_reduce: topk_weights");
  nb::object result = allocate_output(arrays, out, rows, inv_perm.shape(0));
  const TensorView output = arrays.out(result, "unpermute_and_reduce: out");
  const Stream stream = arrays.stream();
  without_gil([&] { unpermute_and_reduce(rows, inv_perm, weights, output, stream); });
  return result;
}

nb::object gather(nb::handle rows_array, nb::handle topk_ids, nb::handle topk_weights,
                  nb::handle inv_perm_array, nb::handle expert_map, nb::handle out,
                  nb::handle stream_argument) {
  Arrays arrays(stream_argument);
  const TensorView rows = arrays.in(rows_array, "ep_gather: expert_output");
  const TensorView ids = arrays.in(topk_ids, "ep_gather: topk_ids");
  const TensorView weights = arrays.in(topk_weights, "ep_gather: topk_weights");
  const TensorView inv_perm = arrays.in(inv_perm_array, "ep_gather: inv_perm");
  const TensorView map = arrays.in(expert_map, "ep_gather: expert_map");
  nb::object result = allocate_output(arrays, out, rows, ids.shape(0));
  const TensorView output = arrays.out(result, "ep_gather: out");
  const Stream stream = arrays.stream();
  without_gil([&] { ep_gather(rows, ids, weights, inv_perm, map, output, stream); });
  return result;
}

PyTensor count_tokens(nb::handle topk_ids, std::int32_t num_local_experts, nb::handle expert_map,
                      nb::handle stream_argument) {
  Arrays arrays(stream_argument);
  const TensorView ids = arrays.in(topk_ids, "count_expert_num_tokens: topk_ids");
  const TensorView map = arrays.in(expert_map, "count_expert_num_tokens: expert_map");
  PyTensor counts = arrays.allocate(DType::kI32, {num_local_experts});
  const Stream stream = arrays.stream();
  without_gil([&] { count_expert_num_tokens(ids, counts.view, map, stream); });
  return counts;
}

nb::object map_ids(nb::handle topk_ids, nb::handle expert_map, nb::handle out,
                   nb::handle stream_argument) {
  Arrays arrays(stream_argument);
  const TensorView ids = arrays.in(topk_ids, "apply_expert_map: topk_ids");
  const TensorView map = arrays.in(expert_map, "apply_expert_map: expert_map");
  nb::object result = nb::borrow(out);
  if (out.is_none()) {
    std::vector<std::int64_t> shape;
    for (int dim = 0; dim < ids.num_dims(); ++dim) shape.push_back(ids.shape(dim));
    result = nb::cast(arrays.allocate(ids.dtype(), shape, arrays.device()));
  }
  const TensorView local = arrays.out(result, "apply_expert_map: out");
  const Stream stream = arrays.stream();
  without_gil([&] { apply_expert_map(ids, map, local, stream); });
  return result;
}

void bind_permuted(nb::module_& m) {
  nb::class_<PyPermuted>(m, "Permuted",
                         "Rows grouped by expert, each group at a multiple of the alignment.")
      .def_ro("x", &PyPermuted::x, "[M, H]; rows without a token are undefined.")
      .def_ro("scales", &PyPermuted::scales,
              nb::for_getter(nb::sig("def scales(self) -> Tensor | None")),
              "[M, S], the given single scale, or None.")
      .def_ro("m_indices", &PyPermuted::m_indices,
              "i32 [M]: local expert of each row, -1 without a token.")
      .def_ro("inv_perm", &PyPermuted::inv_perm, "i32 [T, K]: row of each choice, -1 for none.")
      .def_ro("first_row", &PyPermuted::first_row, "i64 [L]: first row of each expert.")
      .def_ro("expert_num_tokens", &PyPermuted::expert_num_tokens, "i32 [L]: rows per expert.")
      .def(
          "expert_rows",
          [](const PyPermuted& self, nb::handle scheme, nb::handle tensor_scale) {
            Arrays arrays;
            const TensorView scale = arrays.in(tensor_scale, "expert_rows: tensor_scale");
            std::vector<nb::object> held = arrays.take_held();
            held.push_back(nb::cast(self, nb::rv_policy::copy));
            TensorView scales;
            if (!self.scales.is_none()) scales = nb::cast<const PyTensor&>(self.scales).view;
            return PyExpertRows{{.rows = self.x.view,
                                 .scales = scales,
                                 .scheme = scheme_from(scheme),
                                 .first_row = self.first_row.view,
                                 .num_rows = self.expert_num_tokens.view,
                                 .tensor_scale = scale},
                                keep_all(std::move(held)),
                                self.x.stream};
          },
          nb::arg("scheme") = "none", nb::arg("tensor_scale").none() = nb::none(),
          nb::sig("def expert_rows(self, scheme: SchemeLike = 'none', tensor_scale: Array | None = "
                  "None) -> ExpertRows"),
          "Input for experts.")
      .def("__repr__",
           [](const PyPermuted& self) { return "Permuted(" + self.x.view.describe() + ")"; });
}

}  // namespace

void bind_permute(nb::module_& m) {
  bind_permuted(m);
  m.attr("DEEP_GEMM_ALIGNMENT") = kDeepGemmAlignment;
  m.def(
      "permute", &permute_rows, nb::arg("x"), nb::arg("topk_ids"), nb::arg("num_local_experts"),
      nb::kw_only(), nb::arg("scales").none() = nb::none(),
      nb::arg("expert_map").none() = nb::none(), nb::arg("expert_num_tokens").none() = nb::none(),
      nb::arg("alignment") = kDeepGemmAlignment, nb::arg("compat_padding") = "none",
      nb::arg("scale_layout") = "row_major", nb::arg("packs_scales") = false,
      nb::arg("out").none() = nb::none(), nb::arg("stream").none() = nb::none(),
      nb::sig("def permute(x: Array, topk_ids: Array, num_local_experts: int, *, scales: Array | "
              "None = None, expert_map: Array | None = None, expert_num_tokens: Array | None = "
              "None, alignment: int = 128, compat_padding: Literal['none', 'owner'] = 'none', "
              "scale_layout: Literal['row_major', 'column_major', 'column_major_aligned'] = "
              "'row_major', packs_scales: bool = False, out: Array | None = None, stream: "
              "StreamLike = None) -> Permuted"),
      "Copies each row to the experts it is routed to, each expert's rows at a multiple of "
      "`alignment`.\n\n"
      "x             [T, H] any dtype, rows contiguous\n"
      "topk_ids      [T, K] i32 or i64; negative: none\n"
      "scales        [T, S] any dtype and strides, or [1]\n"
      "expert_map    i32 [E]: local index of each expert, or negative; None: ids are local\n"
      "packs_scales  e8m0 or u8 scales, four to an i32\n"
      "out           [M, H] memory for the rows; on GPUs M covers any routing (compute_aligned_m)");
  m.def("unpermute_and_reduce", &unpermute, nb::arg("expert_output"), nb::arg("permuted"),
        nb::arg("topk_weights").none() = nb::none(), nb::kw_only(),
        nb::arg("out").none() = nb::none(), nb::arg("stream").none() = nb::none(),
        nb::sig("def unpermute_and_reduce(expert_output: Array, permuted: Permuted | Array, "
                "topk_weights: Array | None = None, *, out: Array | None = None, stream: "
                "StreamLike = None) -> Tensor"),
        "[T, H]: the weighted sum of each token's rows, in f32, k ascending, rounded once.\n\n"
        "expert_output  [M, H] bf16, f16 or f32\n"
        "permuted       what permute returned, or its inv_perm, i32 [T, K]\n"
        "topk_weights   [T, K] f32; None: 1");
  m.def("ep_gather", &gather, nb::arg("expert_output"), nb::arg("topk_ids"),
        nb::arg("topk_weights").none(), nb::arg("inv_perm"),
        nb::arg("expert_map").none() = nb::none(), nb::arg("out").none() = nb::none(),
        nb::arg("stream").none() = nb::none(),
        nb::sig("def ep_gather(expert_output: Array, topk_ids: Array, topk_weights: Array | None, "
                "inv_perm: Array, expert_map: Array | None = None, out: Array | None = None, "
                "stream: StreamLike = None) -> Tensor"),
        "unpermute_and_reduce that leaves out choices whose mapped id is negative.");
  m.def("count_expert_num_tokens", &count_tokens, nb::arg("topk_ids"), nb::arg("num_local_experts"),
        nb::arg("expert_map").none() = nb::none(), nb::arg("stream").none() = nb::none(),
        nb::sig("def count_expert_num_tokens(topk_ids: Array, num_local_experts: int, expert_map: "
                "Array | None = None, stream: StreamLike = None) -> Tensor"),
        "i32 [L]: how many ids each local expert has.");
  m.def("apply_expert_map", &map_ids, nb::arg("topk_ids"), nb::arg("expert_map"),
        nb::arg("out").none() = nb::none(), nb::arg("stream").none() = nb::none(),
        nb::sig("def apply_expert_map(topk_ids: Array, expert_map: Array, out: Array | None = "
                "None, stream: StreamLike = None) -> Tensor"),
        "expert_map[topk_ids]; negative ids stay.");
  m.def(
      "compute_aligned_m",
      [](std::int64_t num_tokens, std::int64_t num_topk, std::int64_t num_local_experts,
         std::int64_t alignment) {
        return compute_aligned_m(num_tokens, num_topk, num_local_experts, alignment);
      },
      nb::arg("num_tokens"), nb::arg("num_topk"), nb::arg("num_local_experts"),
      nb::arg("alignment") = kDeepGemmAlignment, "M that suffices for any routing.");
}

}  // namespace switchyard::python

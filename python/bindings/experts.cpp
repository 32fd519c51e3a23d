// SPDX-License-Identifier: Apache-2.0
//
// Experts of the library, and experts that are Python functions.

#include "switchyard/experts.h"

#include <algorithm>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "config.h"
#include "core/fail.h"
#include "errors.h"
#include "gil.h"
#include "layer.h"
#include "module.h"
#include "names.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>

namespace switchyard::python {
namespace {

Activation activation_from(const std::string& name, float alpha, float beta, float limit) {
  if (name == "silu_mul") return activations::kSiluMul;
  if (name == "gpt_oss") return activations::kGptOss;
  require(name == "clamped_swiglu", Errc::kInvalidArgument,
          "activation: \"{}\", must be silu_mul, gpt_oss or clamped_swiglu", name);
  return {ActivationKind::kClampedSwiGlu, alpha, beta, limit};
}

PyExperts from_weights(nb::handle gate, nb::handle up, nb::handle down, const std::string& name,
                       const nb::kwargs& keywords) {
  Arrays arrays;
  ExpertWeights weights;
  weights.gate = arrays.in(gate, "experts: gate");
  weights.up = arrays.in(up, "experts: up");
  weights.down = arrays.in(down, "experts: down");
  const std::pair<const char*, TensorView*> tensors[] = {
      {"gate_scale", &weights.gate_scale}, {"up_scale", &weights.up_scale},
      {"down_scale", &weights.down_scale}, {"gate_alpha", &weights.gate_alpha},
      {"up_alpha", &weights.up_alpha},     {"down_alpha", &weights.down_alpha},
      {"gate_bias", &weights.gate_bias},   {"up_bias", &weights.up_bias},
      {"down_bias", &weights.down_bias}};
  ExpertOptions options;
  Device device;
  std::string activation = "silu_mul";
  float alpha = 1.0f, beta = 0.0f, limit = std::numeric_limits<float>::infinity();
  for (const auto& [key, value] : keywords) {
    const std::string word = nb::cast<std::string>(key);
    const auto* found = std::find_if(std::begin(tensors), std::end(tensors),
                                     [&](const auto& t) { return word == t.first; });
    if (found != std::end(tensors)) {
      *found->second = arrays.in(value, found->first);
    } else if (word == "block") {
      weights.block = {argument<std::int32_t>(value[0], "block[0]", "int"),
                       argument<std::int32_t>(value[1], "block[1]", "int")};
    } else if (word == "intermediate") {
      options.intermediate = scheme_from(value);
    } else if (word == "intermediate_scale") {
      options.intermediate_scale = arrays.in(value, "intermediate_scale");
    } else if (word == "activation") {
      activation = argument<std::string>(value, word, "str");
    } else if (word == "alpha") {
      alpha = argument<float>(value, word, "float");
    } else if (word == "beta") {
      beta = argument<float>(value, word, "float");
    } else if (word == "limit") {
      limit = argument<float>(value, word, "float");
    } else if (word == "device") {
      device = device_from(value);
    } else {
      auto known = known_keywords<>({"block", "intermediate", "intermediate_scale", "activation",
                                     "alpha", "beta", "limit", "device", "name"});
      for (const auto& [tensor, view] : tensors) known.push_back(tensor);
      fail_keyword("Experts", word, known);
    }
  }
  options.activation = activation_from(activation, alpha, beta, limit);
  return {Part<Experts>(without_gil([&] { return make_experts(name, weights, options, device); }))};
}

PyExperts from_function(nb::object function, const std::string& name, nb::handle device,
                        bool is_batch_invariant, bool expects_unquantized_inputs,
                        bool supports_packed_ue8m0_act_scales) {
  if (PyCallable_Check(function.ptr()) == 0)
    fail_type("from_function: function", function, "callable as (rows, output)");
  return {Part<Experts>(std::make_unique<PythonExperts>(
      std::move(function),
      PythonExperts::Facts{name, device_from(device), is_batch_invariant,
                           expects_unquantized_inputs, supports_packed_ue8m0_act_scales}))};
}

nb::object apply(const PyExperts& self, const PyExpertRows& rows, nb::handle out,
                 nb::handle stream_argument) {
  const auto experts = self.live();
  Arrays arrays(stream_argument);
  arrays.prefer(rows.stream);
  nb::object result = nb::borrow(out);
  if (out.is_none()) {
    std::vector<std::int64_t> shape;
    for (int dim = 0; dim < rows.rows.rows.num_dims(); ++dim)
      shape.push_back(rows.rows.rows.shape(dim));
    result = nb::cast(arrays.allocate(experts->output_dtype(), shape, experts->device()));
  }
  const TensorView output = arrays.out(result, "apply: out");
  const auto bytes = static_cast<std::int64_t>(experts->workspace_bytes(rows.rows.rows));
  const std::int64_t shape[] = {bytes};
  const PyTensor workspace = arrays.allocate(DType::kU8, shape, experts->device());
  const Stream stream = arrays.stream(experts->device());
  const CallMemory memory({experts.get()}, keep_all({nb::cast(rows), result}));
  without_gil([&] {
    experts->apply(rows.rows, output,
                   {workspace.view.as<std::byte>(), static_cast<std::size_t>(bytes)}, stream);
  });
  return result;
}

PyExpertRows rows_from(nb::handle rows, nb::handle num_rows, nb::handle first_row,
                       nb::handle scales, nb::handle scheme, nb::handle tensor_scale,
                       const std::string& scale_layout, nb::handle stream) {
  Arrays arrays(stream);
  ExpertRows made{.rows = arrays.in(rows, "ExpertRows: rows"),
                  .scales = arrays.in(scales, "ExpertRows: scales"),
                  .scheme = scheme_from(scheme),
                  .first_row = arrays.in(first_row, "ExpertRows: first_row"),
                  .num_rows = arrays.in(num_rows, "ExpertRows: num_rows"),
                  .tensor_scale = arrays.in(tensor_scale, "ExpertRows: tensor_scale"),
                  .scale_layout = enum_from<ScaleLayout>(scale_layout)};
  const Stream filled = arrays.stream();
  return {made, keep_all(arrays.take_held()), filled};
}

}  // namespace

CallMemory::CallMemory(std::initializer_list<Experts*> experts,
                       const std::shared_ptr<const void>& memory) {
  for (Experts* one : experts) {
    auto* python = dynamic_cast<PythonExperts*>(one);
    if (python != nullptr) outer_.emplace_back(python, std::exchange(python->memory_, memory));
  }
}

CallMemory::~CallMemory() {
  for (auto& [python, outer] : outer_) python->memory_ = std::move(outer);
}

void PythonExperts::apply(const ExpertRows& input, const TensorView& output, std::span<std::byte>,
                          Stream stream) {
  in_callback([&] {
    const nb::handle function(static_cast<PyObject*>(const_cast<void*>(function_.get())));
    function(PyExpertRows{input, memory_, stream}, PyTensor{output, memory_, stream});
  });
}

void bind_experts(nb::module_& m) {
  m.def("expert_rows", &rows_from, nb::arg("rows"), nb::arg("num_rows"),
        nb::arg("first_row").none() = nb::none(), nb::kw_only(),
        nb::arg("scales").none() = nb::none(), nb::arg("scheme") = "none",
        nb::arg("tensor_scale").none() = nb::none(), nb::arg("scale_layout") = "row_major",
        nb::arg("stream").none() = nb::none(),
        nb::sig(
            "def expert_rows(rows: Array, num_rows: Array, first_row: Array | None = None, *, "
            "scales: Array | None = None, scheme: SchemeLike = 'none', tensor_scale: Array | None "
            "= None, scale_layout: Literal['row_major', 'column_major', 'column_major_aligned', "
            "'swizzled'] = 'row_major', stream: StreamLike = None) -> ExpertRows"),
        "Input for Experts.apply from arrays.\n\n"
        "rows       [N, H] or [L, C, H]\n"
        "num_rows   i32 [L]: valid rows of each expert\n"
        "first_row  i64 [L]: first row of each expert");
  nb::class_<PyExperts>(
      m, "Experts",
      "The expert MLP over the rows that dispatch delivered: down(activation(gate(x), up(x))).")
      .def(
          "__init__",
          [](PyExperts* self, nb::handle gate, nb::handle up, nb::handle down,
             const std::string& name, const nb::kwargs& keywords) {
            new (self) PyExperts(from_weights(gate, up, down, name, keywords));
          },
          nb::arg("gate"), nb::arg("up"), nb::arg("down"), nb::arg("name") = "exact",
          nb::arg("options"),
          nb::sig(
              "def __init__(self, gate: Array, up: Array, down: Array, name: Literal['exact', "
              "'onednn', 'cublas', 'cutlass'] = 'exact', *, gate_scale: Array | None = None, "
              "up_scale: Array "
              "| None = None, down_scale: Array | None = None, block: tuple[int, int] = (128, "
              "128), gate_alpha: Array | None = None, up_alpha: Array | None = None, down_alpha: "
              "Array | None = None, gate_bias: Array | None = None, up_bias: Array | None = None, "
              "down_bias: Array | None = None, intermediate: SchemeLike = 'none', "
              "intermediate_scale: Array | None = None, activation: Literal['silu_mul', 'gpt_oss', "
              "'clamped_swiglu'] = 'silu_mul', alpha: float = 1.0, beta: float = 0.0, limit: float "
              "= float('inf'), device: DeviceLike = 'cpu') -> None"),
          "Weights are host memory, copied once.\n\n"
          "gate, up  [L, I, H] bf16, f16, f32, e4m3, i8 or e2m1; any strides\n"
          "down      [L, H, I]\n"
          "*_scale   [L, cdiv(rows, block[0]), cdiv(columns, block[1])]\n"
          "*_alpha   [L] f32; *_bias [L, I], down_bias [L, H]")
      .def_static("from_function", &from_function, nb::arg("function"), nb::kw_only(),
                  nb::arg("name") = "python", nb::arg("device") = "cpu",
                  nb::arg("is_batch_invariant") = false,
                  nb::arg("expects_unquantized_inputs") = false,
                  nb::arg("supports_packed_ue8m0_act_scales") = false,
                  nb::sig("def from_function(function: Callable[[ExpertRows, Tensor], object], *, "
                          "name: str = 'python', device: DeviceLike = 'cpu', is_batch_invariant: "
                          "bool = False, expects_unquantized_inputs: bool = False, "
                          "supports_packed_ue8m0_act_scales: bool = False) -> Experts"),
                  "Experts of your own: function(rows, output) writes output, bf16 of the shape of "
                  "rows.rows, at the places of\n"
                  "the valid rows. On GPUs it works in rows.stream and does not wait.")
      .def_prop_ro(
          "name", [](const PyExperts& self) { return std::string(self.live()->name()); },
          "For messages and reports.")
      .def_prop_ro(
          "device", [](const PyExperts& self) { return self.live()->device(); }, "Where they work.")
      .def_prop_ro(
          "is_batch_invariant",
          [](const PyExperts& self) { return self.live()->is_batch_invariant(); },
          "Whether a row's result never depends on the other rows.")
      .def("apply", &apply, nb::arg("rows"), nb::arg("out").none() = nb::none(),
           nb::arg("stream").none() = nb::none(),
           nb::sig("def apply(self, rows: ExpertRows, out: Array | None = None, stream: StreamLike "
                   "= None) -> Tensor"),
           "bf16, or f32 with intermediate \"f32\", of the shape of the rows, at the places of the "
           "valid rows.")
      .def(
          "close", [](PyExperts& self) { self.part.drop(); }, "Frees them.");
}

}  // namespace switchyard::python

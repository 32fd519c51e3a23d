// SPDX-License-Identifier: Apache-2.0
//
// Schemes, quantize and dequantize.

#include <optional>
#include <string>
#include <utility>

#include "switchyard/quant.h"
#include "switchyard/scale_layout.h"

#include "config.h"
#include "core/fail.h"
#include "dtypes.h"
#include "gil.h"
#include "module.h"
#include "names.h"
#include "tensors.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>

namespace switchyard {

template <>
inline constexpr auto kFields<QuantScheme> = std::tuple{
    field("dtype", &QuantScheme::dtype, "Of the elements."),
    field("group", &QuantScheme::group, "Which elements share a scale."),
    field("block", &QuantScheme::block, "Elements that share a scale; for group \"block\" only."),
    field("rule", &QuantScheme::rule, "How a scale follows from the largest magnitude."),
    field("scale_format", &QuantScheme::scale_format, "How scales are stored."),
};

}  // namespace switchyard

namespace switchyard::python {
namespace {

PyTensor allocate_scales(Arrays& arrays, const QuantScheme& scheme, ScaleLayout layout,
                         std::int64_t num_rows, std::int64_t hidden) {
  const DType dtype = scale_dtype(scheme);
  if (scheme.group == ScaleGroup::kTensor) return arrays.allocate(dtype, {1});
  const std::int64_t num = num_scales(scheme, hidden);
  PyTensor memory = arrays.allocate(dtype, {num_scale_elements(layout, num_rows, num)});
  memory.view = view_scales(memory.view.data(), dtype, layout, num_rows, num, memory.view.device());
  return memory;
}

void require_rows(const TensorView& x, const char* function) {
  if (x.num_dims() == 2) return;
  fail(Errc::kInvalidArgument, "{}: {}, must be rows [T, H]", function, x.describe());
}

nb::tuple quantize_rows(nb::handle x_array, nb::handle scheme_name, nb::handle static_scale,
                        std::optional<float> scale_ub, const std::string& scale_layout,
                        nb::handle out, nb::handle stream_argument) {
  Arrays arrays(stream_argument);
  const QuantScheme scheme = scheme_from(scheme_name);
  const auto layout = enum_from<ScaleLayout>(scale_layout);
  const TensorView x = arrays.in(x_array, "quantize: x");
  require_rows(x, "quantize");
  const TensorView scale = arrays.in(static_scale, "quantize: static_scale");
  nb::object q_object = nb::none(), scales_object = nb::none();
  if (!out.is_none()) {
    if (!nb::isinstance<nb::tuple>(out) || nb::len(out) != 2)
      fail_type("quantize: out", out, "a pair (q, scales)");
    q_object = nb::borrow(out[0]);
    scales_object = nb::borrow(out[1]);
  } else {
    q_object = nb::cast(arrays.allocate(stored_dtype(scheme, x.dtype()), {x.shape(0), x.shape(1)}));
    if (scheme.is_quantized() && !scheme.is_simulated()) {
      scales_object = nb::cast(allocate_scales(arrays, scheme, layout, x.shape(0), x.shape(1)));
    }
  }
  const TensorView q = arrays.out(q_object, "quantize: q");
  const TensorView scales = arrays.out(scales_object, "quantize: scales");
  const Stream stream = arrays.stream();
  without_gil([&] { quantize(x, scheme, q, scales, stream, scale, scale_ub); });
  return nb::make_tuple(q_object, scales_object);
}

nb::object dequantize_rows(nb::handle q_array, nb::handle scales_array, nb::handle scheme_name,
                           nb::handle dtype, nb::handle tensor_scale, nb::handle out,
                           nb::handle stream_argument) {
  Arrays arrays(stream_argument);
  const QuantScheme scheme = scheme_from(scheme_name);
  const TensorView q = arrays.in(q_array, "dequantize: q");
  const TensorView scales = arrays.in(scales_array, "dequantize: scales");
  const TensorView global = arrays.in(tensor_scale, "dequantize: tensor_scale");
  nb::object y_object = nb::borrow(out);
  if (out.is_none()) {
    std::vector<std::int64_t> shape;
    for (int dim = 0; dim < q.num_dims(); ++dim) shape.push_back(q.shape(dim));
    y_object = nb::cast(arrays.allocate(dtype_from(dtype), shape, arrays.device()));
  }
  const TensorView y = arrays.out(y_object, "dequantize: out");
  const Stream stream = arrays.stream();
  without_gil([&] { dequantize(q, scales, scheme, y, stream, global); });
  return y_object;
}

std::string name_or_fields(const QuantScheme& scheme) {
  std::string name = name_of(scheme);
  if (scheme == QuantScheme{scheme.dtype} && scheme.dtype != DType::kBF16)
    name = name_of(scheme.dtype);
  return named_scheme(name) ? "QuantScheme('" + name + "')" : describe(scheme, "QuantScheme");
}

}  // namespace

void bind_quantize(nb::module_& m) {
  nb::class_<QuantScheme> scheme =
      ConfigClass<QuantScheme>(m, "QuantScheme",
                               "How elements and their scales are stored. Where a scheme is asked "
                               "for, its name does too.")
          .done(&name_or_fields);
  scheme
      .def(
          "__init__",
          [](QuantScheme* self, const std::string& name) {
            new (self) QuantScheme(scheme_from(nb::str(name.c_str())));
          },
          nb::arg("name"), "One of the named schemes, for example \"fp8_block\".")
      .def_prop_ro(
          "name", [](const QuantScheme& self) { return name_of(self); }, "As in docs/schemes.md.")
      .def_prop_ro("is_quantized", &QuantScheme::is_quantized,
                   "Whether rows have scales, or are simulated.")
      .def_prop_ro("needs_tensor_scale", &QuantScheme::needs_tensor_scale,
                   "Whether the caller gives the scale of the tensor: nvfp4.")
      .def_prop_ro(
          "scale_dtype", [](const QuantScheme& self) { return name_of(scale_dtype(self)); },
          "Of a stored scale.")
      .def(
          "num_scales",
          [](const QuantScheme& self, std::int64_t hidden) { return num_scales(self, hidden); },
          nb::arg("hidden"), "S, the scales of a row of `hidden` elements.");
  m.def("quantize", &quantize_rows, nb::arg("x"), nb::arg("scheme"), nb::kw_only(),
        nb::arg("static_scale").none() = nb::none(), nb::arg("scale_ub").none() = nb::none(),
        nb::arg("scale_layout") = "row_major", nb::arg("out").none() = nb::none(),
        nb::arg("stream").none() = nb::none(),
        nb::sig("def quantize(x: Array, scheme: SchemeLike, *, static_scale: Array | None = None, "
                "scale_ub: float | None = None, scale_layout: Literal['row_major', 'column_major', "
                "'column_major_aligned'] = 'row_major', out: tuple[Array, Array | None] | None = "
                "None, stream: StreamLike = None) -> tuple[Tensor, Tensor | None]"),
        "Quantizes rows and returns (q, scales).\n\n"
        "x             [T, H] bf16, f16 or f32\n"
        "q             [T, H] of the scheme's dtype; e2m1 has two elements per byte\n"
        "scales        [T, S] of scheme.scale_dtype, [1] for one scale per tensor, None without "
        "scales\n"
        "static_scale  f32, instead of a computed scale: [1] or [T, 1]; nvfp4 needs it, [1]\n"
        "scale_ub      upper bound on the largest magnitude of a row, for fp8_token\n"
        "out           (q, scales) to write into, instead of new tensors");
  m.def("dequantize", &dequantize_rows, nb::arg("q"), nb::arg("scales").none(), nb::arg("scheme"),
        nb::kw_only(), nb::arg("dtype") = "bf16", nb::arg("tensor_scale").none() = nb::none(),
        nb::arg("out").none() = nb::none(), nb::arg("stream").none() = nb::none(),
        nb::sig("def dequantize(q: Array, scales: Array | None, scheme: SchemeLike, *, dtype: "
                "DTypeLike = 'bf16', tensor_scale: Array | None = None, out: Array | None = None, "
                "stream: StreamLike = None) -> Tensor"),
        "The inverse: y [T, H] (or [L, C, H]) = element * scale in f32, rounded once to `dtype`.\n"
        "tensor_scale  f32 [1], nvfp4 only: the scale that it was quantized with");
}

}  // namespace switchyard::python

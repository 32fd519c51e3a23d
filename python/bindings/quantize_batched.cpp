// SPDX-License-Identifier: Apache-2.0
//
// Quantization of batches of experts and of the activation between the expert GEMMs, and scales in
// other layouts.

#include "switchyard/quantize_batched.h"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "switchyard/scale_layout.h"

#include "core/fail.h"
#include "gil.h"
#include "module.h"
#include "names.h"
#include "tensors.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

namespace switchyard::python {
namespace {

// New scales [T, S] or [L, C, S] of S scales per row.
PyTensor allocate_scales(Arrays& arrays, DType dtype, ScaleLayout layout,
                         const std::vector<std::int64_t>& rows, std::int64_t num_scales,
                         Device device) {
  const bool is_batch = rows.size() == 2;
  const std::int64_t num_experts = is_batch ? rows[0] : 1;
  const std::int64_t elements = num_scale_elements(layout, rows.back(), num_scales);
  const std::int64_t shape[] = {num_experts * elements};
  PyTensor memory = arrays.allocate(dtype, shape, device);
  memory.view = is_batch
                    ? view_batched_scales(memory.view.data(), dtype, layout, num_experts, rows[1],
                                          num_scales, device)
                    : view_scales(memory.view.data(), dtype, layout, rows[0], num_scales, device);
  return memory;
}

// (q, scales): those of the caller, or new ones for rows of `width` elements.
struct Quantized {
  Quantized(Arrays& arrays, const char* function, nb::handle out, const QuantScheme& scheme,
            ScaleLayout layout, const TensorView& x, std::int64_t width, bool takes_scale)
      : is_scale_given(takes_scale) {
    if (!out.is_none()) {
      if (!nb::isinstance<nb::tuple>(out) || nb::len(out) != 2)
        fail_type(std::string(function) + ": out", out, "a pair (q, scales)");
      q_object = nb::borrow(out[0]);
      scales_object = nb::borrow(out[1]);
    } else {
      allocate(arrays, scheme, layout, x, width);
    }
    q = arrays.out(q_object, function);
    scales = arrays.out(scales_object, function);
  }

  void allocate(Arrays& arrays, const QuantScheme& scheme, ScaleLayout layout, const TensorView& x,
                std::int64_t width) {
    std::vector<std::int64_t> rows;
    for (int dim = 0; dim + 1 < x.num_dims(); ++dim) rows.push_back(x.shape(dim));
    std::vector<std::int64_t> shape = rows;
    shape.push_back(width);
    q_object = nb::cast(arrays.allocate(stored_dtype(scheme, x.dtype()), shape, x.device()));
    const DType dtype = scale_dtype(scheme);
    if (scheme.group == ScaleGroup::kTensor) {
      if (is_scale_given) return;
      const std::int64_t ones[] = {rows[0], 1, 1};
      scales_object = nb::cast(arrays.allocate(dtype, ones, x.device()));
    } else if (num_scales(scheme, width) > 0) {
      scales_object = nb::cast(
          allocate_scales(arrays, dtype, layout, rows, num_scales(scheme, width), x.device()));
    }
  }

  nb::tuple pair() const { return nb::make_tuple(q_object, scales_object); }

  bool is_scale_given;  ///< that of schemes with one per tensor is an argument
  nb::object q_object = nb::none();
  nb::object scales_object = nb::none();
  TensorView q;
  TensorView scales;
};

void require_dims(const char* function, const TensorView& x, int num_dims, const char* what) {
  require(x.num_dims() == num_dims, Errc::kInvalidArgument, "{}: x is {}, must be {}", function,
          x.describe(), what);
}

nb::tuple quantize_batch(nb::handle x_array, nb::handle counts_array, nb::handle scheme_name,
                         nb::handle static_scale, const std::string& scale_layout, nb::handle out,
                         nb::handle stream_argument) {
  constexpr const char* kName = "quantize_batched";
  Arrays arrays(stream_argument);
  const QuantScheme scheme = scheme_from(scheme_name);
  const TensorView x = arrays.in(x_array, "quantize_batched: x");
  const TensorView counts = arrays.in(counts_array, "quantize_batched: counts");
  const TensorView scale = arrays.in(static_scale, "quantize_batched: static_scale");
  require_dims(kName, x, 3, "[L, C, H]");
  const Quantized made(arrays, kName, out, scheme, enum_from<ScaleLayout>(scale_layout), x,
                       x.shape(2), false);
  const Stream stream = arrays.stream(x.device());
  without_gil([&] { quantize_batched(x, counts, scheme, made.q, made.scales, stream, scale); });
  return made.pair();
}

nb::tuple silu_mul(nb::handle x_array, nb::handle scheme_name, nb::handle counts_array, bool fused,
                   nb::handle tensor_scale, const std::string& scale_layout, nb::handle out,
                   nb::handle stream_argument) {
  constexpr const char* kName = "silu_mul_quantize";
  Arrays arrays(stream_argument);
  const QuantScheme scheme = scheme_from(scheme_name);
  const TensorView x = arrays.in(x_array, "silu_mul_quantize: x");
  const TensorView counts = arrays.in(counts_array, "silu_mul_quantize: counts");
  const TensorView scale = arrays.in(tensor_scale, "silu_mul_quantize: tensor_scale");
  const bool is_batch = counts.has_value();
  require_dims(kName, x, is_batch ? 3 : 2, is_batch ? "[L, T, 2I] with counts" : "[T, 2I]");
  const Quantized made(arrays, kName, out, scheme, enum_from<ScaleLayout>(scale_layout), x,
                       x.shape(x.num_dims() - 1) / 2, true);
  const Stream stream = arrays.stream(x.device());
  const ActivationScale rule = fused ? ActivationScale::kFused : ActivationScale::kScheme;
  without_gil([&] {
    if (is_batch) {
      silu_mul_quantize_batched(x, counts, scheme, made.q, made.scales, stream, rule, scale);
    } else {
      silu_mul_quantize(x, scheme, made.q, made.scales, stream, rule, scale);
    }
  });
  return made.pair();
}

nb::object relayout(nb::handle scales, const std::string& scale_layout,
                    std::optional<std::int64_t> num_rows, std::optional<std::int64_t> num_scales,
                    nb::handle out) {
  constexpr const char* kName = "relayout_scales";
  Arrays arrays;
  const TensorView from = arrays.in(scales, "relayout_scales: scales");
  const auto layout = enum_from<ScaleLayout>(scale_layout);
  nb::object result = nb::borrow(out);
  if (out.is_none()) {
    const int num_dims = from.num_dims();
    const bool is_tiled = num_dims == 5 || num_dims == 6;
    require(is_tiled || num_dims == 2 || num_dims == 3, Errc::kInvalidArgument,
            "{}: scales are {}, must be [T, S], [L, C, S] or tiles", kName, from.describe());
    require(!is_tiled || (num_rows && num_scales), Errc::kInvalidArgument,
            "{}: scales are tiles without num_rows and num_scales, must come with both", kName);
    std::vector<std::int64_t> rows;
    if (num_dims == 3 || num_dims == 6) rows.push_back(from.shape(0));
    rows.push_back(num_rows ? *num_rows : from.shape(num_dims - 2));
    result = nb::cast(allocate_scales(arrays, from.dtype(), layout, rows,
                                      num_scales ? *num_scales : from.shape(num_dims - 1),
                                      from.device()));
  }
  const TensorView to = arrays.out(result, "relayout_scales: out");
  without_gil([&] { relayout_scales(from, to); });
  return result;
}

}  // namespace

void bind_quantize_batched(nb::module_& m) {
  m.def(
      "quantize_batched", &quantize_batch, nb::arg("x"), nb::arg("counts"), nb::arg("scheme"),
      nb::kw_only(), nb::arg("static_scale").none() = nb::none(),
      nb::arg("scale_layout") = "row_major", nb::arg("out").none() = nb::none(),
      nb::arg("stream").none() = nb::none(),
      nb::sig("def quantize_batched(x: Array, counts: Array, scheme: SchemeLike, *, "
              "static_scale: Array | None = None, scale_layout: Literal['row_major', "
              "'column_major', 'column_major_aligned', 'swizzled'] = 'row_major', out: "
              "tuple[Array, Array | None] | None = None, stream: StreamLike = None) -> "
              "tuple[Tensor, Tensor | None]"),
      "Quantizes the first counts[e] rows of each expert and returns (q, scales). Other rows of q "
      "stay as they are,\ntheir scales become 0.\n\n"
      "x             [L, C, H] bf16, f16 or f32\n"
      "counts        [L] i32, from 0 to C\n"
      "q             [L, C, H] of the scheme's dtype\n"
      "scales        [L, C, S], [L, 1, 1] for one scale per tensor, None without scales; "
      "swizzled: tiles\n"
      "static_scale  f32 [1] or [L]: of schemes with one scale per tensor; nvfp4 needs it\n"
      "out           (q, scales) to write into, instead of new tensors");
  m.def("silu_mul_quantize", &silu_mul, nb::arg("x"), nb::arg("scheme"), nb::kw_only(),
        nb::arg("counts").none() = nb::none(), nb::arg("fused") = false,
        nb::arg("tensor_scale").none() = nb::none(), nb::arg("scale_layout") = "row_major",
        nb::arg("out").none() = nb::none(), nb::arg("stream").none() = nb::none(),
        nb::sig("def silu_mul_quantize(x: Array, scheme: SchemeLike, *, counts: Array | None = "
                "None, fused: bool = False, tensor_scale: Array | None = None, scale_layout: "
                "Literal['row_major', 'column_major', 'column_major_aligned', 'swizzled'] = "
                "'row_major', out: tuple[Array, Array | None] | None = None, stream: StreamLike = "
                "None) -> tuple[Tensor, Tensor | None]"),
        "silu(gate) * up in f32, quantized: returns (q, scales). With counts, of the first "
        "counts[e] rows of each expert.\n\n"
        "x             [T, 2 I] bf16, f16 or f32, gate first; with counts [L, T, 2 I]\n"
        "counts        [L] i32, from 0 to T\n"
        "q             [T, I] or [L, T, I] of the scheme's dtype\n"
        "scales        [T, S] or [L, T, S]; None for one scale per tensor and without scales\n"
        "fused         scales as vLLM's fused kernel computes them, for blocks of e4m3\n"
        "tensor_scale  f32 [1]: the scale of schemes with one per tensor, the global scale of "
        "nvfp4\n"
        "out           (q, scales) to write into, instead of new tensors");
  m.def("relayout_scales", &relayout, nb::arg("scales"), nb::arg("scale_layout") = "row_major",
        nb::kw_only(), nb::arg("num_rows").none() = nb::none(),
        nb::arg("num_scales").none() = nb::none(), nb::arg("out").none() = nb::none(),
        nb::sig("def relayout_scales(scales: Array, scale_layout: Literal['row_major', "
                "'column_major', 'column_major_aligned', 'swizzled'] = 'row_major', *, num_rows: "
                "int | None = None, num_scales: int | None = None, out: Array | None = None) -> "
                "Tensor"),
        "Scales in another layout, in host memory. Returns `out`, or a new tensor.\n\n"
        "scales      [T, S] or [L, C, S] of any strides, or the tiles of swizzled scales, "
        "[.., 32, 4, 4]\n"
        "num_rows    T, or C in a batch, where tiles do not tell it; num_scales: S\n"
        "out         rows or tiles, written; decides the layout instead of scale_layout");
}

}  // namespace switchyard::python

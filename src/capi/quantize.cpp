// SPDX-License-Identifier: Apache-2.0

#include "switchyard/c/quantize.h"

#include <optional>
#include <utility>

#include "switchyard/quantize_batched.h"
#include "switchyard/scale_layout.h"

#include "capi/memory.h"
#include "capi/names.h"
#include "capi/objects.h"
#include "capi/sized.h"

namespace switchyard::capi {
namespace {

QuantScheme required_scheme(const char* name) { return scheme_of(text(name, "scheme"), "scheme"); }

void quantize_rows(const TensorView& x, const QuantScheme& scheme, const sy_quantize_options* given,
                   const TensorView& q, const TensorView& scales, void* stream) {
  const sy_quantize_options options = read_sized(given, "options");
  const std::optional<float> scale_ub =
      options.scale_ub == nullptr ? std::nullopt : std::optional(*options.scale_ub);
  quantize(x, scheme, q, scales, stream_of(stream, x.device()),
           optional_view(options.static_scale, "static_scale"), scale_ub);
}

// A new array for the scales of `num_rows` rows; NULL where there are none.
sy_array* new_scales(const QuantScheme& scheme, ScaleLayout layout, std::int64_t num_rows,
                     std::int64_t hidden, const Memory& memory) {
  if (!scheme.is_quantized() || scheme.is_simulated()) return nullptr;
  const DType dtype = scale_dtype(scheme);
  if (scheme.group == ScaleGroup::kTensor) return give<sy_array>(memory.make(dtype, {1}));
  check(layout != ScaleLayout::kSwizzled,
        "scale_layout is \"swizzled\", must be row_major, column_major or column_major_aligned; "
        "convert with "
        "sy_scales_relayout");
  const std::int64_t width = num_scales(scheme, hidden);
  Tensor flat = memory.make(dtype, {num_scale_elements(layout, num_rows, width)});
  const TensorView view = view_scales(flat.data(), dtype, layout, num_rows, width, flat.device());
  return give<sy_array>(std::move(flat), view);
}

// Takes new arrays back unless they were kept.
class NewArrays {
 public:
  sy_array* q = nullptr;
  sy_array* scales = nullptr;

  NewArrays() = default;
  NewArrays(const NewArrays&) = delete;
  NewArrays& operator=(const NewArrays&) = delete;
  ~NewArrays() {
    destroy(current_function(), q);
    destroy(current_function(), scales);
  }
};

}  // namespace
}  // namespace switchyard::capi

using namespace switchyard;
using namespace switchyard::capi;

extern "C" {

sy_status sy_scheme_describe(const char* scheme, int64_t hidden, sy_scheme_info* info) {
  return call(__func__, [&] {
    const QuantScheme of = required_scheme(scheme);
    sy_scheme_info to{};
    to.num_scales = num_scales(of, hidden);
    to.element_dtype = to_dlpack(stored_dtype(of));
    to.scale_dtype = to_dlpack(scale_dtype(of));
    to.block = of.block;
    to.needs_tensor_scale = of.needs_tensor_scale();
    write_sized(info, "info", to);
  });
}

sy_status sy_quantize(const sy_tensor* x, const char* scheme, const sy_quantize_options* options,
                      const sy_tensor* q, const sy_tensor* scales, void* stream) {
  return call(__func__, [&] {
    quantize_rows(view_of(x, "x"), required_scheme(scheme), options, view_of(q, "q"),
                  optional_view(scales, "scales"), stream);
  });
}

sy_status sy_quantize_new(const sy_tensor* x, const char* scheme, const char* scale_layout,
                          const sy_quantize_options* options, const sy_allocator* allocator,
                          void* stream, sy_array** q, sy_array** scales) {
  return call(__func__, [&] {
    sy_array*& new_q = out(q, "q");
    sy_array*& new_s = out(scales, "scales");
    const TensorView rows = view_of(x, "x");
    check(rows.num_dims() == 2, "x is {}, must be [T, H]", rows.describe());
    const QuantScheme of = required_scheme(scheme);
    const Memory memory(allocator, rows.device(), stream);
    NewArrays arrays;
    arrays.q =
        give<sy_array>(memory.make(stored_dtype(of, rows.dtype()), {rows.shape(0), rows.shape(1)}));
    arrays.scales = new_scales(of, named(scale_layout, "scale_layout", ScaleLayout::kRowMajor),
                               rows.shape(0), rows.shape(1), memory);
    const TensorView scale_view =
        arrays.scales == nullptr ? TensorView{} : use(arrays.scales)->view;
    quantize_rows(rows, of, options, use(arrays.q)->view, scale_view, stream);
    new_q = std::exchange(arrays.q, nullptr);
    new_s = std::exchange(arrays.scales, nullptr);
  });
}

sy_status sy_dequantize(const sy_tensor* q, const sy_tensor* scales, const char* scheme,
                        const sy_tensor* tensor_scale, const sy_tensor* y, void* stream) {
  return call(__func__, [&] {
    const TensorView elements = view_of(q, "q");
    dequantize(elements, optional_view(scales, "scales"), required_scheme(scheme), view_of(y, "y"),
               stream_of(stream, elements.device()), optional_view(tensor_scale, "tensor_scale"));
  });
}

sy_status sy_quantize_batched(const sy_tensor* x, const sy_tensor* counts, const char* scheme,
                              const sy_tensor* static_scale, const sy_tensor* q,
                              const sy_tensor* scales, void* stream) {
  return call(__func__, [&] {
    const TensorView rows = view_of(x, "x");
    quantize_batched(rows, view_of(counts, "counts"), required_scheme(scheme), view_of(q, "q"),
                     optional_view(scales, "scales"), stream_of(stream, rows.device()),
                     optional_view(static_scale, "static_scale"));
  });
}

sy_status sy_silu_mul_quantize(const sy_tensor* x, const sy_tensor* counts, const char* scheme,
                               bool is_fused, const sy_tensor* tensor_scale, const sy_tensor* q,
                               const sy_tensor* scales, void* stream) {
  return call(__func__, [&] {
    const TensorView rows = view_of(x, "x");
    const TensorView to = view_of(q, "q");
    const TensorView to_scales = optional_view(scales, "scales");
    const TensorView scale = optional_view(tensor_scale, "tensor_scale");
    const Stream where = stream_of(stream, rows.device());
    const ActivationScale rule = is_fused ? ActivationScale::kFused : ActivationScale::kScheme;
    const QuantScheme of = required_scheme(scheme);
    if (counts == nullptr) return silu_mul_quantize(rows, of, to, to_scales, where, rule, scale);
    silu_mul_quantize_batched(rows, view_of(counts, "counts"), of, to, to_scales, where, rule,
                              scale);
  });
}

sy_status sy_scales_relayout(const sy_tensor* from, const sy_tensor* to) {
  return call(__func__, [&] { relayout_scales(view_of(from, "from"), view_of(to, "to")); });
}

}  // extern "C"

// SPDX-License-Identifier: Apache-2.0
//
// deep_ep.ElasticBuffer.

#include "compat.h"
#include "compat/deep_ep/elastic_buffer.h"
#include "errors.h"

#include <nanobind/stl/vector.h>

namespace switchyard::python {
namespace {

using deep_ep::ElasticBuffer;
using deep_ep::EPHandle;
using PyElastic = PyCompat<ElasticBuffer>;
using PyElasticDispatched = PyResult<ElasticBuffer, deep_ep::ElasticDispatched>;
using PyElasticCombined = PyResult<ElasticBuffer, deep_ep::ElasticCombined>;
constexpr const char* kName = "ElasticBuffer";

// Keywords of a dispatch without a handle; `sf` and topk_weights are arguments of both.
deep_ep::ElasticDispatchOptions options_from(const nb::dict& keywords) {
  deep_ep::ElasticDispatchOptions options;
  const auto set = [&](const char* name, auto& member, const char* type) {
    member = argument<std::remove_reference_t<decltype(member)>>(keywords[name], name, type);
  };
  set("num_max_tokens_per_rank", options.num_max_tokens_per_rank, "int");
  set("expert_alignment", options.expert_alignment, "int");
  set("do_expand", options.do_expand, "bool");
  set("do_cpu_sync", options.do_cpu_sync, "bool");
  set("do_zero_padding", options.do_zero_padding, "bool");
  set("use_tma_aligned_col_major_sf", options.use_tma_aligned_col_major_sf, "bool");
  return options;  // do_handle_copy stays: the caller's ids need not outlive the handle
}

PyElasticDispatched dispatch(const PyElastic& self, nb::handle x, nb::handle topk_idx,
                             std::int32_t num_experts, nb::handle sf, nb::handle topk_weights,
                             const nb::dict& keywords, nb::handle stream_argument) {
  const auto buffer = self.live(kName);
  const Exclusive call = self.call(kName);
  Arrays arrays(stream_argument);
  const TensorView tokens = arrays.in(x, "dispatch: x");
  const TensorView ids = arrays.in(topk_idx, "dispatch: topk_idx");
  deep_ep::ElasticDispatchOptions options = options_from(keywords);
  options.sf = arrays.in(sf, "dispatch: sf");
  options.topk_weights = arrays.in(topk_weights, "dispatch: topk_weights");
  const Stream stream = arrays.stream(self.device);
  return {buffer,
          without_gil([&] { return buffer->dispatch(tokens, ids, num_experts, stream, options); }),
          stream};
}

PyElasticDispatched dispatch_again(const PyElastic& self, nb::handle x,
                                   const PyElasticDispatched& earlier, nb::handle sf,
                                   nb::handle topk_weights, bool do_zero_padding,
                                   nb::handle stream_argument) {
  const auto buffer = self.live(kName);
  const Exclusive call = self.call(kName);
  Arrays arrays(stream_argument);
  const TensorView tokens = arrays.in(x, "dispatch: x");
  const TensorView scales = arrays.in(sf, "dispatch: sf");
  const TensorView weights = arrays.in(topk_weights, "dispatch: topk_weights");
  const Stream stream = arrays.stream(self.device);
  return {buffer, without_gil([&] {
            return buffer->dispatch(tokens, earlier->handle, stream, scales, weights,
                                    do_zero_padding);
          }),
          stream};
}

// (rank, token, k) of each row
nb::tuple row_sources(const PyElastic& self, const PyElasticDispatched& dispatched,
                      nb::handle stream_argument) {
  const auto buffer = self.live(kName);
  const Exclusive call = self.call(kName);
  Arrays arrays(stream_argument);
  arrays.prefer(dispatched.stream());
  const Stream stream = arrays.stream(self.device);
  deep_ep::ElasticRowSources made =
      without_gil([&] { return buffer->row_sources(dispatched->handle, stream); });
  return nb::make_tuple(PyTensor::of(std::move(made.rank), stream),
                        PyTensor::of(std::move(made.token), stream),
                        PyTensor::of(std::move(made.k), stream));
}

PyElasticCombined combine(const PyElastic& self, nb::handle x,
                          const PyElasticDispatched& dispatched, nb::handle topk_weights,
                          const std::vector<nb::object>& bias, nb::handle stream) {
  return combine_rows<deep_ep::ElasticCombined>(kName, self, x, dispatched, topk_weights, bias,
                                                stream);
}

void bind_results(nb::module_& m) {
  using Self = PyElasticDispatched;
  const auto tensor = [](auto member) {
    return [member](const Self& self) { return self.tensor((*self->handle).*member); };
  };
  const auto value = [](auto member) {
    return [member](const Self& self) { return (*self->handle).*member; };
  };
  nb::class_<Self>(m, "ElasticDispatched")
      .def_prop_ro("recv_x", [](const Self& self) { return self.tensor(self->recv_x); })
      .def_prop_ro("recv_sf", [](const Self& self) { return self.tensor(self->recv_sf); })
      .def_prop_ro("recv_topk_idx",
                   [](const Self& self) { return self.tensor(self->recv_topk_idx); })
      .def_prop_ro("recv_topk_weights",
                   [](const Self& self) { return self.tensor(self->recv_topk_weights); })
      .def_prop_ro("event", &event_of<ElasticBuffer, deep_ep::ElasticDispatched>)
      .def_prop_ro("num_max_tokens_per_rank", value(&EPHandle::num_max_tokens_per_rank))
      .def_prop_ro("num_recv_tokens", value(&EPHandle::num_recv_tokens))
      .def_prop_ro("num_expanded_tokens", value(&EPHandle::num_expanded_tokens))
      .def_prop_ro("num_recv_tokens_per_expert_list",
                   value(&EPHandle::num_recv_tokens_per_expert_list))
      .def_prop_ro("topk_idx", tensor(&EPHandle::topk_idx))
      .def_prop_ro("psum_num_recv_tokens_per_scaleup_rank",
                   tensor(&EPHandle::psum_num_recv_tokens_per_scaleup_rank))
      .def_prop_ro("psum_num_recv_tokens_per_expert",
                   tensor(&EPHandle::psum_num_recv_tokens_per_expert))
      .def_prop_ro("num_unaligned_recv_tokens_per_expert",
                   tensor(&EPHandle::num_unaligned_recv_tokens_per_expert))
      .def_prop_ro("recv_src_metadata", tensor(&EPHandle::recv_src_metadata))
      .def_prop_ro("dst_buffer_slot_idx", tensor(&EPHandle::dst_buffer_slot_idx));
  nb::class_<PyElasticCombined>(m, "ElasticCombined")
      .def_prop_ro("combined_x",
                   [](const PyElasticCombined& self) { return self.tensor(self->combined_x); })
      .def_prop_ro(
          "combined_topk_weights",
          [](const PyElasticCombined& self) { return self.tensor(self->combined_topk_weights); })
      .def_prop_ro("event", &event_of<ElasticBuffer, deep_ep::ElasticCombined>);
}

}  // namespace

void bind_compat_elastic(nb::module_& m) {
  bind_results(m);
  nb::class_<PyElastic>(m, "ElasticCalls",
                        "What is behind switchyard.compat.deep_ep.ElasticBuffer.")
      .def(
          "__init__",
          [](PyElastic* self, const PyGroup& group, nb::handle device, std::int64_t max_tokens,
             bool allow_multiple_reduction) {
            new (self) PyElastic(make_compat<ElasticBuffer>(
                group, device,
                deep_ep::ElasticBufferOptions{
                    .num_max_tokens_per_rank = max_tokens,
                    .allow_multiple_reduction = allow_multiple_reduction}));
          },
          nb::arg("group"), nb::arg("device"), nb::arg("max_tokens"),
          nb::arg("allow_multiple_reduction"),
          nb::sig("def __init__(self, group: Group, device: DeviceLike, max_tokens: int, "
                  "allow_multiple_reduction: bool) -> None"))
      .def("dispatch", &dispatch, nb::arg("x"), nb::arg("topk_idx"), nb::arg("num_experts"),
           nb::arg("sf").none(), nb::arg("topk_weights").none(), nb::arg("options"),
           nb::arg("stream").none() = nb::none())
      .def("dispatch_again", &dispatch_again, nb::arg("x"), nb::arg("earlier"),
           nb::arg("sf").none(), nb::arg("topk_weights").none(), nb::arg("do_zero_padding"),
           nb::arg("stream").none() = nb::none())
      .def("row_sources", &row_sources, nb::arg("dispatched"),
           nb::arg("stream").none() = nb::none())
      .def("combine", &combine, nb::arg("x"), nb::arg("dispatched"), nb::arg("topk_weights").none(),
           nb::arg("bias"), nb::arg("stream").none() = nb::none())
      .def("close", [](PyElastic& self) { self.object.close(kName); });
}

}  // namespace switchyard::python

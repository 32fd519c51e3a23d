// SPDX-License-Identifier: Apache-2.0
//
// The low-latency calls of deep_ep.Buffer. Arguments of a call with a hook live until it has run.

#include "compat.h"
#include "compat/deep_ep/low_latency_buffer.h"

namespace switchyard::python {
namespace {

using deep_ep::LowLatencyBuffer;
using PyLowLatency = PyCompat<LowLatencyBuffer>;
constexpr const char* kName = "Buffer";

struct PyLowLatencyDispatched {
  PyResult<LowLatencyBuffer, deep_ep::LowLatencyDispatched> result;
  Busy busy;
};

struct PyLowLatencyCombined {
  PyResult<LowLatencyBuffer, deep_ep::LowLatencyCombined> result;
  nb::object combined_x;
  Busy busy;
};

template <typename T>
void run_hook(const T& self) {
  self.result.require_own_process(kName);
  const Exclusive call{self.busy, kName};
  if (!self.result->hook) return;
  without_gil([&] { self.result->hook(); });
  self.result.release_arguments();
}

PyLowLatencyDispatched dispatch(const PyLowLatency& self, nb::handle x, nb::handle topk_idx,
                                std::int64_t max_tokens, std::int32_t num_experts, bool use_fp8,
                                bool round_scale, bool use_ue8m0, bool use_nvfp4,
                                nb::handle x_global_scale, nb::handle topk_weights,
                                nb::handle recv_stats, nb::handle wait_stats, bool async_finish,
                                bool return_recv_hook, bool sets_source_info,
                                nb::handle stream_argument) {
  const auto buffer = self.live(kName);
  const Exclusive call = self.call(kName);
  Arrays arrays(stream_argument);
  const TensorView tokens = arrays.in(x, "low_latency_dispatch: x");
  const TensorView ids = arrays.in(topk_idx, "low_latency_dispatch: topk_idx");
  deep_ep::LowLatencyDispatchOptions options{.use_fp8 = use_fp8,
                                             .round_scale = round_scale,
                                             .use_ue8m0 = use_ue8m0,
                                             .use_nvfp4 = use_nvfp4,
                                             .async_finish = async_finish,
                                             .return_recv_hook = return_recv_hook,
                                             .sets_source_info = sets_source_info};
  options.x_global_scale = arrays.in(x_global_scale, "low_latency_dispatch: x_global_scale");
  options.topk_weights = arrays.in(topk_weights, "low_latency_dispatch: topk_weights");
  options.cumulative_local_expert_recv_stats =
      arrays.out(recv_stats, "low_latency_dispatch: cumulative_local_expert_recv_stats");
  options.dispatch_wait_recv_cost_stats =
      arrays.out(wait_stats, "low_latency_dispatch: dispatch_wait_recv_cost_stats");
  const Stream stream = arrays.stream(self.device);
  PyLowLatencyDispatched made{{buffer, without_gil([&] {
                                 return buffer->low_latency_dispatch(tokens, ids, max_tokens,
                                                                     num_experts, stream, options);
                               }),
                               stream},
                              self.object.busy()};
  if (return_recv_hook) made.result.hold(arrays.take_held());
  return made;
}

PyLowLatencyCombined combine(const PyLowLatency& self, nb::handle x, nb::handle topk_idx,
                             nb::handle topk_weights, const PyLowLatencyDispatched& dispatched,
                             bool use_logfmt, bool zero_copy, nb::handle out, bool async_finish,
                             bool return_recv_hook, nb::handle stream_argument) {
  const auto buffer = self.live(kName);
  const Exclusive call = self.call(kName);
  Arrays arrays(stream_argument);
  const std::shared_ptr<deep_ep::LowLatencyHandle>& handle = dispatched.result->handle;
  TensorView rows = arrays.in(x, "low_latency_combine: x");
  if (zero_copy) rows = buffer->get_next_low_latency_combine_buffer(handle);
  const TensorView ids = arrays.in(topk_idx, "low_latency_combine: topk_idx");
  const TensorView weights = arrays.in(topk_weights, "low_latency_combine: topk_weights");
  nb::object output = nb::borrow(out);
  if (out.is_none()) {
    const std::int64_t num_tokens = ids.num_dims() > 0 ? ids.shape(0) : 0;
    const std::int64_t shape[] = {num_tokens, handle->hidden};
    output = nb::cast(arrays.allocate(DType::kBF16, shape, self.device));
  }
  const deep_ep::LowLatencyCombineOptions options{
      .zero_copy = zero_copy,
      .use_logfmt = use_logfmt,
      .out = arrays.out(output, "low_latency_combine: out"),
      .async_finish = async_finish,
      .return_recv_hook = return_recv_hook};
  const Stream stream = arrays.stream(self.device);
  PyLowLatencyCombined made{{buffer, without_gil([&] {
                               return buffer->low_latency_combine(rows, ids, weights, handle,
                                                                  stream, options);
                             }),
                             stream},
                            output,
                            self.object.busy()};
  if (return_recv_hook) made.result.hold(arrays.take_held());
  return made;
}

nb::object combine_buffer(const PyLowLatency& self, const PyLowLatencyDispatched& dispatched) {
  const auto buffer = self.live(kName);
  const Exclusive call = self.call(kName);
  return dispatched.result.tensor(
      buffer->get_next_low_latency_combine_buffer(dispatched.result->handle));
}

void set_source_info(const PyLowLatency& self, const PyLowLatencyDispatched& dispatched,
                     nb::handle stream_argument) {
  const auto buffer = self.live(kName);
  const Exclusive call = self.call(kName);
  Arrays arrays(stream_argument);
  arrays.prefer_torch();
  const Stream stream = arrays.stream(self.device);
  without_gil([&] { buffer->set_source_info(dispatched.result->handle, stream); });
}

void bind_dispatched(nb::module_& m) {
  using Self = PyLowLatencyDispatched;
  const auto rows = [](TensorView deep_ep::LowLatencyRows::*member) {
    return [member](const Self& self) { return self.result.tensor(self.result->rows().*member); };
  };
  nb::class_<Self>(m, "LowLatencyDispatched")
      .def_prop_ro("recv_x", rows(&deep_ep::LowLatencyRows::recv_x))
      .def_prop_ro("scales", rows(&deep_ep::LowLatencyRows::scales))
      .def_prop_ro("recv_count", rows(&deep_ep::LowLatencyRows::recv_count))
      .def_prop_ro("recv_topk_weights", rows(&deep_ep::LowLatencyRows::recv_topk_weights))
      .def_prop_ro("recv_src_rank", rows(&deep_ep::LowLatencyRows::recv_src_rank))
      .def_prop_ro(
          "src_info",
          [](const Self& self) { return self.result.tensor(self.result->handle->src_info); })
      .def_prop_ro(
          "layout_range",
          [](const Self& self) { return self.result.tensor(self.result->handle->layout_range); })
      .def_prop_ro("event",
                   [](const Self& self) {
                     return PyEvent{self.result->event, self.result.stream().device()};
                   })
      .def("receive", &run_hook<Self>);
  nb::class_<PyLowLatencyCombined>(m, "LowLatencyCombined")
      .def_prop_ro("combined_x", [](const PyLowLatencyCombined& self) { return self.combined_x; })
      .def_prop_ro("event",
                   [](const PyLowLatencyCombined& self) {
                     return PyEvent{self.result->event, self.result.stream().device()};
                   })
      .def("receive", &run_hook<PyLowLatencyCombined>);
}

}  // namespace

void bind_compat_low_latency(nb::module_& m) {
  bind_dispatched(m);
  nb::class_<PyLowLatency>(m, "LowLatencyBuffer",
                           "The low-latency half of switchyard.compat.deep_ep.Buffer.")
      .def(
          "__init__",
          [](PyLowLatency* self, const PyGroup& group, nb::handle device) {
            new (self) PyLowLatency(make_compat<LowLatencyBuffer>(group, device));
          },
          nb::arg("group"), nb::arg("device"),
          nb::sig("def __init__(self, group: Group, device: DeviceLike) -> None"))
      .def("dispatch", &dispatch, nb::arg("x"), nb::arg("topk_idx"), nb::arg("max_tokens"),
           nb::arg("num_experts"), nb::kw_only(), nb::arg("use_fp8"), nb::arg("round_scale"),
           nb::arg("use_ue8m0"), nb::arg("use_nvfp4"), nb::arg("x_global_scale").none(),
           nb::arg("topk_weights").none(), nb::arg("recv_stats").none(),
           nb::arg("wait_stats").none(), nb::arg("async_finish"), nb::arg("return_recv_hook"),
           nb::arg("sets_source_info"), nb::arg("stream").none() = nb::none())
      .def("set_source_info", &set_source_info, nb::arg("dispatched"),
           nb::arg("stream").none() = nb::none())
      .def("combine", &combine, nb::arg("x"), nb::arg("topk_idx"), nb::arg("topk_weights"),
           nb::arg("dispatched"), nb::kw_only(), nb::arg("use_logfmt"), nb::arg("zero_copy"),
           nb::arg("out").none(), nb::arg("async_finish"), nb::arg("return_recv_hook"),
           nb::arg("stream").none() = nb::none())
      .def("combine_buffer", &combine_buffer, nb::arg("dispatched"))
      .def("close", [](PyLowLatency& self) { self.object.close(kName); });
  m.def("low_latency_rdma_size_hint", &LowLatencyBuffer::get_low_latency_rdma_size_hint,
        nb::arg("max_tokens"), nb::arg("hidden"), nb::arg("num_ranks"), nb::arg("num_experts"));
}

}  // namespace switchyard::python

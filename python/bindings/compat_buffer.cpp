// SPDX-License-Identifier: Apache-2.0
//
// The high-throughput calls of deep_ep.Buffer.

#include "compat.h"
#include "compat/deep_ep/buffer.h"

#include <nanobind/stl/vector.h>

namespace switchyard::python {
namespace {

using deep_ep::Buffer;
using PyBuffer = PyCompat<Buffer>;
using PyLayout = PyResult<Buffer, deep_ep::DispatchLayout>;
using PyBufferDispatched = PyResult<Buffer, deep_ep::BufferDispatched>;
using PyBufferCombined = PyResult<Buffer, deep_ep::BufferCombined>;
constexpr const char* kName = "Buffer";

PyLayout get_layout(const PyBuffer& self, nb::handle topk_idx, std::int32_t num_experts,
                    nb::handle stream_argument) {
  const auto buffer = self.live(kName);
  const Exclusive call = self.call(kName);
  Arrays arrays(stream_argument);
  const TensorView ids = arrays.in(topk_idx, "get_dispatch_layout: topk_idx");
  const Stream stream = arrays.stream(self.device);
  return {buffer,
          without_gil([&] { return buffer->get_dispatch_layout(ids, num_experts, stream); }),
          stream};
}

PyBufferDispatched dispatch(const PyBuffer& self, nb::handle x, nb::handle topk_idx,
                            std::int32_t num_experts, nb::handle x_scales, nb::handle topk_weights,
                            std::int64_t expert_alignment, std::int64_t num_worst_tokens,
                            nb::handle stream_argument) {
  const auto buffer = self.live(kName);
  const Exclusive call = self.call(kName);
  Arrays arrays(stream_argument);
  const TensorView tokens = arrays.in(x, "dispatch: x");
  const TensorView ids = arrays.in(topk_idx, "dispatch: topk_idx");
  const deep_ep::BufferDispatchOptions options{
      .x_scales = arrays.in(x_scales, "dispatch: x_scales"),
      .topk_weights = arrays.in(topk_weights, "dispatch: topk_weights"),
      .expert_alignment = expert_alignment,
      .num_worst_tokens = num_worst_tokens};
  const Stream stream = arrays.stream(self.device);
  return {buffer,
          without_gil([&] { return buffer->dispatch(tokens, ids, num_experts, stream, options); }),
          stream};
}

PyBufferDispatched dispatch_again(const PyBuffer& self, nb::handle x,
                                  const PyBufferDispatched& earlier, nb::handle x_scales,
                                  nb::handle stream_argument) {
  const auto buffer = self.live(kName);
  const Exclusive call = self.call(kName);
  Arrays arrays(stream_argument);
  const TensorView tokens = arrays.in(x, "dispatch: x");
  const TensorView scales = arrays.in(x_scales, "dispatch: x_scales");
  const Stream stream = arrays.stream(self.device);
  return {buffer,
          without_gil([&] { return buffer->dispatch(tokens, earlier->handle, stream, scales); }),
          stream};
}

// (recv_src_idx, num_recv_tokens_per_rank, is_token_in_rank)
nb::tuple handle_tensors(const PyBuffer& self, const PyBufferDispatched& dispatched,
                         nb::handle stream_argument) {
  const auto buffer = self.live(kName);
  const Exclusive call = self.call(kName);
  Arrays arrays(stream_argument);
  arrays.prefer(dispatched.stream());
  const Stream stream = arrays.stream(self.device);
  deep_ep::HandleTensors made =
      without_gil([&] { return buffer->handle_tensors(dispatched->handle, stream); });
  return nb::make_tuple(PyTensor::of(std::move(made.recv_src_idx), stream),
                        PyTensor::of(std::move(made.num_recv_tokens_per_rank), stream),
                        PyTensor::of(std::move(made.is_token_in_rank), stream));
}

PyBufferCombined combine(const PyBuffer& self, nb::handle x, const PyBufferDispatched& dispatched,
                         nb::handle topk_weights, const std::vector<nb::object>& bias,
                         nb::handle stream) {
  return combine_rows<deep_ep::BufferCombined>(kName, self, x, dispatched, topk_weights, bias,
                                               stream);
}

void bind_results(nb::module_& m) {
  nb::class_<PyLayout>(m, "BufferLayout")
      .def_prop_ro("num_tokens_per_rank",
                   [](const PyLayout& self) { return self.tensor(self->num_tokens_per_rank); })
      .def_prop_ro("num_tokens_per_expert",
                   [](const PyLayout& self) { return self.tensor(self->num_tokens_per_expert); })
      .def_prop_ro("is_token_in_rank",
                   [](const PyLayout& self) { return self.tensor(self->is_token_in_rank); })
      .def_prop_ro("event", &event_of<Buffer, deep_ep::DispatchLayout>);
  using Self = PyBufferDispatched;
  nb::class_<Self>(m, "BufferDispatched")
      .def_prop_ro("recv_x", [](const Self& self) { return self.tensor(self->recv_x); })
      .def_prop_ro("scales", [](const Self& self) { return self.tensor(self->recv_x_scales); })
      .def_prop_ro("recv_topk_idx",
                   [](const Self& self) { return self.tensor(self->recv_topk_idx); })
      .def_prop_ro("recv_topk_weights",
                   [](const Self& self) { return self.tensor(self->recv_topk_weights); })
      .def_prop_ro("counts", [](const Self& self) { return self->num_recv_tokens_per_expert_list; })
      .def_prop_ro("event", &event_of<Buffer, deep_ep::BufferDispatched>);
  nb::class_<PyBufferCombined>(m, "BufferCombined")
      .def_prop_ro("combined_x",
                   [](const PyBufferCombined& self) { return self.tensor(self->combined_x); })
      .def_prop_ro(
          "combined_topk_weights",
          [](const PyBufferCombined& self) { return self.tensor(self->combined_topk_weights); })
      .def_prop_ro("event", &event_of<Buffer, deep_ep::BufferCombined>);
}

}  // namespace

void bind_compat_buffer(nb::module_& m) {
  bind_results(m);
  nb::class_<PyBuffer>(m, "HighThroughputBuffer",
                       "The high-throughput half of switchyard.compat.deep_ep.Buffer.")
      .def(
          "__init__",
          [](PyBuffer* self, const PyGroup& group, nb::handle device, std::int64_t max_tokens,
             std::int32_t max_in_flight) {
            new (self) PyBuffer(
                make_compat<Buffer>(group, device,
                                    deep_ep::BufferOptions{.max_tokens_per_rank = max_tokens,
                                                           .max_in_flight = max_in_flight}));
          },
          nb::arg("group"), nb::arg("device"), nb::arg("max_tokens"), nb::arg("max_in_flight"),
          nb::sig("def __init__(self, group: Group, device: DeviceLike, max_tokens: int, "
                  "max_in_flight: int) -> None"))
      .def("get_layout", &get_layout, nb::arg("topk_idx"), nb::arg("num_experts"),
           nb::arg("stream").none() = nb::none())
      .def("dispatch", &dispatch, nb::arg("x"), nb::arg("topk_idx"), nb::arg("num_experts"),
           nb::kw_only(), nb::arg("x_scales").none(), nb::arg("topk_weights").none(),
           nb::arg("expert_alignment"), nb::arg("num_worst_tokens"),
           nb::arg("stream").none() = nb::none())
      .def("dispatch_again", &dispatch_again, nb::arg("x"), nb::arg("earlier"), nb::kw_only(),
           nb::arg("x_scales").none(), nb::arg("stream").none() = nb::none())
      .def("handle_tensors", &handle_tensors, nb::arg("dispatched"),
           nb::arg("stream").none() = nb::none())
      .def("combine", &combine, nb::arg("x"), nb::arg("dispatched"), nb::kw_only(),
           nb::arg("topk_weights").none(), nb::arg("bias"), nb::arg("stream").none() = nb::none())
      .def("close", [](PyBuffer& self) { self.object.close(kName); });
}

}  // namespace switchyard::python

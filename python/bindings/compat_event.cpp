// SPDX-License-Identifier: Apache-2.0

#include "compat.h"
#include "module.h"

namespace switchyard::python {

void bind_compat_event(nb::module_& m) {
  nb::class_<PyEvent>(m, "CompatEvent")
      .def(
          "__init__",
          [](PyEvent* self, nb::handle device, nb::handle stream) {
            const Device place = device_from(device);
            Arrays arrays(stream);
            arrays.prefer_torch();
            new (self) PyEvent{deep_ep::event_behind(arrays.stream(place)), place};
          },
          nb::arg("device") = "cpu", nb::arg("stream").none() = nb::none(),
          nb::sig("def __init__(self, device: DeviceLike = 'cpu', stream: StreamLike = None) -> "
                  "None"))
      .def(
          "wait",
          [](const PyEvent& self, nb::handle stream) {
            Arrays arrays(stream);
            arrays.prefer_torch();
            self.event.current_stream_wait(arrays.stream(self.device));
          },
          nb::arg("stream").none() = nb::none(),
          nb::sig("def wait(self, stream: StreamLike = None) -> None"));
}

void bind_compat(nb::module_& m) {
  bind_compat_event(m);
  bind_compat_low_latency(m);
  bind_compat_buffer(m);
  bind_compat_elastic(m);
  bind_compat_flashinfer(m);
}

}  // namespace switchyard::python

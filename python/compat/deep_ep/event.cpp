// SPDX-License-Identifier: Apache-2.0

#include "compat/deep_ep/event.h"

#include "core/fail.h"
#include "device/compat_rows.h"

namespace switchyard::deep_ep {

void EventOverlap::current_stream_wait(Stream stream) const {
  if (event_ == nullptr) return;
  require(stream.device().is_cuda(), Errc::kInvalidArgument,
          "current_stream_wait: the stream is the host's, must be of the GPU; the host waits with "
          "cudaStreamSynchronize");
  on_gpu::wait_event(event_, stream);
}

EventOverlap event_behind(Stream stream) {
  if (stream.device().is_cpu()) return {};
  return EventOverlap(on_gpu::record_event(stream));
}

}  // namespace switchyard::deep_ep

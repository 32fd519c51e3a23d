// SPDX-License-Identifier: Apache-2.0

#include "compat/deep_ep/low_latency_buffer.h"
#include "core/fail.h"

namespace switchyard::deep_ep {
namespace {

[[noreturn]] void refuse(const char* function) {
  fail(
      Errc::kNotSupported,
      "{}: ranks cannot be masked, because without their rows a result would look complete; a rank "
      "that does not come ends the group: destroy it and make one of the ranks that are left",
      function);
}

}  // namespace

void LowLatencyBuffer::low_latency_update_mask_buffer(int, bool) {
  refuse("low_latency_update_mask_buffer");
}

void LowLatencyBuffer::low_latency_query_mask_buffer(const TensorView&) {
  refuse("low_latency_query_mask_buffer");
}

void LowLatencyBuffer::low_latency_clean_mask_buffer() { refuse("low_latency_clean_mask_buffer"); }

}  // namespace switchyard::deep_ep

// SPDX-License-Identifier: Apache-2.0
//
// event.h: the value that calls return in place of a CUDA event.
#pragma once

#include "switchyard/export.h"

namespace switchyard::deep_ep {

/// Stands in for DeepEP's EventOverlap in ported code. CPUs have no streams: results are complete
/// when the call has returned or its hook has run.
struct EventOverlap {
  void current_stream_wait() const noexcept {}
};

}  // namespace switchyard::deep_ep

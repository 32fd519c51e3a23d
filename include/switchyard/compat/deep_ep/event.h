// SPDX-License-Identifier: Apache-2.0
//
// event.h: what calls return in place of a CUDA event.
#pragma once

#include "switchyard/export.h"

namespace switchyard::deep_ep {

/// Keeps the place of DeepEP's EventOverlap in ported code. There are no streams on CPUs: when a
/// call has returned, or its hook has run, its results are there.
struct EventOverlap {
  void current_stream_wait() const noexcept {}
};

}  // namespace switchyard::deep_ep

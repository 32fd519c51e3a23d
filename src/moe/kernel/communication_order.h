// SPDX-License-Identifier: Apache-2.0
//
// communication_order.h: what keeps kernels of micro-batches in different streams from waiting for
// each other across ranks. A kernel that waits for a peer may fill the GPU; if the peer's send
// stood behind such a kernel there, neither would end. In one order on every rank that cannot
// happen.
#pragma once

#include <functional>

#include "switchyard/stream.h"

namespace switchyard {

/// Calls `launch`, which puts a send or a receive into `stream`, behind those of the other
/// micro-batches of this rank so far. On CPUs and outside of micro-batches it is just called.
void launch_in_order(Stream stream, const std::function<void()>& launch);

}  // namespace switchyard

// SPDX-License-Identifier: Apache-2.0
//
// nccl_call.h: how NCCL is called here. Its calls wait for all ranks and know no deadline, so they
// run on a helper thread, and this rank waits for it as it waits for a peer. When that wait ends
// first, the thread keeps what it works on and releases it whenever NCCL lets go.
#pragma once

#include <functional>

#include "engine/control.h"

namespace switchyard {

/// Runs `work` on a thread with `device` current. Errors: of `work`, and of a wait for the peers.
void run_within_deadline(Control& control, int device, std::function<void()> work);

/// Before the first communicator. NVLS would take multicast objects that nothing here uses.
void turn_nvls_off();

}  // namespace switchyard

// SPDX-License-Identifier: Apache-2.0
//
// shm_engine.h: engine "shm": ranks are processes of one host. Windows and the control block are
// memfds, passed over Unix sockets, so nothing has a name. Each pair of ranks keeps its socket:
// when a process dies, the kernel closes it, and the other end sees that.
#pragma once

#include <memory>

#include "engine/registry.h"

namespace switchyard {

/// Collective. Errors: kTimeout (names the ranks that did not come), kPeerLost, kNotSupported
/// (ranks on several hosts), kInvalidArgument (ranks that disagree about the job), kOutOfMemory,
/// kSystem.
std::shared_ptr<Engine> join_shm(const JoinRequest& request);

}  // namespace switchyard

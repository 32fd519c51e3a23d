// SPDX-License-Identifier: Apache-2.0
//
// shm_engine.h: engine "shm": ranks are processes of one host. Windows and the control block are
// memfds, passed over Unix sockets, so nothing has a name. Each pair of ranks keeps its socket:
// when a process dies, the kernel closes it, and the other end sees that.
#pragma once

#include <memory>

#include "engine/engine.h"
#include "engine/meeting.h"

namespace switchyard {

/// Collective: meets the peers, unless they have met. Errors: kTimeout (names the ranks that did
/// not come), kPeerLost, kNotSupported (ranks on several hosts), kInvalidArgument (ranks that
/// disagree about the job), kOutOfMemory, kSystem.
std::shared_ptr<Engine> make_shm_engine(const GroupSpec& spec, std::unique_ptr<Meeting> meeting);

}  // namespace switchyard

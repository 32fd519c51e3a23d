// SPDX-License-Identifier: Apache-2.0
//
// remote_exit.h: the end of a process that has, or had, groups over TCP. It leaves the groups that
// it still has, so that nobody waits for it while it ends; and the server of a group whose rank 0
// it was goes on until the other ranks have left too.
#pragma once

#include <cstdint>
#include <memory>

#include "transport/store_server.h"

namespace switchyard {
class MemberLink;
class RemoteControl;
}  // namespace switchyard

namespace switchyard::remote_exit {

/// The group is left when the process ends, unless it is removed before.
void add(RemoteControl& group);
void remove(RemoteControl& group);

/// Keeps the server of a group that this rank has left. The end of the process waits for it, for
/// `exit_ms` at most.
void keep(std::shared_ptr<StoreServer> server, std::int64_t exit_ms);

/// Keeps the link of a group that this rank has left but still listens to, until the group is over.
/// Only the last link of the largest group reports the loss of the process.
void listen(std::shared_ptr<MemberLink> link);

/// Once MPI_Finalize has been registered to run at the end of the process: this comes before it.
void precede_mpi();

/// After MPI_Finalize: nobody has to learn any more when this process ends. A server waits until
/// the others have come as far.
void finish() noexcept;

/// What the end of the process does; for one that skips its exit handlers. Where it is called again
/// it waits no longer than the first call would have.
void run() noexcept;

}  // namespace switchyard::remote_exit

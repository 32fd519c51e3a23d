// SPDX-License-Identifier: Apache-2.0
//
// mpi_engine.h: engine "mpi": ranks are processes of any number of hosts. They agree over TCP
// connections of the library's own (remote_control.h), so a lost rank is found without MPI; their
// rows travel as messages over MPI. Ranks of one host can have windows among themselves.
#pragma once

#include <memory>

#include "engine/engine.h"
#include "engine/meeting.h"

namespace switchyard {

/// What a group wants of MPI.
struct MpiWish {
  bool needs_mpi = false;               ///< else a group without messages will do, for GPUs
  const int* fortran_handle = nullptr;  ///< of a communicator of the group's ranks; null: the world
};

/// Collective: meets the peers, unless they have met. Errors: as RemoteControl::join; kNotAvailable
/// where MPI is needed and a rank has none.
std::shared_ptr<Engine> make_mpi_engine(const GroupSpec& spec, std::unique_ptr<Meeting> meeting,
                                        const MpiWish& wish);

}  // namespace switchyard

// SPDX-License-Identifier: Apache-2.0
//
// group_from_mpi.h: the ranks of an MPI communicator, for code that does not include mpi.h. With an
// MPI_Comm at hand: switchyard/mpi.h.
#pragma once

#include <cstdint>

#include "switchyard/export.h"
#include "switchyard/group.h"

namespace switchyard {

/// The ranks of the communicator with this Fortran handle (MPI_Comm_c2f), in its order. The ranks
/// meet over it, so no address, store or secret is needed. The library uses a duplicate of it; the
/// caller may free the communicator once the call has returned, and calls MPI_Finalize after the
/// last copy of the group is gone.
///
/// MPI must be initialized, with MPI_THREAD_SERIALIZED or more unless only the main thread uses the
/// group; with less than MPI_THREAD_MULTIPLE nobody else may call MPI while a call of the group or
/// of an object made from it runs. The program and the library's MPI module must use the same MPI.
///
/// Collective over the communicator. Returns when every rank has arrived. If a rank cannot join,
/// every rank gets an error with its code and text. Errors: kInvalidArgument (a
/// null or freed communicator, or an intercommunicator), kNotAvailable
/// (no MPI module, MPI is not initialized in this process), kTimeout (MPI does not say which rank
/// did not come), kPeerLost, kNotSupported (engine "shm" for ranks on several hosts), kSystem.
SWITCHYARD_API Group group_from_mpi_handle(std::int32_t communicator,
                                           const GroupOptions& options = {});

}  // namespace switchyard

// SPDX-License-Identifier: Apache-2.0
//
// mpi_meeting.h: where ranks meet that know no common address: rank 0 serves a store, and MPI tells
// the others where.
#pragma once

#include <memory>
#include <string>

#include "engine/registry.h"
#include "transport/store_server.h"

namespace switchyard {

struct MpiMeeting {
  std::shared_ptr<StoreServer> server;  ///< of rank 0; keep it until the group is complete
  std::shared_ptr<Store> store;
  std::string secret;
};

/// Collective over the request's communicator or, without one, MPI_COMM_WORLD, which must consist
/// of the group's ranks. Errors: kNotAvailable (no MPI here), kTimeout (a process did not come; MPI
/// does not say which, or a rank does not reach rank 0), kInvalidArgument (another number of
/// ranks), kOutOfMemory (no descriptor), kSystem. Why a rank cannot join, all ranks throw.
MpiMeeting meet_over_mpi(const JoinRequest& request);

/// In place of meet_over_mpi, on a rank that cannot join: the others get the code and the words of
/// `why`.
void refuse_over_mpi(const JoinRequest& request, const Error& why) noexcept;

}  // namespace switchyard

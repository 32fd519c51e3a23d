// SPDX-License-Identifier: Apache-2.0
//
// mpi.h: groups of MPI's ranks. The only header that includes mpi.h, and therefore not part of
// switchyard.h; programs that use it compile and link with their MPI.
#pragma once

#include <cstdint>
#include <mpi.h>

#include "switchyard/group_from_mpi.h"

namespace switchyard {

/// As group_from_mpi_handle.
inline Group group_from_mpi(MPI_Comm communicator, const GroupOptions& options = {}) {
  return group_from_mpi_handle(static_cast<std::int32_t>(MPI_Comm_c2f(communicator)), options);
}

}  // namespace switchyard

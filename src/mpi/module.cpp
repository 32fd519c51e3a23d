// SPDX-License-Identifier: Apache-2.0
//
// The MPI module's table of functions.

#include <mpi.h>

#include "switchyard/export.h"
#include "switchyard/version.h"

#include "engine/mpi_module.h"
#include "mpi/mpi_link.h"
#include "mpi/mpi_process.h"

namespace switchyard {
namespace {

std::shared_ptr<MpiLink> duplicate(const int* fortran_handle, std::string& why) {
  if (fortran_handle == nullptr) return mpi::Link::start(MPI_COMM_WORLD, why);
  const MPI_Comm communicator = MPI_Comm_f2c(static_cast<MPI_Fint>(*fortran_handle));
  int is_inter = 0;
  if (communicator == MPI_COMM_NULL ||
      MPI_Comm_test_inter(communicator, &is_inter) != MPI_SUCCESS || is_inter != 0) {
    why = "the communicator is null or joins two groups, must be one of a single group";
    return nullptr;
  }
  return mpi::Link::start(communicator, why);
}

}  // namespace

extern "C" SWITCHYARD_API const MpiModule* switchyard_mpi_module() {
  static const MpiModule module{
      .version = SWITCHYARD_MPI_MODULE_VERSION,
      .library = mpi::library,
      .init_state = mpi::init_state,
      .start_init = mpi::start_init,
      .why_not_here = mpi::why_not_here,
      .world = mpi::world,
      .forbid_finalize = mpi::forbid_finalize,
      .duplicate = duplicate,
  };
  return &module;
}

}  // namespace switchyard

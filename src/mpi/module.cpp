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

// Null, with the reason in `why`, unless the handle is of a communicator of one group. What MPI
// makes of a handle that was freed is its own: no communicator, a null pointer or an error.
MPI_Comm communicator_of(const int* fortran_handle, std::string& why) {
  const std::lock_guard lock(mpi::call_mutex());
  if (fortran_handle == nullptr) return MPI_COMM_WORLD;
  const MPI_Comm communicator = MPI_Comm_f2c(static_cast<MPI_Fint>(*fortran_handle));
  // Errors of a communicator that is none are raised on these.
  const mpi::ReturnedErrors of_world(MPI_COMM_WORLD);
  const mpi::ReturnedErrors of_self(MPI_COMM_SELF);
  int is_inter = 0;
  if (communicator != MPI_Comm{} && communicator != MPI_COMM_NULL &&
      MPI_Comm_test_inter(communicator, &is_inter) == MPI_SUCCESS && is_inter == 0) {
    return communicator;
  }
  why =
      "the communicator is freed, null or joins two groups, must be one of a single group that is "
      "not freed";
  return MPI_COMM_NULL;
}

std::string place_in(const int* fortran_handle, int& rank, int& size) {
  std::string why;
  const MPI_Comm communicator = communicator_of(fortran_handle, why);
  if (!why.empty()) return why;
  const std::lock_guard lock(mpi::call_mutex());
  MPI_Comm_rank(communicator, &rank);
  MPI_Comm_size(communicator, &size);
  return "";
}

std::shared_ptr<MpiLink> duplicate(const int* fortran_handle, std::string& why) {
  const MPI_Comm communicator = communicator_of(fortran_handle, why);
  return why.empty() ? mpi::Link::start(communicator, why) : nullptr;
}

}  // namespace

extern "C" SWITCHYARD_API const MpiModule* switchyard_mpi_module() {
  static const MpiModule module{
      .version = SWITCHYARD_MPI_MODULE_VERSION,
      .library = mpi::library,
      .init_state = mpi::init_state,
      .start_init = mpi::start_init,
      .will_finalize = mpi::will_finalize,
      .why_not_here = mpi::why_not_here,
      .place_in = place_in,
      .forbid_finalize = mpi::forbid_finalize,
      .duplicate = duplicate,
  };
  return &module;
}

}  // namespace switchyard

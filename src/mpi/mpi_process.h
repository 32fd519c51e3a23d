// SPDX-License-Identifier: Apache-2.0
//
// mpi_process.h: MPI in this process as a whole: who initialized it, and how it ends.
#pragma once

#include <cstdint>
#include <mpi.h>
#include <mutex>
#include <string>

#include "engine/mpi_module.h"

namespace switchyard::mpi {

/// Held around every call of MPI that several threads might make: MPI is asked for
/// MPI_THREAD_SERIALIZED only.
std::mutex& call_mutex();

/// While it lives, errors of calls on the communicator are returned. Otherwise they end the job
/// unless the program has said what else.
class ReturnedErrors {
 public:
  explicit ReturnedErrors(MPI_Comm communicator) : communicator_(communicator) {
    MPI_Comm_get_errhandler(communicator_, &before_);
    MPI_Comm_set_errhandler(communicator_, MPI_ERRORS_RETURN);
  }
  ReturnedErrors(const ReturnedErrors&) = delete;
  ReturnedErrors& operator=(const ReturnedErrors&) = delete;
  ~ReturnedErrors() {
    MPI_Comm_set_errhandler(communicator_, before_);
    MPI_Errhandler_free(&before_);
  }

 private:
  MPI_Comm communicator_;
  MPI_Errhandler before_ = MPI_ERRHANDLER_NULL;
};

std::string library();
MpiInit init_state();
std::string start_init(std::int64_t timeout_ms, void (*when_finalized)());
bool will_finalize();
std::string why_not_here();
void forbid_finalize();
bool may_finalize();

}  // namespace switchyard::mpi

// SPDX-License-Identifier: Apache-2.0
//
// mpi_process.h: MPI in this process as a whole: who initialized it, and how it ends.
#pragma once

#include <cstdint>
#include <mutex>
#include <string>

#include "engine/mpi_module.h"

namespace switchyard::mpi {

/// Held around every call of MPI that several threads might make: MPI is asked for
/// MPI_THREAD_SERIALIZED only.
std::mutex& call_mutex();

std::string library();
MpiInit init_state();
std::string start_init(std::int64_t timeout_ms);
std::string why_not_here();
void forbid_finalize();
bool may_finalize();

}  // namespace switchyard::mpi

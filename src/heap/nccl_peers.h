// SPDX-License-Identifier: Apache-2.0
//
// nccl_peers.h: the pointers of an NCCL window to its peers.
#pragma once

#include <cstddef>
#include <vector>

#include "heap/nccl_api.h"

namespace switchyard {

/// The pointers by rank, for the current device. Collective over the communicator. Errors:
/// kNotAvailable if the registration did not take effect, which NCCL 2.28 does not report, or if
/// not all ranks can be reached; kSystem.
std::vector<std::byte*> nccl_peer_pointers(ncclComm_t comm, ncclWindow_t window, int num_ranks);

/// Gets the pointers in a kernel. NCCL must have exactly the version of the headers. Errors:
/// kSystem.
std::vector<std::byte*> resolve_by_kernel(ncclWindow_t window, int num_ranks);

}  // namespace switchyard

// SPDX-License-Identifier: Apache-2.0
//
// nccl_peers.h: the pointers that an NCCL window has for its peers.
#pragma once

#include <cstddef>
#include <vector>

#include "heap/nccl_api.h"

namespace switchyard {

/// By rank, for the current device. Collective over the communicator. Errors: kNotAvailable: the
/// registration was none, which NCCL 2.28 does not say, or not all ranks can be reached; kSystem.
std::vector<std::byte*> nccl_peer_pointers(ncclComm_t comm, ncclWindow_t window, int num_ranks);

/// With a kernel; needs the very version of the headers. Errors: kSystem.
std::vector<std::byte*> resolve_by_kernel(ncclWindow_t window, int num_ranks);

}  // namespace switchyard

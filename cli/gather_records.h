// SPDX-License-Identifier: Apache-2.0
//
// gather_records.h: brings bytes of every rank to rank 0, on any engine.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <vector>

#include "switchyard/group.h"

namespace switchyard::cli {

/// Collective. `fill` writes this rank's record of `bytes` bytes, as many on every rank; `read` is
/// called on rank 0 for each rank's, in order. Errors: kTimeout, kPeerLost, kOutOfMemory.
void gather_records(const Group& group, std::size_t bytes,
                    const std::function<void(std::byte* record)>& fill,
                    const std::function<void(int rank, const std::byte* record)>& read);

}  // namespace switchyard::cli

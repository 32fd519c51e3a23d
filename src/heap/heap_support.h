// SPDX-License-Identifier: Apache-2.0
//
// heap_support.h: what one GPU, its driver and the libraries here can do; no group is needed.
#pragma once

#include <array>
#include <string>

#include "heap/rank_facts.h"

namespace switchyard {

/// By HeapKind: empty, or why this machine cannot use it; without NCCL, which is loaded only when
/// asked for (nccl_obstacle). Errors: kNotAvailable (no such device),
/// kSystem.
std::array<std::string, kNumHeapKinds> heap_obstacles(int device);

/// The UUID of a GPU, as nvidia-smi writes it: "GPU-..." Errors: kNotAvailable, kSystem.
std::string gpu_uuid(int device);

/// Whether `device` can address the memory of each GPU of `gpus` (UUIDs): see ReachRow.
ReachRow reach_of(int device, const std::vector<std::string>& gpus);

}  // namespace switchyard

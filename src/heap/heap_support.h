// SPDX-License-Identifier: Apache-2.0
//
// heap_support.h: what one GPU, its driver and the installed libraries can do. No group is needed.
#pragma once

#include <array>
#include <string>

#include "heap/rank_facts.h"

namespace switchyard {

/// By HeapKind: empty, or why this machine cannot use it. NCCL is not examined, because it is
/// loaded only on request (nccl_obstacle). Errors: kNotAvailable (no such device), kSystem.
std::array<std::string, kNumHeapKinds> heap_obstacles(int device);

/// The UUID of a GPU as nvidia-smi prints it: "GPU-...". Errors: kNotAvailable, kSystem.
std::string gpu_uuid(int device);

/// Whether `device` can address the memory of each GPU in `gpus` (UUIDs); see ReachRow.
ReachRow reach_of(int device, const std::vector<std::string>& gpus);

}  // namespace switchyard

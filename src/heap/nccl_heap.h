// SPDX-License-Identifier: Apache-2.0
//
// nccl_heap.h: NCCL symmetric windows as a heap. NCCL is loaded at run time.
#pragma once

#include <memory>
#include <string>

#include "heap/heap.h"

namespace switchyard {

/// The version of libnccl.so.2 that would be loaded, for example 22809; 0: none.
int nccl_version();

/// Empty, or why this build or machine has no NCCL windows.
std::string nccl_obstacle();

/// Empty, or why this build or machine has no NCCL at all.
std::string nccl_calls_obstacle();

/// Empty, or why this build or machine has no NCCL for messages between hosts.
std::string nccl_links_obstacle();

std::unique_ptr<Heap> make_nccl_heap(const HeapRequest& request);

}  // namespace switchyard

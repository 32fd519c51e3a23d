// SPDX-License-Identifier: Apache-2.0
//
// memory.h: refuses memory that this host does not have before it is asked for: Linux grants more
// than there is, and later kills whoever touches it.
#pragma once

#include <cstddef>
#include <string_view>

namespace switchyard {

/// The kernel's estimate of what it can allocate without swapping (MemAvailable); 0 when unknown.
std::size_t available_memory_bytes();

/// All memory and swap of this host; 0 when unknown.
std::size_t total_memory_bytes();

/// "WHAT needs N MiB, but this host has M MiB available". Errors: kOutOfMemory.
void require_memory(std::string_view what, std::size_t bytes);

/// For memory that is reserved for the worst case and mostly stays untouched: "WHAT reserves N MiB,
/// but this host has M MiB of memory and swap". Errors: kOutOfMemory.
void require_reservation(std::string_view what, std::size_t bytes);

}  // namespace switchyard

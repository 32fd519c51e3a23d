// SPDX-License-Identifier: Apache-2.0
//
// probe_window.h: verifies that mappings lead where they should. Each rank stores patterns that
// name it at the beginning and at the end of every window; each rank then checks its own window
// and, through the mappings, what it stored in the others.
#pragma once

#include <cstdint>

#include "heap/heap.h"

namespace switchyard {

/// Stores this rank's patterns, on a stream of its own. `nonce` distinguishes windows that get the
/// same memory. Errors: kSystem.
void write_patterns(const Heap& heap, int rank, std::uint64_t nonce);

/// Call after write_patterns has returned on every rank. Errors: kNotAvailable, which names writer
/// and reader; kSystem.
void require_patterns(const Heap& heap, int rank, std::uint64_t nonce);

}  // namespace switchyard

// SPDX-License-Identifier: Apache-2.0
//
// probe_window.h: shows that a mapping leads where it should. Each rank stores a pattern that names
// it into a slot of every window, at its beginning and at its end; each rank then looks into its
// own window and, through the mappings, at what it stored in the others.
#pragma once

#include <cstdint>
#include <string>

#include "heap/heap.h"

namespace switchyard {

/// Stores this rank's patterns, on a stream of its own. `nonce` tells apart windows that get the
/// same memory. Errors: kSystem.
void write_patterns(const Heap& heap, int rank, std::uint64_t nonce);

/// After write_patterns has returned on every rank. Errors: kNotAvailable: names writer and reader;
/// kSystem.
void require_patterns(const Heap& heap, int rank, std::uint64_t nonce);

}  // namespace switchyard

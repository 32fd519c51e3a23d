// SPDX-License-Identifier: Apache-2.0
//
// choice_map.h: the place of every (token, choice) among the choices of its expert, computed by
// parallel workers without atomics. Each worker numbers the choices of its chunk, expert by expert,
// and counts them; then it adds the counts of earlier chunks. The order is that of a serial walk
// over all choices.
//
// Letters: N choices, L local experts, C chunks.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "core/host_device.h"
#include "core/round_up.h"

namespace switchyard {

/// The local expert of a choice, and the place of the choice among that expert's choices (of its
/// chunk, until the counts of earlier chunks are added). Both are -1 without a local expert.
struct PlacedChoice {
  std::int32_t expert;
  std::int32_t place;
};

struct ChoiceMap {
  PlacedChoice* choices = nullptr;           ///< [N]
  std::int32_t* counts_of_chunks = nullptr;  ///< [C, L]
  std::int32_t num_choices = 0;
  std::int32_t num_local = 0;
  std::int32_t num_chunks = 0;
  std::int32_t chunk_choices = 1;
};

/// The workspace of a map, with room for counts and the number of rows in case the caller passes
/// no tensors for them.
struct ChoiceMapMemory {
  ChoiceMap map;  ///< sizes only; `place_in` sets the pointers
  std::size_t chunks_offset = 0;
  std::size_t counts_offset = 0;
  std::size_t num_rows_offset = 0;
  std::size_t num_bytes = 0;

  ChoiceMap place_in(std::byte* workspace) const {
    ChoiceMap placed = map;
    placed.choices = reinterpret_cast<PlacedChoice*>(workspace);
    placed.counts_of_chunks = reinterpret_cast<std::int32_t*>(workspace + chunks_offset);
    return placed;
  }
};

/// One thread block processes one chunk of 512 choices, one per thread. Chunks are larger where
/// there would otherwise be more than 256 chunks or 2^17 counts, because every block reads all
/// counts. `num_choices` is below 2^31, `num_local` at most 65535.
inline ChoiceMapMemory choice_map_memory(std::int64_t num_choices, std::int64_t num_local) {
  constexpr std::int64_t kStep = 512;
  constexpr std::int64_t kMaxChunks = 256;
  constexpr std::int64_t kMaxCounts = std::int64_t{1} << 17;
  const std::int64_t max_chunks =
      std::min(kMaxChunks, kMaxCounts / std::max<std::int64_t>(1, num_local));
  const std::int64_t wanted = std::clamp<std::int64_t>(cdiv(num_choices, kStep), 1, max_chunks);
  const std::int64_t chunk = std::max(kStep, align_up(cdiv(num_choices, wanted), kStep));
  const std::int64_t num_chunks = cdiv(num_choices, chunk);
  ChoiceMapMemory memory;
  memory.map.num_choices = static_cast<std::int32_t>(num_choices);
  memory.map.num_local = static_cast<std::int32_t>(num_local);
  memory.map.num_chunks = static_cast<std::int32_t>(num_chunks);
  memory.map.chunk_choices = static_cast<std::int32_t>(chunk);
  const auto aligned = [](std::int64_t bytes) {
    return static_cast<std::size_t>(align_up<std::int64_t>(bytes, 16));
  };
  memory.chunks_offset = aligned(num_choices * std::int64_t{sizeof(PlacedChoice)});
  memory.counts_offset = memory.chunks_offset + aligned(num_chunks * num_local * 4);
  memory.num_rows_offset = memory.counts_offset + aligned(num_local * 4);
  memory.num_bytes = memory.num_rows_offset + 16;
  return memory;
}

}  // namespace switchyard

// SPDX-License-Identifier: Apache-2.0
//
// rank_facts.h: what each rank tells the others before they share GPU memory, and what follows from
// it. Plain host code: the same answers on every rank, because all see the same facts.
#pragma once

#include <array>
#include <cstddef>
#include <string>
#include <vector>

#include "heap/device_window.h"

namespace switchyard {

inline constexpr std::size_t kNumHeapKinds = 4;

struct RankFacts {
  std::string wanted;  ///< name of a heap kind, or "auto"
  std::size_t bytes = 0;
  std::string host;     ///< the same for processes of one running kernel
  std::string process;  ///< the same for threads of one process only
  int device = 0;       ///< ordinal in its process
  std::string gpu;      ///< its UUID
  std::array<std::string, kNumHeapKinds> obstacles;  ///< by HeapKind: empty, or why it cannot be

  std::string text() const;
  /// Errors: kSystem.
  static RankFacts parse(const std::string& text);
};

/// Ranks that use the GPU of `rank`, itself included.
int num_ranks_on_gpu(const std::vector<RankFacts>& ranks, int rank);

/// Throws what every rank must not differ in. Errors: kInvalidArgument (heap, bytes),
/// kNotAvailable (hosts).
void require_equal_facts(const std::vector<RankFacts>& ranks);

/// What to try, best first. "auto": threads take plain pointers; processes VMM, then IPC; NCCL
/// windows only when asked for. Errors: kInvalidArgument (unknown name), kNotAvailable (the reason
/// of each kind, with the first rank that has it).
std::vector<HeapKind> heaps_to_try(const std::vector<RankFacts>& ranks);

/// Of one rank: whether its GPU can address each rank's. '1': yes, '0': no, '?': that GPU is not
/// visible to its process, so the probe will tell.
using ReachRow = std::string;

/// Errors: kNotAvailable: names the first pair that cannot.
void require_reach(const std::vector<RankFacts>& ranks, const std::vector<ReachRow>& rows);

}  // namespace switchyard

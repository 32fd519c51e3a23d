// SPDX-License-Identifier: Apache-2.0
//
// rank_facts.h: the facts that ranks exchange before they share GPU memory, and what follows from
// them. Plain host code: every rank gets the same answers, because all see the same facts.
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
  std::string host;     ///< the same for processes under one running kernel
  std::string process;  ///< the same only for threads of one process
  int device = 0;       ///< ordinal in its process
  std::string gpu;      ///< its UUID
  std::array<std::string, kNumHeapKinds> obstacles;  ///< by HeapKind: empty, or why not

  std::string text() const;
  /// Errors: kSystem.
  static RankFacts parse(const std::string& text);
};

/// The number of ranks that use the GPU of `rank`, itself included.
int num_ranks_on_gpu(const std::vector<RankFacts>& ranks, int rank);

/// Throws if ranks differ in what must be equal. Errors: kInvalidArgument (heap, bytes),
/// kNotAvailable (hosts).
void require_equal_facts(const std::vector<RankFacts>& ranks);

/// The heaps to try, best first. With "auto", threads use plain pointers and processes VMM, then
/// IPC; NCCL windows are used only on request. Errors: kInvalidArgument (unknown name),
/// kNotAvailable (the reason for each kind, with the first rank that has it).
std::vector<HeapKind> heaps_to_try(const std::vector<RankFacts>& ranks);

/// One rank's row: whether its GPU can address the GPU of each rank. '1': yes, '0': no, '?': that
/// GPU is not visible to its process, so the probe decides.
using ReachRow = std::string;

/// Throws unless every GPU can address all others. Errors: kNotAvailable, which names the first
/// pair.
void require_reach(const std::vector<RankFacts>& ranks, const std::vector<ReachRow>& rows);

}  // namespace switchyard

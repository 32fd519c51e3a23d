// SPDX-License-Identifier: Apache-2.0
//
// heap.h: a device window in the making. Every kind of heap takes the same steps, and after each
// the ranks compare how it went, so that all go on or all fail with the same words.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "cuda/base/memory.h"
#include "heap/device_window.h"
#include "heap/rank_facts.h"

namespace switchyard {

/// Own memory is taken in multiples of this: cudaMalloc shares smaller blocks between callers, and
/// a handle for another process gives away the whole block.
inline constexpr std::size_t kHeapUnitBytes = std::size_t{2} << 20;

/// The same for all kinds. References stay valid while the window is made.
struct HeapRequest {
  Engine& engine;
  int device = 0;         ///< of this rank
  std::size_t bytes = 0;  ///< asked for, at least 1
  const std::vector<RankFacts>& ranks;
};

class Heap : public DeviceWindow {
 public:
  /// Takes this rank's memory. Returns what the peers must know about it.
  virtual std::string place() = 0;
  /// Collective; called when every rank has placed. For what does not travel as text.
  virtual void swap(const std::vector<std::string>& /*texts*/) {}
  /// Fills bases_. `texts`: what place returned on each rank.
  virtual void map(const std::vector<std::string>& texts) = 0;

  /// At least size_bytes(); all of it is mapped.
  std::size_t mapped_bytes() const { return mapped_bytes_; }
  int num_ranks() const { return static_cast<int>(bases_.size()); }

 protected:
  Heap(HeapKind kind, const HeapRequest& request);
  /// For destructors: with this rank's device current, after the work on it has ended.
  void release(const std::function<void()>& free) const noexcept;

  Engine* engine_;  // only while the window is made
  int rank_;
  int device_;
  std::size_t mapped_bytes_;
};

std::unique_ptr<Heap> make_same_process_heap(const HeapRequest& request);
std::unique_ptr<Heap> make_ipc_heap(const HeapRequest& request);
std::unique_ptr<Heap> make_vmm_heap(const HeapRequest& request);

/// Collective: `action` on every rank; returns what it returned, by rank. When it fails on some,
/// every rank throws the error of the first one, which it names. Errors of the group itself
/// (kTimeout, kPeerLost, kAborted) pass as they are.
std::vector<std::string> gather_or_fail(Control& control,
                                        const std::function<std::string()>& action);

}  // namespace switchyard

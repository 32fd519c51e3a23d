// SPDX-License-Identifier: Apache-2.0
//
// heap.h: a device window under construction. All kinds of heap go through the same steps. After
// each step the ranks compare results, so that all continue or all fail with the same message.
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

/// A rank's memory is allocated in multiples of this: cudaMalloc places smaller allocations of
/// several callers in one block, and a handle for another process exposes the whole block.
inline constexpr std::size_t kHeapUnitBytes = std::size_t{2} << 20;

/// What every kind of heap needs. References stay valid while the window is made.
struct HeapRequest {
  Engine& engine;
  int device = 0;         ///< of this rank
  std::size_t bytes = 0;  ///< requested, at least 1
  const std::vector<RankFacts>& ranks;
};

class Heap : public DeviceWindow {
 public:
  /// Allocates this rank's memory. Returns what peers must know about it.
  virtual std::string place() = 0;
  /// Collective; called after every rank has returned from place. Exchanges what does not travel as
  /// text.
  virtual void swap(const std::vector<std::string>& /*texts*/) {}
  /// Fills bases_. `texts` is what place returned, by rank.
  virtual void map(const std::vector<std::string>& texts) = 0;

  /// At least size_bytes(); all of it is mapped.
  std::size_t mapped_bytes() const { return mapped_bytes_; }
  int num_ranks() const { return static_cast<int>(bases_.size()); }

 protected:
  Heap(HeapKind kind, const HeapRequest& request);
  /// For destructors: calls `free` with this rank's device current, after all work on it has ended.
  void release(const std::function<void()>& free) const noexcept;

  Engine* engine_;  // valid only while the window is made
  int rank_;
  int device_;
  std::size_t mapped_bytes_;
};

std::unique_ptr<Heap> make_same_process_heap(const HeapRequest& request);
std::unique_ptr<Heap> make_ipc_heap(const HeapRequest& request);
std::unique_ptr<Heap> make_vmm_heap(const HeapRequest& request);

}  // namespace switchyard

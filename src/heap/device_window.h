// SPDX-License-Identifier: Apache-2.0
//
// device_window.h: one region of GPU memory per rank, mapped so that every rank's GPU can address
// it. How that is done depends on whether ranks are threads of one process or processes of one
// host.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "engine/engine.h"

namespace switchyard {

/// How GPU memory becomes visible to the other ranks.
enum class HeapKind {
  kSameProcess,  ///< threads: peer access, plain pointers
  kNccl,         ///< NCCL symmetric windows
  kVmm,          ///< CUDA virtual memory, handles passed as file descriptors
  kIpc,          ///< cudaIpcMemHandle_t
};

const char* name_of(HeapKind kind) noexcept;

/// Pointers are valid on this rank's GPU. This rank's memory is released with its window or,
/// between threads, with the last window of the group; by then peers must have finished with it
/// (use a barrier). The window does not need its engine.
class DeviceWindow {
 public:
  virtual ~DeviceWindow() = default;
  DeviceWindow(const DeviceWindow&) = delete;
  DeviceWindow& operator=(const DeviceWindow&) = delete;

  std::byte* base(int rank) const { return bases_[static_cast<std::size_t>(rank)]; }
  std::size_t size_bytes() const { return size_bytes_; }
  HeapKind kind() const { return kind_; }
  /// Whether other ranks use this rank's GPU, too.
  bool is_shared_gpu() const { return ranks_on_gpu_ > 1; }
  int ranks_on_gpu() const { return ranks_on_gpu_; }
  /// Whether any GPU of the group is used by several ranks.
  bool has_shared_gpus() const { return has_shared_gpus_; }

  /// Ends this rank's use of its peers' memory. CUDA wants memory that went to another process
  /// unmapped there before it is freed: call it on every rank, then a barrier, then destroy.
  virtual void unmap_peers() noexcept {}
  /// Instead of that barrier, if peers may still have this rank's memory mapped: the driver frees
  /// it when the process ends.
  virtual void leave_memory() noexcept {}

  /// Among threads: tells the peers that this rank ends while an exception unwinds. A free on its
  /// GPU may wait for their kernels, which wait for this rank.
  virtual void abandon() noexcept {}
  /// Returns a function that names the rank that did, or -1; it may outlive the window. Empty among
  /// processes, whose end peers see.
  virtual std::function<int()> abandoned_by() const { return {}; }

 protected:
  DeviceWindow() = default;
  std::vector<std::byte*> bases_;
  std::size_t size_bytes_ = 0;
  HeapKind kind_ = HeapKind::kSameProcess;
  int ranks_on_gpu_ = 1;
  bool has_shared_gpus_ = false;
};

/// Collective: every rank passes the same size and the GPU on which it will launch. Every mapping
/// is probed, for each pair of ranks, with a pattern that names them. Contents are undefined.
///
/// `wanted` is the name of a HeapKind, or "auto" for the setting SWITCHYARD_HEAP; if that is "auto"
/// as well, threads use plain pointers, and processes VMM or else IPC. Errors, the same on every
/// rank: kNotAvailable (no way to share, or the wanted one does not work; names the pair that
/// cannot reach each other), kOutOfMemory, kInvalidArgument (sizes differ), kTimeout, kPeerLost.
std::unique_ptr<DeviceWindow> make_device_window(Engine& engine, int device, std::size_t bytes,
                                                 const std::string& wanted = "auto");

}  // namespace switchyard

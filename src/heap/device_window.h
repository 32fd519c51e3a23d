// SPDX-License-Identifier: Apache-2.0
//
// device_window.h: one region of GPU memory on each rank, mapped where every rank's GPU can reach
// it. How depends on who the ranks are: threads of one process, or processes of one host.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "engine/engine.h"

namespace switchyard {

/// How memory of a GPU becomes visible to the other ranks.
enum class HeapKind {
  kSameProcess,  ///< threads: peer access, plain pointers
  kNccl,         ///< NCCL symmetric windows
  kVmm,          ///< CUDA virtual memory, handles passed as descriptors
  kIpc,          ///< cudaIpcMemHandle_t
};

const char* name_of(HeapKind kind) noexcept;

/// Pointers in it are for this rank's GPU. This rank's memory is released with its window, between
/// threads with the last window of the group; peers should have done with it (a barrier). It does
/// not need its engine any more.
class DeviceWindow {
 public:
  virtual ~DeviceWindow() = default;
  DeviceWindow(const DeviceWindow&) = delete;
  DeviceWindow& operator=(const DeviceWindow&) = delete;

  std::byte* base(int rank) const { return bases_[static_cast<std::size_t>(rank)]; }
  std::size_t size_bytes() const { return size_bytes_; }
  HeapKind kind() const { return kind_; }
  /// More than one rank uses this rank's GPU.
  bool is_shared_gpu() const { return ranks_on_gpu_ > 1; }
  int ranks_on_gpu() const { return ranks_on_gpu_; }

 protected:
  DeviceWindow() = default;
  std::vector<std::byte*> bases_;
  std::size_t size_bytes_ = 0;
  HeapKind kind_ = HeapKind::kSameProcess;
  int ranks_on_gpu_ = 1;
};

/// Collective: every rank passes the same size and the GPU it will launch on. Each mapping is
/// probed with a pattern that names the rank, through every pair. Contents are undefined.
///
/// `wanted`: a name of HeapKind in words, or "auto": the setting SWITCHYARD_HEAP; when that is
/// "auto", too, threads take plain pointers, processes VMM or else IPC. Errors, alike on every
/// rank: kNotAvailable (no way to share, or not the wanted one; names the pair that cannot reach
/// each other), kOutOfMemory, kInvalidArgument (sizes differ), kTimeout, kPeerLost.
std::unique_ptr<DeviceWindow> make_device_window(Engine& engine, int device, std::size_t bytes,
                                                 const std::string& wanted = "auto");

}  // namespace switchyard

// SPDX-License-Identifier: Apache-2.0
//
// device_meter.h: what measuring on GPUs needs of CUDA: graphs, a clock that starts all
// GPUs together, and the kernels that a machine's limits are measured with. What is measured, and
// how it is judged, is the caller's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "switchyard/stream.h"

#include "device/device_queue.h"

namespace switchyard {

/// Enqueues the same again each time it is called.
using DeviceWork = std::function<void(Stream)>;

/// Of one rank. It makes the GPU (rank mod number of GPUs) current for the thread that makes it,
/// and that thread must use it. Errors of all members: kOutOfMemory, kSystem.
class DeviceMeter {
 public:
  DeviceMeter() = default;
  DeviceMeter(const DeviceMeter&) = delete;
  DeviceMeter& operator=(const DeviceMeter&) = delete;
  virtual ~DeviceMeter() = default;

  virtual const char* heap() const = 0;  ///< as Exchange::heap
  virtual int ranks_on_gpu() const = 0;  ///< that share this rank's GPU
  /// Of an exchange's kernels, with a budget of SMs; 0: all that is this rank's share of its GPU.
  virtual int num_ctas(int num_sms) const = 0;

  virtual DeviceQueue& queue() = 0;

  /// Collective: runs `work` once, from a barrier on, and waits. (Ranks that share a GPU must not
  /// allocate while a kernel waits for them.)
  virtual void run(const DeviceWork& work) = 0;
  /// A CUDA graph of `work`; to call it is to launch the graph.
  virtual DeviceWork capture(const DeviceWork& work) = 0;
  /// Collective: microseconds between two events around `work` on this GPU. Caches hold none of
  /// its data; everything is enqueued before one word opens all GPUs. `work` must have run before.
  virtual double time_us(const DeviceWork& work) = 0;

  /// Stores `bytes` into the peers' memory, spread evenly, `num_times`, by `num_ctas` CTAs.
  /// `bytes` is at most kMaxPushBytes.
  virtual void push(std::size_t bytes, int num_times, int num_ctas, Stream stream) = 0;
  static constexpr std::size_t kMaxPushBytes = std::size_t{32} << 20;
  /// A word goes to the other rank of a pair (ranks 0 and 1, 2 and 3, ...) and comes back, so many
  /// times. Nothing on a rank that is left over. Not for graphs: words are counted.
  virtual void ping(int num_trips, Stream stream) = 0;
  /// Reads and writes one row after another, each of 8 KiB, where it can only begin when the one
  /// before is written. `memory`: zeros, of a multiple of 8 KiB.
  virtual void touch_rows(std::byte* memory, std::size_t bytes, int num_rows, Stream stream) = 0;
  virtual void launch_nothing(Stream stream) = 0;

  /// Empty, or why this rank has no NCCL.
  virtual std::string why_no_nccl() const = 0;
  /// Collective. Empty, or why the ranks cannot use NCCL together: alike on every rank. Errors:
  /// kTimeout, kPeerLost, kAborted.
  virtual std::string join_nccl() = 0;
  /// Grouped ncclSend and ncclRecv, bytes by peer; for ranks that have joined. Call the work once
  /// before a capture: NCCL connects ranks at the first use.
  virtual DeviceWork nccl_all_to_all(const std::vector<std::int64_t>& sent,
                                     const std::vector<std::int64_t>& received) = 0;
};

}  // namespace switchyard

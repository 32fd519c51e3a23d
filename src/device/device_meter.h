// SPDX-License-Identifier: Apache-2.0
//
// device_meter.h: what measurements on GPUs need from CUDA: graphs, a timer that starts on all GPUs
// at once, and kernels that measure a machine's limits. What to measure and how to judge it is up
// to the caller.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "switchyard/exchange_types.h"
#include "switchyard/stream.h"

#include "cuda/exchange/stages.h"
#include "device/device_queue.h"

namespace switchyard {

/// Enqueues the same work at every call.
using DeviceWork = std::function<void(Stream)>;

/// How a kernel carries bytes between GPUs.
enum class WireCopy : std::uint8_t {
  kStores,      ///< 16-byte loads of own memory, 16-byte stores to peers
  kBulkCopies,  ///< cp.async.bulk, own memory to shared memory to peers; sm_90 on
  kLoads,       ///< 16-byte loads of the peers' memory, 16-byte stores to own
};

/// When a timed run begins.
enum class RunStart : std::uint8_t {
  kHeld,    ///< once everything is enqueued
  kAtOnce,  ///< while it is being enqueued: for work whose host waits for the GPU
};

/// One rank's meter. Its constructor makes GPU (rank mod number of GPUs) current for the calling
/// thread, and only that thread may use the meter. Errors of all members: kOutOfMemory, kSystem.
class DeviceMeter {
 public:
  DeviceMeter() = default;
  DeviceMeter(const DeviceMeter&) = delete;
  DeviceMeter& operator=(const DeviceMeter&) = delete;
  virtual ~DeviceMeter() = default;

  virtual const char* heap() const = 0;  ///< as Exchange::heap
  virtual int ranks_on_gpu() const = 0;  ///< that share this rank's GPU, of all hosts
  virtual int num_gpus() const = 0;      ///< of all ranks
  /// Of an exchange's kernels, with a budget of SMs; 0: all that is this rank's share of its GPU.
  virtual int num_ctas(int num_sms) const = 0;

  virtual int num_sms() const = 0;  ///< of this rank's GPU
  /// Major compute capability of this rank's GPU. Bulk copies and programmatic launch need 9.
  virtual int compute_major() const = 0;

  virtual DeviceQueue& queue() = 0;

  /// Collective: runs `work` once after a barrier and waits for it. (Ranks that share a GPU must
  /// not allocate memory while a kernel waits for them.)
  virtual void run(const DeviceWork& work) = 0;
  /// Captures `work` in a CUDA graph. A call of the result launches the graph.
  virtual DeviceWork capture(const DeviceWork& work) = 0;
  /// Collective: microseconds between two events around `work` on this GPU. The L2 cache is
  /// overwritten first. If the start is held, everything is enqueued before one word releases the
  /// GPUs of a host. Those of several hosts then wait for one another with messages of NCCL, so
  /// they start within the latency of a message. `work` must have run before.
  virtual double time_us(const DeviceWork& work, RunStart start = RunStart::kHeld) = 0;

  /// Collective: every rank carries kWireBytes to each peer of its host, `num_times` times, with
  /// `num_ctas` CTAs. At most one CTA per SM fills an SM; of more CTAs two share one. The first
  /// call allocates memory for it, and waits for all ranks.
  virtual void carry(WireCopy how, int num_times, int num_ctas, Stream stream) = 0;
  static constexpr std::size_t kWireBytes = std::size_t{64} << 20;
  /// Stores a row of 8 KiB into the memory of the other rank of the pair (ranks 0 and 1, 2 and 3,
  /// ... of a host) and polls the data of that rank's row until it is there; `num_rows` rows, one
  /// after another. Does nothing on a rank without a partner. Must not be captured in a graph,
  /// because the rows are counted.
  virtual void swap_rows(int num_rows, Stream stream) = 0;
  /// Reads and writes `num_rows` rows of 8 KiB; each access starts only after the row before is
  /// written. `memory` holds zeros, and `bytes` is a multiple of 8 KiB.
  virtual void touch_rows(std::byte* memory, std::size_t bytes, int num_rows, Stream stream) = 0;
  /// A kernel of one warp that is busy for so many cycles.
  virtual void launch_busy(int num_cycles, bool programmatic, Stream stream) = 0;

  // Calls that are timed one by one, for which the word that releases all GPUs is too coarse.

  static constexpr int kMaxCalls = 1024;
  /// Collective: a kernel that waits until it runs on all ranks of the host, marks the time, and
  /// begins call number `call` `late_ns` later.
  virtual void begin_call(int call, std::int64_t late_ns, Stream stream) = 0;
  virtual void end_call(int call, Stream stream) = 0;
  struct CallTime {
    double late_us = 0;  ///< from when all ranks were there until the call began
    double us = 0;       ///< from then until the kernel of end_call
  };
  /// Of calls 0 to `num_calls` - 1, which have ended.
  virtual std::vector<CallTime> call_times(int num_calls) = 0;
  /// Leaves instruction and L2 caches as a large GEMM does: 320 KiB of straight-line code on every
  /// SM, and 64 MiB read and written.
  virtual void run_other_code(Stream stream) = 0;

  /// Whether kernels of exchanges can record their stages: the build has SWITCHYARD_STAGES.
  virtual bool has_stages() const = 0;
  /// From now on kernels that this thread launches record them, or no longer do.
  virtual void record_stages(bool records) = 0;
  /// Waits. Returns what ran since the last call, in order, of the last 512 launches; replays of a
  /// graph are one launch.
  virtual std::vector<cuda::KernelStages> take_stages() = 0;

  /// Collective, with ranks on several hosts: what an exchange sends between them, and nothing
  /// else. `sent` is what this rank sends in a dispatch, in messages of one size to the forwarders
  /// of its tokens, and in a combine, to the ranks whose tokens it forwards.
  virtual DeviceWork host_messages(const WireBytes& sent) = 0;

  /// Empty, or why this rank cannot use NCCL.
  virtual std::string why_no_nccl() const = 0;
  /// Collective. Empty, or why the ranks cannot use NCCL together; the same on every rank. Errors:
  /// kTimeout, kPeerLost, kAborted.
  virtual std::string join_nccl() = 0;
  /// Grouped ncclSend and ncclRecv with the given bytes per peer, after a join_nccl that succeeded.
  /// Run the work once before a capture: NCCL connects ranks at the first use.
  virtual DeviceWork nccl_all_to_all(const std::vector<std::int64_t>& sent,
                                     const std::vector<std::int64_t>& received) = 0;
};

}  // namespace switchyard

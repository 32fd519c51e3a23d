// SPDX-License-Identifier: Apache-2.0
//
// cuda_meter.cpp: DeviceMeter on the CUDA runtime. A window holds the words that release all GPUs
// and the rows that ranks swap; another one holds the bytes that they carry to one another.

#include "module/cuda_meter.h"

#include <sched.h>

#include <algorithm>
#include <numeric>

#include "core/clock.h"
#include "core/fail.h"
#include "cuda/base/apart_kernels.h"
#include "cuda/base/check.h"
#include "cuda/base/launch.h"
#include "cuda/base/memory.h"
#include "cuda/base/meter_kernels.h"
#include "cuda/base/wire_kernels.h"
#include "cuda/exchange/stage_log.h"
#include "engine/engine.h"
#include "heap/device_window.h"
#include "heap/gather_or_fail.h"
#include "heap/gpus_of_ranks.h"
#include "heap/heap.h"
#include "heap/nccl_all_to_all.h"
#include "heap/nccl_heap.h"
#include "module/cuda_queue.h"
#include "module/meter_hosts.h"

namespace switchyard {
namespace {

constexpr std::size_t kFlushBytes = std::size_t{192} << 20;  // more than any L2 cache holds
constexpr std::size_t kOtherBytes = std::size_t{64} << 20;
constexpr std::uint64_t kSharedGpuPatience = 20;

class Event {
 public:
  Event() { cuda::check_cuda(cudaEventCreate(&event_), "cudaEventCreate"); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  ~Event() { cudaEventDestroy(event_); }
  void record(cudaStream_t stream) {
    cuda::check_cuda(cudaEventRecord(event_, stream), "cudaEventRecord");
  }
  double us_until(const Event& end) const {
    float ms = 0;
    cuda::check_cuda(cudaEventElapsedTime(&ms, event_, end.event_), "cudaEventElapsedTime");
    return 1000.0 * static_cast<double>(ms);
  }

 private:
  cudaEvent_t event_ = nullptr;
};

class Graph {
 public:
  Graph(const DeviceWork& work, Stream given) {
    cudaStream_t stream = given.get();
    cudaGraph_t graph = captured(work, given);
    const cudaError_t result = cudaGraphInstantiate(&exec_, graph, 0);
    cudaGraphDestroy(graph);
    cuda::check_cuda(result, "cudaGraphInstantiate");
    cuda::check_cuda(cudaGraphUpload(exec_, stream), "cudaGraphUpload");
  }
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;
  ~Graph() {
    if (exec_ != nullptr) cudaGraphExecDestroy(exec_);
  }
  void launch(cudaStream_t stream) const {
    cuda::check_cuda(cudaGraphLaunch(exec_, stream), "cudaGraphLaunch");
  }

 private:
  static cudaGraph_t captured(const DeviceWork& work, Stream given) {
    cudaStream_t stream = given.get();
    cudaGraph_t graph = nullptr;
    cuda::check_cuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal),
                     "begin capture");
    try {
      work(given);
    } catch (...) {
      cudaStreamEndCapture(stream, &graph);
      if (graph != nullptr) cudaGraphDestroy(graph);
      cudaGetLastError();
      throw;
    }
    cuda::check_cuda(cudaStreamEndCapture(stream, &graph), "end capture");
    return graph;
  }

  cudaGraphExec_t exec_ = nullptr;
};

class CudaMeter final : public DeviceMeter {
 public:
  explicit CudaMeter(const Group& group);
  ~CudaMeter() override;

  const char* heap() const override { return name_of(window_->kind()); }
  int ranks_on_gpu() const override { return gpus_.ranks_on_gpu_of(group_.rank()); }
  int num_gpus() const override { return gpus_.num_gpus(); }
  int num_ctas(int num_sms) const override;
  int num_sms() const override { return num_sms_; }
  int compute_major() const override { return compute_major_; }
  DeviceQueue& queue() override { return queue_; }
  void run(const DeviceWork& work) override;
  DeviceWork capture(const DeviceWork& work) override;
  double time_us(const DeviceWork& work, RunStart start) override;

  void carry(WireCopy how, int num_times, int num_ctas, Stream stream) override;
  void swap_rows(int num_rows, Stream stream) override;
  void touch_rows(std::byte* memory, std::size_t bytes, int num_rows, Stream stream) override;
  void launch_busy(int num_cycles, bool programmatic, Stream stream) override {
    cuda::launch_busy(num_cycles, programmatic, stream.get());
  }

  void begin_call(int call, std::int64_t late_ns, Stream stream) override;
  void end_call(int call, Stream stream) override;
  std::vector<CallTime> call_times(int num_calls) override;
  void run_other_code(Stream stream) override;

  bool has_stages() const override { return cuda::kHasStages; }
  void record_stages(bool records) override;
  std::vector<cuda::KernelStages> take_stages() override;

  DeviceWork host_messages(const WireBytes& sent) override;

  std::string why_no_nccl() const override;
  std::string join_nccl() override;
  DeviceWork nccl_all_to_all(const std::vector<std::int64_t>& sent,
                             const std::vector<std::int64_t>& received) override;

 private:
  cuda::MeterPeers peers_in(const DeviceWindow& window) const;
  cuda::CallMarks* marks_of(int call);
  void begin_run(RunStart start);
  template <typename Work>
  void or_release(const Work& work);
  void wait();

  Group group_;
  CudaQueue queue_;
  GpusOfRanks gpus_;
  std::shared_ptr<Engine> host_;  ///< the ranks of this host
  int num_sms_ = 0;
  int compute_major_ = 0;
  std::unique_ptr<DeviceWindow> window_;
  cuda::MeterPeers peers_;
  cuda::PinnedBuffer flag_{sizeof(std::uint32_t)};
  cuda::DeviceBuffer flush_{kFlushBytes};
  Event begin_;
  Event end_;
  std::uint32_t num_timed_ = 0;
  std::uint32_t num_swapped_ = 0;
  std::unique_ptr<DeviceWindow> wire_;  ///< made by the first carry
  cuda::DeviceBuffer num_begun_{sizeof(std::uint32_t)};
  cuda::DeviceBuffer marks_{(kMaxCalls + 1) * sizeof(cuda::CallMarks)};  ///< the last of a start
  std::unique_ptr<cuda::StageLog> stages_;  ///< made when stages are first recorded
  std::shared_ptr<NcclAllToAll> nccl_;
  std::unique_ptr<MeterHosts> hosts_;  ///< null: all ranks share one
};

CudaMeter::CudaMeter(const Group& group)
    : group_(group),
      queue_(group.host_rank()),
      gpus_(group.control(), queue_.device().index),
      host_(group.engine().make_host_group()) {
  num_sms_ = cuda::num_multiprocessors();
  compute_major_ = cuda::device_attribute(cudaDevAttrComputeCapabilityMajor);
  const auto size = static_cast<std::size_t>(group.size());
  require(size <= kMaxPushRanks, Errc::kNotSupported, "make_meter: {} ranks, must be at most {}",
          size, kMaxPushRanks);
  const HostMap map(group.control().hosts());
  if (map.num_hosts() > 1) gpus_.require_distinct_machines(group.control(), map);
  gather_or_fail(group.control(), {Phase::kSetup, "windows of all hosts"}, [&] {
    window_ = make_device_window(*host_, queue_.device().index, cuda::kMeterWindowBytes);
    return std::string();
  });
  peers_ = peers_in(*window_);
  queue_.fill(window_->base(peers_.rank), 0, cuda::kMeterWindowBytes);
  queue_.fill(num_begun_.data(), 0, num_begun_.size_bytes());
  group.barrier();
  if (map.num_hosts() == 1) return;
  hosts_ = std::make_unique<MeterHosts>(group_.control(), map);
  begin_run(RunStart::kAtOnce);  // its kernels are loaded, which a closed gate would prevent
  wait();
}

cuda::MeterPeers CudaMeter::peers_in(const DeviceWindow& window) const {
  cuda::MeterPeers peers;
  peers.rank = host_->control().rank();
  peers.num_ranks = host_->control().size();
  peers.timeout_ns = static_cast<std::uint64_t>(group_.timeout_ms()) * 1'000'000 *
                     (gpus_.has_shared_gpus() ? kSharedGpuPatience : 1);
  for (int rank = 0; rank < peers.num_ranks; ++rank) peers.windows.base[rank] = window.base(rank);
  return peers;
}

// Peers may still write to this rank's window.
CudaMeter::~CudaMeter() {
  cuda::set_stage_log(nullptr);
  try {
    if (hosts_ != nullptr && group_.control().is_aborted()) hosts_->abort();
    cudaDeviceSynchronize();
    group_.barrier();
    if (hosts_ != nullptr) hosts_->leave();
  } catch (const Error&) {
    // The group is lost: there is nobody to wait for.
  }
}

int CudaMeter::num_ctas(int num_sms) const {
  const int all = std::max(3, kExchangeCtasPerSm * num_sms_ / ranks_on_gpu());
  return num_sms == 0 ? all : std::min(all, std::max(3, kExchangeCtasPerSm * num_sms));
}

// After an error nothing on this GPU may go on waiting: who unwinds it frees memory, which waits
// for the GPU.
template <typename Work>
void CudaMeter::or_release(const Work& work) {
  try {
    work();
  } catch (...) {
    *flag_.as<volatile std::uint32_t>() = num_timed_;
    if (hosts_ != nullptr) hosts_->abort();
    throw;
  }
}

// What NCCL runs on the GPU has no deadline of its own.
void CudaMeter::wait() {
  if (hosts_ == nullptr) return queue_.wait();
  Control& control = group_.control();
  const WaitSite site{Phase::kBarrier, num_timed_, -1};
  const auto timeout_ms = static_cast<std::int64_t>(peers_.timeout_ns / 1'000'000);
  const Deadline deadline = Deadline::after_ms(timeout_ms);
  Deadline next_look = Deadline::after_ms(kSliceMs);
  for (;;) {
    const cudaError_t state = cudaStreamQuery(queue_.stream().get());
    if (state != cudaErrorNotReady) return cuda::check_cuda(state, "cudaStreamQuery");
    control.check_alive(site);
    if (next_look.expired()) {
      control.look_for_lost_peers();
      next_look = Deadline::after_ms(kSliceMs);
    }
    if (deadline.expired()) {
      control.abort(Errc::kTimeout, -1,
                    fmt::format("work of the GPU of rank {} has not ended after {:.1f} s",
                                group_.rank(), static_cast<double>(timeout_ms) * 1e-3));
    }
    sched_yield();
  }
}

void CudaMeter::run(const DeviceWork& work) {
  group_.barrier();
  or_release([&] {
    work(queue_.stream());
    wait();
  });
}

DeviceWork CudaMeter::capture(const DeviceWork& work) {
  const auto graph = std::make_shared<Graph>(work, queue_.stream());
  queue_.wait();
  return [graph](Stream stream) { graph->launch(stream.get()); };
}

// The word releases the GPUs of each host, whose ranks then wait for those of the others, and for
// one another.
void CudaMeter::begin_run(RunStart start) {
  cudaStream_t stream = queue_.stream().get();
  if (start == RunStart::kHeld) {
    cuda::launch_gate(peers_, flag_.as<std::uint32_t>(), num_timed_, stream);
  }
  if (hosts_ == nullptr) return;
  hosts_->meet(queue_.stream());
  cuda::launch_begin_call(peers_, num_begun_.as<std::uint32_t>(),
                          marks_.as<cuda::CallMarks>() + kMaxCalls, 0, stream);
}

double CudaMeter::time_us(const DeviceWork& work, RunStart start) {
  ++num_timed_;
  queue_.fill(flush_.data(), static_cast<int>(num_timed_ & 0xFF), flush_.size_bytes());
  group_.barrier();
  or_release([&] {
    const std::int64_t start_ns = now_ns();
    begin_run(start);
    begin_.record(queue_.stream().get());
    work(queue_.stream());
    end_.record(queue_.stream().get());
    group_.barrier();
    const auto held_ns = static_cast<std::uint64_t>(now_ns() - start_ns);
    require(start == RunStart::kAtOnce || held_ns < peers_.timeout_ns, Errc::kTimeout,
            "a timed run took {:.1f} s until all ranks had launched it, longer than the timeout of "
            "{:.1f} s, after which GPUs start on their own",
            static_cast<double>(held_ns) * 1e-9, static_cast<double>(peers_.timeout_ns) * 1e-9);
    *flag_.as<volatile std::uint32_t>() = num_timed_;
    wait();
  });
  return begin_.us_until(end_);
}

// The window begins with what this rank sends, followed by what comes from each rank.
void CudaMeter::carry(WireCopy how, int num_times, int num_ctas, Stream stream) {
  if (peers_.num_ranks == 1) return;
  if (wire_ == nullptr) {
    const std::size_t num_parts = 1 + static_cast<std::size_t>(peers_.num_ranks);
    wire_ = make_device_window(*host_, queue_.device().index, num_parts * kWireBytes);
    queue_.fill(wire_->base(peers_.rank), 0, wire_->size_bytes());
    host_->control().barrier();
  }
  const cuda::WireArgs args{0, kWireBytes, kWireBytes, num_times, peers_in(*wire_)};
  const cuda::WireGrid grid{num_ctas, num_ctas > num_sms_};
  switch (how) {
    case WireCopy::kStores: return cuda::launch_wire_stores(args, grid, stream.get());
    case WireCopy::kBulkCopies: return cuda::launch_wire_bulk_copies(args, grid, stream.get());
    case WireCopy::kLoads: return cuda::launch_wire_loads(args, grid, stream.get());
  }
}

void CudaMeter::swap_rows(int num_rows, Stream stream) {
  const int peer = peers_.rank ^ 1;
  const std::uint32_t first = num_swapped_ + 1;
  num_swapped_ += static_cast<std::uint32_t>(num_rows);
  if (peer < peers_.num_ranks) cuda::launch_swap_rows(peers_, peer, first, num_rows, stream.get());
}

void CudaMeter::touch_rows(std::byte* memory, std::size_t bytes, int num_rows, Stream stream) {
  cuda::launch_touch_rows(memory, static_cast<std::int64_t>(bytes / cuda::kMeterRowBytes), num_rows,
                          stream.get());
}

cuda::CallMarks* CudaMeter::marks_of(int call) {
  require(call >= 0 && call < kMaxCalls, Errc::kInternal, "begin_call: call {}, must be below {}",
          call, int{kMaxCalls});
  return marks_.as<cuda::CallMarks>() + call;
}

void CudaMeter::begin_call(int call, std::int64_t late_ns, Stream stream) {
  cuda::launch_begin_call(peers_, num_begun_.as<std::uint32_t>(), marks_of(call),
                          static_cast<std::uint64_t>(late_ns), stream.get());
}

void CudaMeter::end_call(int call, Stream stream) {
  cuda::launch_end_call(marks_of(call), stream.get());
}

std::vector<DeviceMeter::CallTime> CudaMeter::call_times(int num_calls) {
  std::vector<cuda::CallMarks> marks(static_cast<std::size_t>(num_calls));
  queue_.copy(marks.data(), marks_.data(), marks.size() * sizeof(cuda::CallMarks));
  std::vector<CallTime> times;
  for (const cuda::CallMarks& mark : marks) {
    times.push_back({1e-3 * static_cast<double>(mark.begin - mark.all_here),
                     1e-3 * static_cast<double>(mark.end - mark.begin)});
  }
  return times;
}

void CudaMeter::run_other_code(Stream stream) {
  cuda::launch_other_code(flush_.data(), kOtherBytes, num_sms_, stream.get());
}

void CudaMeter::record_stages(bool records) {
  if (records && stages_ == nullptr) {
    constexpr int kMaxCtas =
        kExchangeCtasPerSm * (kExchangeThreads / kMinExchangeThreads);  // per SM
    stages_ = std::make_unique<cuda::StageLog>(kMaxCtas * num_sms_);
  }
  cuda::set_stage_log(records ? stages_.get() : nullptr);
}

std::vector<cuda::KernelStages> CudaMeter::take_stages() {
  queue_.wait();
  return stages_ == nullptr ? std::vector<cuda::KernelStages>{} : stages_->take();
}

DeviceWork CudaMeter::host_messages(const WireBytes& sent) {
  require(hosts_ != nullptr, Errc::kInternal, "host_messages: all ranks share a host");
  return hosts_->messages(sent, queue_);
}

std::string CudaMeter::why_no_nccl() const {
  if (window_->is_shared_gpu()) return "NCCL requires a GPU for each rank";
  return nccl_calls_obstacle();
}

std::string CudaMeter::join_nccl() {
  if (nccl_ != nullptr) return {};
  try {
    gather_or_fail(group_.control(), {Phase::kSetup, "NCCL library"}, [&] {
      const std::string why = why_no_nccl();
      require(why.empty(), Errc::kNotAvailable, "{}", why);
      return std::string();
    });
    nccl_ = make_nccl_all_to_all(group_.control(), queue_.device().index);
    return {};
  } catch (const Error& error) {
    const Errc code = error.code();
    if (code != Errc::kNotAvailable && code != Errc::kSystem) throw;
    return error.what();
  }
}

DeviceWork CudaMeter::nccl_all_to_all(const std::vector<std::int64_t>& sent,
                                      const std::vector<std::int64_t>& received) {
  require(nccl_ != nullptr, Errc::kInternal, "nccl_all_to_all: the ranks have not joined NCCL");
  const auto total = [](const std::vector<std::int64_t>& bytes) {
    return static_cast<std::size_t>(std::accumulate(bytes.begin(), bytes.end(), std::int64_t{0}));
  };
  return [nccl = nccl_, bytes = AllToAllBytes{sent, received}, from = queue_.allocate(total(sent)),
          to = queue_.allocate(total(received))](Stream stream) {
    nccl->enqueue(bytes, from.get(), to.get(), stream.get());
  };
}

}  // namespace

std::unique_ptr<DeviceMeter> make_cuda_meter(const Group& group) {
  return std::make_unique<CudaMeter>(group);
}

}  // namespace switchyard

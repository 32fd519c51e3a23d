// SPDX-License-Identifier: Apache-2.0
//
// device_window.cpp: how a group gets a window. Ranks exchange what they have and derive from it
// which heaps to try. The first heap whose every step, the probe included, works on every rank
// wins.

#include "heap/device_window.h"

#include <unistd.h>

#include "core/bytes.h"
#include "core/fail.h"
#include "core/log.h"
#include "core/settings.h"
#include "cuda/base/check.h"
#include "engine/mesh.h"
#include "heap/gather_or_fail.h"
#include "heap/heap.h"
#include "heap/heap_support.h"
#include "heap/nccl_heap.h"
#include "heap/probe_window.h"
#include "transport/secret.h"

namespace switchyard {
namespace {

constexpr Step kFacts{Phase::kExchange, "facts of the GPUs"};
constexpr Step kReach{Phase::kExchange, "reach of the GPUs"};
constexpr Step kPlace{Phase::kExchange, "memory of the GPUs"};
constexpr Step kSwap{Phase::kExchange, "descriptors of the GPUs"};
constexpr Step kMap{Phase::kExchange, "mapping of the GPUs"};
constexpr Step kNonce{Phase::kExchange, "nonce of the probe"};
constexpr Step kWrite{Phase::kExchange, "writes of the probe"};
constexpr Step kRead{Phase::kExchange, "reads of the probe"};

// Another container may have the same pid; the secret is unique to this process.
std::string process_name() {
  static const std::string secret = make_secret();
  return fmt::format("{}-{}", getpid(), secret);
}

RankFacts own_facts(const Engine& engine, int device, std::size_t bytes,
                    const std::string& wanted) {
  require(bytes > 0, Errc::kInvalidArgument, "0 bytes, must be at least 1");
  checked_add(bytes, 2 * kHeapUnitBytes);
  int num_devices = 0;
  cuda::check_cuda(cudaGetDeviceCount(&num_devices), "cudaGetDeviceCount");
  require(device >= 0 && device < num_devices, Errc::kInvalidArgument,
          "device {}, must be from 0 to {}", device, num_devices - 1);
  const cuda::DeviceGuard guard(device);
  cuda::check_cuda(cudaFree(nullptr), "first use of the GPU");  // here: all ranks see a failure
  RankFacts facts;
  facts.wanted = wanted == "auto" ? setting("SWITCHYARD_HEAP").text : wanted;
  facts.bytes = bytes;
  facts.host = Introduction::of_this_process(engine.control().size(), "").host_id();
  facts.process = process_name();
  facts.device = device;
  facts.gpu = gpu_uuid(device);
  facts.obstacles = heap_obstacles(device);
  if (facts.wanted == name_of(HeapKind::kNccl)) {
    facts.obstacles[static_cast<std::size_t>(HeapKind::kNccl)] = nccl_obstacle();
  }
  std::string& vmm = facts.obstacles[static_cast<std::size_t>(HeapKind::kVmm)];
  if (vmm.empty() && !(engine.has_windows() && engine.windows().can_swap_descriptors())) {
    vmm = fmt::format("engine \"{}\" cannot pass descriptors", engine.name());
  }
  return facts;
}

std::vector<RankFacts> gather_facts(Engine& engine, int device, std::size_t bytes,
                                    const std::string& wanted) {
  std::vector<RankFacts> ranks;
  for (const std::string& text : gather_or_fail(engine.control(), kFacts, [&] {
         return own_facts(engine, device, bytes, wanted).text();
       })) {
    ranks.push_back(RankFacts::parse(text));
  }
  require_equal_facts(ranks);
  return ranks;
}

void require_group_reach(Engine& engine, int device, const std::vector<RankFacts>& ranks) {
  std::vector<std::string> gpus;
  for (const RankFacts& one : ranks) gpus.push_back(one.gpu);
  require_reach(ranks,
                gather_or_fail(engine.control(), kReach, [&] { return reach_of(device, gpus); }));
}

std::unique_ptr<Heap> make_heap(HeapKind kind, const HeapRequest& request) {
  switch (kind) {
    case HeapKind::kSameProcess: return make_same_process_heap(request);
    case HeapKind::kNccl: return make_nccl_heap(request);
    case HeapKind::kVmm: return make_vmm_heap(request);
    case HeapKind::kIpc: break;
  }
  return make_ipc_heap(request);
}

std::unique_ptr<DeviceWindow> share(HeapKind kind, const HeapRequest& request) {
  Engine& engine = request.engine;
  std::unique_ptr<Heap> heap = make_heap(kind, request);
  const std::vector<std::string> texts =
      gather_or_fail(engine.control(), kPlace, [&] { return heap->place(); });
  gather_or_fail(engine.control(), kSwap, [&] { return heap->swap(texts), std::string(); });
  gather_or_fail(engine.control(), kMap, [&] { return heap->map(texts), std::string(); });
  const std::uint64_t nonce =
      std::hash<std::string>{}(gather_or_fail(engine.control(), kNonce, make_secret)[0]);
  gather_or_fail(engine.control(), kWrite, [&] {
    return write_patterns(*heap, engine.control().rank(), nonce), std::string();
  });
  gather_or_fail(engine.control(), kRead, [&] {
    return require_patterns(*heap, engine.control().rank(), nonce), std::string();
  });
  log(LogLevel::kInfo, "heap", "window of {} bytes on {} ranks through heap {}", request.bytes,
      engine.control().size(), name_of(kind));
  return heap;
}

// Errors of a heap that should have worked: the next one may still work.
bool is_obstacle(Errc code) {
  return code == Errc::kNotAvailable || code == Errc::kNotSupported || code == Errc::kSystem;
}

}  // namespace

std::unique_ptr<DeviceWindow> make_device_window(Engine& engine, int device, std::size_t bytes,
                                                 const std::string& wanted) {
  const std::vector<RankFacts> ranks = gather_facts(engine, device, bytes, wanted);
  const std::vector<HeapKind> kinds = heaps_to_try(ranks);
  require_group_reach(engine, device, ranks);
  const cuda::DeviceGuard guard(device);
  const HeapRequest request{engine, device, bytes, ranks};
  for (std::size_t i = 0;; ++i) {
    try {
      return share(kinds[i], request);
    } catch (const Error& error) {
      if (!is_obstacle(error.code()) || i + 1 == kinds.size()) throw;
      log(LogLevel::kWarn, "heap", "heap {} does not work here, next is {}: {}", name_of(kinds[i]),
          name_of(kinds[i + 1]), error.what());
    }
  }
}

}  // namespace switchyard

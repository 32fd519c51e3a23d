// SPDX-License-Identifier: Apache-2.0

#include "module/describe_devices.h"

#include <algorithm>
#include <array>
#include <cuda_runtime_api.h>

#include "core/fail.h"
#include "cuda/base/check.h"
#include "heap/heap_support.h"
#include "heap/nccl_heap.h"
#include "heap/rank_facts.h"
#include "module/nvml.h"

namespace switchyard {
namespace {

std::string pci_of(int device) {
  std::array<char, 32> text{};
  cuda::check_cuda(cudaDeviceGetPCIBusId(text.data(), static_cast<int>(text.size()), device),
                   "cudaDeviceGetPCIBusId");
  return text.data();
}

GpuFacts describe_gpu(int device) {
  cudaDeviceProp properties{};
  cuda::check_cuda(cudaGetDeviceProperties(&properties, device), "cudaGetDeviceProperties");
  GpuFacts gpu;
  gpu.name = properties.name;
  gpu.uuid = gpu_uuid(device);
  gpu.pci = pci_of(device);
  gpu.memory_bytes = static_cast<std::int64_t>(properties.totalGlobalMem);
  gpu.num_sms = properties.multiProcessorCount;
  gpu.compute_major = properties.major;
  gpu.compute_minor = properties.minor;
  const NvmlFacts more = nvml_facts(gpu.uuid);
  gpu.free_bytes = more.free_bytes;
  gpu.num_nvlinks = more.num_nvlinks;
  return gpu;
}

GpuLink link_of(int from, int to) {
  if (from == to) return GpuLink::kSelf;
  int can = 0;
  int has_atomics = 0;
  cuda::check_cuda(cudaDeviceCanAccessPeer(&can, from, to), "cudaDeviceCanAccessPeer");
  if (can == 0) return GpuLink::kNone;
  cuda::check_cuda(
      cudaDeviceGetP2PAttribute(&has_atomics, cudaDevP2PAttrNativeAtomicSupported, from, to),
      "cudaDeviceGetP2PAttribute");
  return has_atomics != 0 ? GpuLink::kNvlink : GpuLink::kPeer;
}

// Hypothetical ranks: one per GPU, and at least two.
std::vector<RankFacts> imagined_ranks(const DeviceFacts& facts, const std::string& wanted,
                                      bool are_threads) {
  const std::size_t num_gpus = facts.gpus.size();
  std::vector<RankFacts> ranks(std::max<std::size_t>(num_gpus, 2));
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    RankFacts& one = ranks[rank];
    one.wanted = wanted;
    one.process = are_threads ? "one" : std::to_string(rank);
    one.device = static_cast<int>(rank % num_gpus);
    one.gpu = facts.gpus[rank % num_gpus].uuid;
    one.obstacles = heap_obstacles(one.device);
    one.obstacles[static_cast<std::size_t>(HeapKind::kNccl)] = facts.nccl_obstacle;
  }
  return ranks;
}

std::vector<ReachRow> imagined_reach(const std::vector<RankFacts>& ranks) {
  std::vector<std::string> gpus;
  for (const RankFacts& one : ranks) gpus.push_back(one.gpu);
  std::vector<ReachRow> rows;
  for (const RankFacts& one : ranks) rows.push_back(reach_of(one.device, gpus));
  return rows;
}

std::string reason_of(HeapKind kind, const std::string& wanted,
                      const std::vector<RankFacts>& ranks) {
  if (wanted != "auto") return "SWITCHYARD_HEAP asks for it";
  switch (kind) {
    case HeapKind::kSameProcess: return "threads share addresses";
    case HeapKind::kVmm: return "the driver gives descriptors for memory of every GPU";
    case HeapKind::kNccl:
    case HeapKind::kIpc: break;
  }
  for (const RankFacts& one : ranks) {
    const std::string& why = one.obstacles[static_cast<std::size_t>(HeapKind::kVmm)];
    if (!why.empty()) return "no vmm: " + why;
  }
  return {};
}

HeapPlan plan_heap(const DeviceFacts& facts, const std::string& wanted, bool are_threads) {
  try {
    const std::vector<RankFacts> ranks = imagined_ranks(facts, wanted, are_threads);
    const HeapKind kind = heaps_to_try(ranks)[0];
    require_reach(ranks, imagined_reach(ranks));
    return {name_of(kind), reason_of(kind, wanted, ranks)};
  } catch (const Error& error) {
    return {"", error.what()};
  }
}

}  // namespace

DeviceFacts describe_devices(const std::string& wanted_heap) {
  DeviceFacts facts;
  facts.driver_version = nvml_driver_version();
  cuda::check_cuda(cudaDriverGetVersion(&facts.driver_cuda), "cudaDriverGetVersion");
  cuda::check_cuda(cudaRuntimeGetVersion(&facts.runtime_cuda), "cudaRuntimeGetVersion");
  int num_gpus = 0;
  cuda::check_cuda(cudaGetDeviceCount(&num_gpus), "cudaGetDeviceCount");
  require(num_gpus > 0, Errc::kNotAvailable, "describe_devices: CUDA shows no GPU");
  for (int from = 0; from < num_gpus; ++from) {
    facts.gpus.push_back(describe_gpu(from));
    std::vector<GpuLink> row;
    for (int to = 0; to < num_gpus; ++to) row.push_back(link_of(from, to));
    facts.links.push_back(std::move(row));
  }
  facts.nccl_version = nccl_version();
  facts.nccl_obstacle = nccl_obstacle();
  facts.hosts_obstacle = nccl_links_obstacle();
  facts.threads = plan_heap(facts, wanted_heap, true);
  facts.processes = plan_heap(facts, wanted_heap, false);
  return facts;
}

}  // namespace switchyard

// SPDX-License-Identifier: Apache-2.0
//
// device_facts.h: what the CUDA module knows about the GPUs of this machine, for reports.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace switchyard {

struct GpuFacts {
  std::string name;
  std::string uuid;
  std::string pci;  ///< domain:bus:device.function
  std::int64_t memory_bytes = 0;
  std::int64_t free_bytes = -1;  ///< -1: unknown
  int num_sms = 0;
  int compute_major = 0;
  int compute_minor = 0;
  int num_nvlinks = -1;  ///< active links; -1: unknown
};

/// How one GPU addresses the memory of another.
enum class GpuLink {
  kSelf,
  kNvlink,  ///< peer access with native atomics
  kPeer,    ///< peer access without them: PCIe
  kNone,
};

/// The heap through which ranks would share GPU memory.
struct HeapPlan {
  std::string kind;  ///< empty: no heap works
  std::string why;   ///< why this one, or why none
};

struct DeviceFacts {
  std::string driver_version;  ///< for example "580.65.06"; empty: unknown
  int driver_cuda = 0;         ///< newest CUDA that the driver supports; 13000 is 13.0
  int runtime_cuda = 0;        ///< CUDA of this build
  std::vector<GpuFacts> gpus;
  std::vector<std::vector<GpuLink>> links;  ///< [from][to]
  int nccl_version = 0;                     ///< for example 22809; 0: not found
  std::string nccl_obstacle;                ///< empty, or why NCCL windows cannot be used
  std::string hosts_obstacle;  ///< empty, or why GPUs of several hosts cannot exchange over NCCL
  HeapPlan threads;            ///< ranks are threads, one GPU each
  HeapPlan processes;          ///< ranks are processes, one GPU each
};

}  // namespace switchyard

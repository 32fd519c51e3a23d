// SPDX-License-Identifier: Apache-2.0
//
// Ranks are threads of one process: a pointer means the same to all of them, and a GPU may follow
// it once peer access is on. It stays on: other windows of the process may need it.

#include "core/fail.h"
#include "cuda/check.h"
#include "p2p/heap.h"

namespace switchyard {
namespace {

void enable_peer_access(int peer_device) {
  const cudaError_t result = cudaDeviceEnablePeerAccess(peer_device, 0);
  if (result == cudaErrorPeerAccessAlreadyEnabled) {
    cudaGetLastError();
    return;
  }
  check_cuda(result, "cudaDeviceEnablePeerAccess");
}

class SameProcessHeap final : public Heap {
 public:
  explicit SameProcessHeap(const HeapRequest& request)
      : Heap(HeapKind::kSameProcess, request), ranks_(request.ranks) {}
  ~SameProcessHeap() override {
    release([&] { own_ = DeviceBuffer(); });
  }

  std::string place() override {
    own_ = DeviceBuffer(mapped_bytes());
    return fmt::format("{}", reinterpret_cast<std::uintptr_t>(own_.data()));
  }

  void map(const std::vector<std::string>& texts) override {
    for (std::size_t peer = 0; peer < texts.size(); ++peer) {
      if (ranks_[peer].device != device_) enable_peer_access(ranks_[peer].device);
      bases_[peer] = reinterpret_cast<std::byte*>(std::stoull(texts[peer]));
    }
  }

 private:
  std::vector<RankFacts> ranks_;
  DeviceBuffer own_;
};

}  // namespace

std::unique_ptr<Heap> make_same_process_heap(const HeapRequest& request) {
  return std::make_unique<SameProcessHeap>(request);
}

}  // namespace switchyard

// SPDX-License-Identifier: Apache-2.0
//
// Ranks are threads of one process: a pointer means the same to all of them, and a GPU can
// dereference it once peer access is on. Peer access stays on, because other windows of the process
// may need it. Every rank owns the memory of all ranks: after a failure, a rank may end while
// kernels of another still write to its memory.

#include <algorithm>
#include <atomic>
#include <map>
#include <mutex>
#include <utility>

#include "core/fail.h"
#include "cuda/base/check.h"
#include "heap/heap.h"

namespace switchyard {
namespace {

void enable_peer_access(int peer_device) {
  const cudaError_t result = cudaDeviceEnablePeerAccess(peer_device, 0);
  if (result == cudaErrorPeerAccessAlreadyEnabled) {
    cudaGetLastError();
    return;
  }
  cuda::check_cuda(result, "cudaDeviceEnablePeerAccess");
}

// Of one rank; all ranks own it.
struct RankMemory {
  explicit RankMemory(std::size_t bytes) : buffer(bytes) {}
  cuda::DeviceBuffer buffer;
  std::shared_ptr<std::atomic<bool>> is_abandoned = std::make_shared<std::atomic<bool>>(false);
};
using SharedMemory = std::shared_ptr<RankMemory>;

// Where ranks find each other's memory.
class MemoryList {
 public:
  std::uint64_t add(const SharedMemory& memory) {
    const std::lock_guard lock(mutex_);
    std::erase_if(list_, [](const auto& one) { return one.second.expired(); });
    list_[++num_added_] = memory;
    return num_added_;
  }
  SharedMemory find(std::uint64_t number) {
    const std::lock_guard lock(mutex_);
    const auto at = list_.find(number);
    return at == list_.end() ? nullptr : at->second.lock();
  }

 private:
  std::mutex mutex_;
  std::uint64_t num_added_ = 0;
  std::map<std::uint64_t, std::weak_ptr<RankMemory>> list_;
};

MemoryList& memory_list() {
  static MemoryList list;
  return list;
}

class SameProcessHeap final : public Heap {
 public:
  explicit SameProcessHeap(const HeapRequest& request)
      : Heap(HeapKind::kSameProcess, request), ranks_(request.ranks) {}
  ~SameProcessHeap() override {
    release([&] {
      memories_.clear();
      own_.reset();
    });
  }

  std::string place() override {
    own_ = std::make_shared<RankMemory>(mapped_bytes());
    return fmt::format("{}", memory_list().add(own_));
  }

  void map(const std::vector<std::string>& texts) override {
    for (std::size_t peer = 0; peer < texts.size(); ++peer) {
      if (ranks_[peer].device != device_) enable_peer_access(ranks_[peer].device);
      memories_.push_back(memory_list().find(std::stoull(texts[peer])));
      require(memories_.back() != nullptr, Errc::kSystem, "rank {} has released its memory", peer);
      bases_[peer] = memories_.back()->buffer.data();
    }
  }

  void abandon() noexcept override { own_->is_abandoned->store(true); }
  std::function<int()> abandoned_by() const override {
    std::vector<std::shared_ptr<std::atomic<bool>>> marks;
    for (const SharedMemory& memory : memories_) marks.push_back(memory->is_abandoned);
    return [marks = std::move(marks)] {
      const auto at =
          std::find_if(marks.begin(), marks.end(), [](const auto& mark) { return mark->load(); });
      return at == marks.end() ? -1 : static_cast<int>(at - marks.begin());
    };
  }

 private:
  std::vector<RankFacts> ranks_;
  SharedMemory own_;
  std::vector<SharedMemory> memories_;  // of all ranks
};

}  // namespace

std::unique_ptr<Heap> make_same_process_heap(const HeapRequest& request) {
  return std::make_unique<SameProcessHeap>(request);
}

}  // namespace switchyard

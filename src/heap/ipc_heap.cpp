// SPDX-License-Identifier: Apache-2.0
//
// Ranks are processes. Each passes a cudaIpcMemHandle_t to the others: 64 bytes, which travel as
// text.

#include "core/fail.h"
#include "cuda/base/check.h"
#include "heap/heap.h"
#include "heap/hex.h"

namespace switchyard {
namespace {

class IpcHeap final : public Heap {
 public:
  explicit IpcHeap(const HeapRequest& request) : Heap(HeapKind::kIpc, request) {}
  ~IpcHeap() override {
    unmap_peers();
    release([&] { own_ = cuda::DeviceBuffer(); });
  }

  void unmap_peers() noexcept override {
    release([&] {
      for (int peer = 0; peer < num_ranks(); ++peer) {
        std::byte*& base = bases_[static_cast<std::size_t>(peer)];
        if (peer != rank_ && base != nullptr) cudaIpcCloseMemHandle(base);
        base = nullptr;
      }
    });
  }
  void leave_memory() noexcept override { own_.leave(); }

  std::string place() override {
    own_ = cuda::DeviceBuffer(mapped_bytes());
    cudaIpcMemHandle_t handle{};
    cuda::check_cuda(cudaIpcGetMemHandle(&handle, own_.data()), "cudaIpcGetMemHandle");
    return to_hex(handle.reserved);
  }

  void map(const std::vector<std::string>& texts) override {
    for (int peer = 0; peer < num_ranks(); ++peer) {
      void* address = own_.data();
      if (peer != rank_) {
        const std::string what = fmt::format("cudaIpcOpenMemHandle of rank {}", peer);
        cudaIpcMemHandle_t handle{};
        from_hex("an IPC handle of", texts[static_cast<std::size_t>(peer)], handle.reserved);
        cuda::check_cuda(cudaIpcOpenMemHandle(&address, handle, cudaIpcMemLazyEnablePeerAccess),
                         what.c_str());
      }
      bases_[static_cast<std::size_t>(peer)] = static_cast<std::byte*>(address);
    }
  }

 private:
  cuda::DeviceBuffer own_;
};

}  // namespace

std::unique_ptr<Heap> make_ipc_heap(const HeapRequest& request) {
  return std::make_unique<IpcHeap>(request);
}

}  // namespace switchyard

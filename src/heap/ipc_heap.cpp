// SPDX-License-Identifier: Apache-2.0
//
// Ranks are processes. Each passes a cudaIpcMemHandle_t to the others: 64 bytes, which travel as
// text.

#include <cstring>

#include "core/fail.h"
#include "cuda/base/check.h"
#include "heap/heap.h"

namespace switchyard {
namespace {

std::string to_hex(const cudaIpcMemHandle_t& handle) {
  std::string text;
  for (const char byte : handle.reserved) {
    text += fmt::format("{:02x}", static_cast<unsigned char>(byte));
  }
  return text;
}

cudaIpcMemHandle_t from_hex(const std::string& text) {
  cudaIpcMemHandle_t handle{};
  require(text.size() == 2 * sizeof(handle.reserved), Errc::kSystem,
          "device window: an IPC handle of {} digits, want {}", text.size(),
          2 * sizeof(handle.reserved));
  for (std::size_t i = 0; i < sizeof(handle.reserved); ++i) {
    handle.reserved[i] = static_cast<char>(std::stoi(text.substr(2 * i, 2), nullptr, 16));
  }
  return handle;
}

class IpcHeap final : public Heap {
 public:
  explicit IpcHeap(const HeapRequest& request) : Heap(HeapKind::kIpc, request) {}
  ~IpcHeap() override {
    release([&] {
      for (int peer = 0; peer < num_ranks(); ++peer) {
        if (peer != rank_ && base(peer) != nullptr) cudaIpcCloseMemHandle(base(peer));
      }
      own_ = cuda::DeviceBuffer();
    });
  }

  std::string place() override {
    own_ = cuda::DeviceBuffer(mapped_bytes());
    cudaIpcMemHandle_t handle{};
    cuda::check_cuda(cudaIpcGetMemHandle(&handle, own_.data()), "cudaIpcGetMemHandle");
    return to_hex(handle);
  }

  void map(const std::vector<std::string>& texts) override {
    for (int peer = 0; peer < num_ranks(); ++peer) {
      void* address = own_.data();
      if (peer != rank_) {
        const std::string what = fmt::format("cudaIpcOpenMemHandle of rank {}", peer);
        cuda::check_cuda(
            cudaIpcOpenMemHandle(&address, from_hex(texts[static_cast<std::size_t>(peer)]),
                                 cudaIpcMemLazyEnablePeerAccess),
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

// SPDX-License-Identifier: Apache-2.0
//
// The only file with device code of NCCL. Before 2.29.2, only a kernel can ask a window for
// pointers.

#include <nccl_device.h>

#include "cuda/base/check.h"
#include "cuda/base/memory.h"
#include "heap/nccl_peers.h"

namespace switchyard {
namespace {

__global__ void resolve_peers_kernel(ncclWindow_t window, int num_ranks, void** pointers) {
  for (int peer = 0; peer < num_ranks; ++peer) {
    pointers[peer] = ncclGetLsaPointer(window, 0, peer);
  }
}

}  // namespace

std::vector<std::byte*> resolve_by_kernel(ncclWindow_t window, int num_ranks) {
  const cuda::OwnedStream stream;
  std::vector<std::byte*> pointers(static_cast<std::size_t>(num_ranks));
  const std::size_t bytes = pointers.size() * sizeof(std::byte*);
  const cuda::DeviceBuffer table(bytes);
  resolve_peers_kernel<<<1, 1, 0, stream.get()>>>(window, num_ranks, table.as<void*>());
  cuda::check_launch("resolve_peers_kernel");
  cuda::check_cuda(
      cudaMemcpyAsync(pointers.data(), table.data(), bytes, cudaMemcpyDeviceToHost, stream.get()),
      "cudaMemcpyAsync");
  cuda::check_cuda(cudaStreamSynchronize(stream.get()), "resolve_peers_kernel");
  return pointers;
}

}  // namespace switchyard

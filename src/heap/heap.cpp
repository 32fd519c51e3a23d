// SPDX-License-Identifier: Apache-2.0

#include "heap/heap.h"

#include "core/bytes.h"

namespace switchyard {
Heap::Heap(HeapKind kind, const HeapRequest& request)
    : engine_(&request.engine),
      rank_(request.engine.control().rank()),
      device_(request.device),
      mapped_bytes_(align_up(request.bytes, kHeapUnitBytes)) {
  kind_ = kind;
  size_bytes_ = request.bytes;
  bases_.resize(request.ranks.size());
  ranks_on_gpu_ = num_ranks_on_gpu(request.ranks, rank_);
  for (int rank = 0; rank < num_ranks(); ++rank) {
    has_shared_gpus_ |= num_ranks_on_gpu(request.ranks, rank) > 1;
  }
}

void Heap::release(const std::function<void()>& free) const noexcept {
  int previous = 0;
  cudaGetDevice(&previous);
  cudaSetDevice(device_);
  cudaDeviceSynchronize();
  free();
  cudaSetDevice(previous);
  cudaGetLastError();  // keep a lost GPU's error from whoever calls CUDA next
}

}  // namespace switchyard

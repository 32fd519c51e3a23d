// SPDX-License-Identifier: Apache-2.0
//
// cuda_graph.h: a CUDA graph of what a call enqueues.
#pragma once

#include <cuda_runtime_api.h>
#include <utility>

#include "cuda/base/check.h"

namespace switchyard::test {

class CudaGraph {
 public:
  CudaGraph() = default;
  /// Captures `call`, and waits until the graph is on the GPU: a replay allocates nothing.
  template <typename Call>
  CudaGraph(cudaStream_t stream, const Call& call) {
    cudaGraph_t graph = nullptr;
    cuda::check_cuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "capture");
    call();
    cuda::check_cuda(cudaStreamEndCapture(stream, &graph), "capture");
    cuda::check_cuda(cudaGraphInstantiate(&executable_, graph, 0), "graph");
    cuda::check_cuda(cudaGraphDestroy(graph), "graph");
    cuda::check_cuda(cudaGraphUpload(executable_, stream), "graph");
    cuda::check_cuda(cudaStreamSynchronize(stream), "graph");
  }
  CudaGraph(CudaGraph&& other) noexcept : executable_(std::exchange(other.executable_, nullptr)) {}
  CudaGraph& operator=(CudaGraph&& other) noexcept {
    std::swap(executable_, other.executable_);
    return *this;
  }
  ~CudaGraph() {
    if (executable_ != nullptr) cudaGraphExecDestroy(executable_);
  }

  void replay(cudaStream_t stream) const {
    cuda::check_cuda(cudaGraphLaunch(executable_, stream), "replay");
  }

 private:
  cudaGraphExec_t executable_ = nullptr;
};

}  // namespace switchyard::test

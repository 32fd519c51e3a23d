// SPDX-License-Identifier: Apache-2.0
//
// exchange_rank.h: one rank with an exchange on its GPU and all the memory that a dispatch and its
// combine need. Nothing is allocated later: the runtime would wait for kernels that run, which may
// wait for a peer that shares the GPU.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "switchyard/exchange.h"

#include "cuda/base/check.h"
#include "cuda_graph.h"
#include "gpu.h"

namespace switchyard::test {

inline ExchangeConfig fault_config(Layout layout = Layout::kExpanded) {
  ExchangeConfig config;
  config.num_experts = 8;
  config.num_topk = 2;
  config.hidden = 1024;
  config.max_tokens_per_rank = 16;
  config.layout = layout;
  config.worst_case_rows = true;
  return config;
}

/// The caller makes gpu_of(rank) current.
class ExchangeRank {
 public:
  ExchangeRank(const Group& group, const ExchangeConfig& config,
               const ExchangeOptions& options = {})
      : num_tokens_(config.max_tokens_per_rank),
        hidden_(config.hidden),
        num_topk_(config.num_topk),
        device_(gpu_of(group.rank())),
        host_ids_(static_cast<std::size_t>(num_tokens_ * num_topk_)),
        tokens_(DType::kBF16, {num_tokens_, hidden_}, device_),
        output_(DType::kBF16, {num_tokens_, hidden_}, device_),
        ids_(DType::kI64, {num_tokens_, num_topk_}, device_),
        stream_(make_stream(device_)),
        exchange_(group, config, on_device(options, device_)) {
    cuda::check_cuda(cudaMemset(tokens_.data(), 0x3F, tokens().num_bytes()), "cudaMemset");
    set_ids([&](std::int64_t token, std::int64_t k) {
      return (token * num_topk_ + k) % config.num_experts;
    });
    group.barrier();
  }

  /// Sets every id. Do not call this while kernels run.
  void set_ids(const std::function<std::int64_t(std::int64_t token, std::int64_t k)>& id_of) {
    for (std::size_t i = 0; i < host_ids_.size(); ++i) {
      const auto at = static_cast<std::int64_t>(i);
      host_ids_[i] = id_of(at / num_topk_, at % num_topk_);
    }
    cuda::check_cuda(
        cudaMemcpy(ids_.data(), host_ids_.data(), 8 * host_ids_.size(), cudaMemcpyHostToDevice),
        "ids");
    cuda::check_cuda(cudaStreamSynchronize(cudaStreamLegacy), "ids");
    ids_dtype_ = DType::kI64;
  }

  /// Switches the same ids to i32. Do not call this while kernels run.
  void narrow_ids() {
    const std::vector<std::int32_t> narrow(host_ids_.begin(), host_ids_.end());
    cuda::check_cuda(
        cudaMemcpy(ids_.data(), narrow.data(), 4 * narrow.size(), cudaMemcpyHostToDevice), "ids");
    cuda::check_cuda(cudaStreamSynchronize(cudaStreamLegacy), "ids");
    ids_dtype_ = DType::kI32;
  }

  Dispatched dispatch() { return exchange_.dispatch(tokens(), ids(), {}, stream()); }
  void combine(const Dispatched& got) {
    exchange_.combine(got.handle, got.experts.rows, output(), stream());
  }
  void pair() { combine(dispatch()); }
  /// Waits for the stream and throws the errors that the exchange found.
  void finish() {
    cuda::check_cuda(cudaStreamSynchronize(stream_.get()), "kernels");
    exchange_.check();
  }

  /// Captures `pair` as a graph. Collective, because it allocates.
  void capture(const Group& group) {
    capture(group, [this] { pair(); });
  }
  void capture(const Group& group, const std::function<void()>& call) {
    graph_ = CudaGraph(stream_.get(), call);
    group.barrier();
  }
  void replay() { graph_.replay(stream_.get()); }

  /// Counts the kernels and copies that `call` enqueues. If another rank frees memory of this GPU
  /// meanwhile, the capture is invalidated and `call` runs again.
  std::size_t num_launches(const std::function<void()>& call) {
    cudaGraph_t graph = nullptr;
    cudaError_t ended = cudaErrorStreamCaptureInvalidated;
    while (ended == cudaErrorStreamCaptureInvalidated) {
      cuda::check_cuda(cudaStreamBeginCapture(stream_.get(), cudaStreamCaptureModeThreadLocal),
                       "capture");
      call();
      ended = cudaStreamEndCapture(stream_.get(), &graph);
      (void)cudaGetLastError();
    }
    cuda::check_cuda(ended, "capture");
    std::size_t count = 0;
    cuda::check_cuda(cudaGraphGetNodes(graph, nullptr, &count), "capture");
    cuda::check_cuda(cudaGraphDestroy(graph), "capture");
    return count;
  }

  Exchange& exchange() { return exchange_; }
  Device device() const { return device_; }
  Stream stream() const { return Stream::cuda(stream_.get(), device_.index); }
  TensorView tokens() const { return tokens_; }
  TensorView ids() const {
    return TensorView(ids_.data(), ids_dtype_, {num_tokens_, num_topk_}, device_);
  }
  TensorView output() const { return output_; }

 private:
  static ExchangeOptions on_device(ExchangeOptions options, Device device) {
    options.device = device;
    return options;
  }

  std::int64_t num_tokens_;
  std::int64_t hidden_;
  std::int64_t num_topk_;
  Device device_;
  std::vector<std::int64_t> host_ids_;
  DType ids_dtype_ = DType::kI64;
  Tensor tokens_;
  Tensor output_;
  Tensor ids_;
  cuda::OwnedStream stream_;
  Exchange exchange_;  // ends before its memory
  CudaGraph graph_;
};

/// Equal weights for all rows, which some combines of an ExchangeRank return.
class ReturnedWeights {
 public:
  ReturnedWeights(Device device, const ExchangeConfig& config, std::int64_t num_calls = 1)
      : shape_{config.max_tokens_per_rank, config.num_topk},
        rows_(DType::kF32, {kMaxRows}, device),
        returned_(DType::kF32, {num_calls, shape_[0], shape_[1]}, device) {
    set(0x3F800000u);
  }

  /// Sets the bits of every weight. Do not call this while kernels run.
  void set(std::uint32_t bits) {
    const std::vector<std::uint32_t> all(kMaxRows, bits);
    cuda::check_cuda(cudaMemcpy(rows_.data(), all.data(), 4 * all.size(), cudaMemcpyHostToDevice),
                     "weights");
    cuda::check_cuda(cudaMemset(returned_.data(), 0x5A, returned_.view().num_bytes()), "weights");
    cuda::check_cuda(cudaStreamSynchronize(cudaStreamLegacy), "weights");
  }
  CombineOptions options(const Dispatched& got, std::int64_t call = 0) const {
    const TensorView& rows = got.experts.rows;
    const std::int64_t num_rows =
        rows.num_dims() == 3 ? rows.shape(0) * rows.shape(1) : rows.shape(0);
    const std::int64_t columns = got.topk_ids.has_value() ? shape_[1] : 1;
    CombineOptions options;
    options.returned_weights = TensorView(returned_.as<float>() + call * shape_[0] * shape_[1],
                                          DType::kF32, {shape_[0], shape_[1]}, rows.device());
    options.row_weights = TensorView(rows_.data(), DType::kF32, {num_rows, columns}, rows.device());
    return options;
  }
  void combine(ExchangeRank& rank, const Dispatched& got, std::int64_t call = 0) const {
    rank.exchange().combine(got.handle, got.experts.rows, rank.output(), rank.stream(),
                            options(got, call));
  }
  /// The bits that all calls returned.
  std::vector<std::uint32_t> bits() const {
    std::vector<std::uint32_t> all(num_weights());
    cuda::check_cuda(
        cudaMemcpy(all.data(), returned_.data(), 4 * all.size(), cudaMemcpyDeviceToHost),
        "weights");
    return all;
  }
  /// As many of the same.
  std::vector<std::uint32_t> all_of(std::uint32_t bits) const {
    return std::vector<std::uint32_t>(num_weights(), bits);
  }

 private:
  static constexpr std::int64_t kMaxRows = 4096;
  std::size_t num_weights() const {
    return static_cast<std::size_t>(returned_.view().num_elements());
  }

  std::int64_t shape_[2];
  Tensor rows_;
  Tensor returned_;
};

}  // namespace switchyard::test

// SPDX-License-Identifier: Apache-2.0
//
// exchange_rank.h: one rank with a Exchange and all the memory that a dispatch and its
// combine take. Nothing is allocated later: the runtime would wait for kernels that run, which may
// wait for a peer that shares the GPU.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "switchyard/exchange.h"

#include "cuda/base/check.h"
#include "cuda/base/memory.h"

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

class ExchangeRank {
 public:
  ExchangeRank(const Group& group, const ExchangeConfig& config,
               const ExchangeOptions& options = {})
      : num_tokens_(config.max_tokens_per_rank),
        hidden_(config.hidden),
        num_topk_(config.num_topk),
        host_ids_(static_cast<std::size_t>(num_tokens_ * num_topk_)),
        tokens_(2 * static_cast<std::size_t>(num_tokens_ * hidden_)),
        output_(2 * static_cast<std::size_t>(num_tokens_ * hidden_)),
        ids_(8 * host_ids_.size()),
        exchange_(group, config, options) {
    check_cuda(cudaMemset(tokens_.data(), 0x3F, tokens_.size_bytes()), "cudaMemset");
    set_ids([&](std::int64_t token, std::int64_t k) {
      return (token * num_topk_ + k) % config.num_experts;
    });
    group.barrier();
  }
  ~ExchangeRank() {
    if (graph_ != nullptr) cudaGraphExecDestroy(graph_);
  }

  /// Sets every id. Do not call this while kernels run.
  void set_ids(const std::function<std::int64_t(std::int64_t token, std::int64_t k)>& id_of) {
    for (std::size_t i = 0; i < host_ids_.size(); ++i) {
      const auto at = static_cast<std::int64_t>(i);
      host_ids_[i] = id_of(at / num_topk_, at % num_topk_);
    }
    check_cuda(cudaMemcpy(ids_.data(), host_ids_.data(), ids_.size_bytes(), cudaMemcpyHostToDevice),
               "ids");
    check_cuda(cudaStreamSynchronize(cudaStreamLegacy), "ids");
    ids_dtype_ = DType::kI64;
  }

  /// Switches the same ids to i32. Do not call this while kernels run.
  void narrow_ids() {
    const std::vector<std::int32_t> narrow(host_ids_.begin(), host_ids_.end());
    check_cuda(cudaMemcpy(ids_.data(), narrow.data(), 4 * narrow.size(), cudaMemcpyHostToDevice),
               "ids");
    check_cuda(cudaStreamSynchronize(cudaStreamLegacy), "ids");
    ids_dtype_ = DType::kI32;
  }

  Dispatched dispatch() { return exchange_.dispatch(tokens(), ids(), TensorView{}, stream_.get()); }
  void combine(const Dispatched& got) {
    exchange_.combine(got.handle, got.rows, output(), stream_.get());
  }
  void pair() { combine(dispatch()); }
  /// Waits for the stream and throws the errors that the exchange found.
  void finish() {
    check_cuda(cudaStreamSynchronize(stream_.get()), "kernels");
    exchange_.check();
  }

  /// Captures `pair` as a graph. Collective, because it allocates.
  void capture(const Group& group) {
    capture(group, [this] { pair(); });
  }
  void capture(const Group& group, const std::function<void()>& call) {
    cudaGraph_t graph = nullptr;
    check_cuda(cudaStreamBeginCapture(stream_.get(), cudaStreamCaptureModeThreadLocal), "capture");
    call();
    check_cuda(cudaStreamEndCapture(stream_.get(), &graph), "capture");
    check_cuda(cudaGraphInstantiate(&graph_, graph, 0), "graph");
    check_cuda(cudaGraphDestroy(graph), "graph");
    check_cuda(cudaGraphUpload(graph_, stream_.get()), "graph");
    check_cuda(cudaStreamSynchronize(stream_.get()), "graph");
    group.barrier();
  }
  void replay() { check_cuda(cudaGraphLaunch(graph_, stream_.get()), "replay"); }

  /// Counts the kernels and copies that `call` enqueues. If another rank frees memory of this GPU
  /// meanwhile, the capture is invalidated and `call` runs again.
  std::size_t num_launches(const std::function<void()>& call) {
    cudaGraph_t graph = nullptr;
    cudaError_t ended = cudaErrorStreamCaptureInvalidated;
    while (ended == cudaErrorStreamCaptureInvalidated) {
      check_cuda(cudaStreamBeginCapture(stream_.get(), cudaStreamCaptureModeThreadLocal),
                 "capture");
      call();
      ended = cudaStreamEndCapture(stream_.get(), &graph);
      (void)cudaGetLastError();
    }
    check_cuda(ended, "capture");
    std::size_t count = 0;
    check_cuda(cudaGraphGetNodes(graph, nullptr, &count), "capture");
    check_cuda(cudaGraphDestroy(graph), "capture");
    return count;
  }

  Exchange& exchange() { return exchange_; }
  Stream stream() const { return stream_.get(); }
  TensorView tokens() const {
    return TensorView(tokens_.data(), DType::kBF16, {num_tokens_, hidden_});
  }
  TensorView ids() const { return TensorView(ids_.data(), ids_dtype_, {num_tokens_, num_topk_}); }
  TensorView output() const {
    return TensorView(output_.data(), DType::kBF16, {num_tokens_, hidden_});
  }

 private:
  std::int64_t num_tokens_;
  std::int64_t hidden_;
  std::int64_t num_topk_;
  std::vector<std::int64_t> host_ids_;
  DType ids_dtype_ = DType::kI64;
  DeviceBuffer tokens_;
  DeviceBuffer output_;
  DeviceBuffer ids_;
  OwnedStream stream_;
  cudaGraphExec_t graph_ = nullptr;
  Exchange exchange_;  // last: it ends before its memory
};

/// Equal weights for all rows, which some combines of an ExchangeRank return.
class HomeWeights {
 public:
  explicit HomeWeights(const ExchangeConfig& config, std::int64_t num_calls = 1)
      : shape_{config.max_tokens_per_rank, config.num_topk},
        num_calls_(num_calls),
        rows_(kMaxRows * sizeof(std::uint32_t)),
        home_(num_home() * sizeof(std::uint32_t)) {
    set(0x3F800000u);
  }

  /// Sets the bits of every weight. Do not call this while kernels run.
  void set(std::uint32_t bits) {
    const std::vector<std::uint32_t> all(kMaxRows, bits);
    check_cuda(cudaMemcpy(rows_.data(), all.data(), rows_.size_bytes(), cudaMemcpyHostToDevice),
               "weights");
    check_cuda(cudaMemset(home_.data(), 0x5A, home_.size_bytes()), "weights");
    check_cuda(cudaStreamSynchronize(cudaStreamLegacy), "weights");
  }
  CombineOptions options(const Dispatched& got, std::int64_t call = 0) const {
    const TensorView& rows = got.rows;
    const std::int64_t num_rows =
        rows.num_dims() == 3 ? rows.shape(0) * rows.shape(1) : rows.shape(0);
    const std::int64_t columns = got.topk_ids.has_value() ? shape_[1] : 1;
    CombineOptions options;
    options.returned_weights = TensorView(home_.as<float>() + call * shape_[0] * shape_[1],
                                          DType::kF32, {shape_[0], shape_[1]});
    options.row_weights = TensorView(rows_.data(), DType::kF32, {num_rows, columns});
    return options;
  }
  void combine(ExchangeRank& rank, const Dispatched& got, std::int64_t call = 0) const {
    rank.exchange().combine(got.handle, got.rows, rank.output(), rank.stream(), options(got, call));
  }
  /// Returns the weights that all calls returned.
  std::vector<std::uint32_t> home() const {
    std::vector<std::uint32_t> all(num_home());
    check_cuda(cudaMemcpy(all.data(), home_.data(), home_.size_bytes(), cudaMemcpyDeviceToHost),
               "weights");
    return all;
  }
  std::vector<std::uint32_t> all_home(std::uint32_t bits) const {
    return std::vector<std::uint32_t>(num_home(), bits);
  }

 private:
  static constexpr std::size_t kMaxRows = 4096;
  std::size_t num_home() const {
    return static_cast<std::size_t>(num_calls_ * shape_[0] * shape_[1]);
  }

  std::int64_t shape_[2];
  std::int64_t num_calls_;
  DeviceBuffer rows_;
  DeviceBuffer home_;
};

}  // namespace switchyard::test

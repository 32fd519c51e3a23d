// SPDX-License-Identifier: Apache-2.0
//
// batch_of_ones.h: the calls of one handle, in a stream of its own, whose result is known.
#pragma once

#include <algorithm>
#include <memory>
#include <vector>

#include <gtest/gtest.h>

#include "switchyard/exchange.h"

#include "blocking_kernels.h"
#include "cuda/base/check.h"
#include "gpu.h"
#include "quant/bf16.h"

namespace switchyard::test {

// Tokens of ones, each to two experts, so that outputs are twos.
class BatchOfOnes {
 public:
  BatchOfOnes(const ExchangeConfig& config, Device device)
      : device_(device),
        tokens_(DType::kBF16, {config.max_tokens_per_rank, config.hidden}, device),
        output_(DType::kBF16, {config.max_tokens_per_rank, config.hidden}, device),
        ids_(DType::kI32, {config.max_tokens_per_rank, config.num_topk}, device),
        stream_(make_stream(device)) {
    std::vector<std::int32_t> ids(static_cast<std::size_t>(ids_.view().num_elements()));
    for (std::size_t i = 0; i < ids.size(); ++i) {
      ids[i] = static_cast<std::int32_t>(i) % config.num_experts;
    }
    const std::vector<std::uint16_t> ones(static_cast<std::size_t>(tokens_.view().num_elements()),
                                          0x3F80);
    cuda::check_cuda(cudaMemcpy(ids_.data(), ids.data(), 4 * ids.size(), cudaMemcpyHostToDevice),
                     "ids");
    cuda::check_cuda(
        cudaMemcpy(tokens_.data(), ones.data(), 2 * ones.size(), cudaMemcpyHostToDevice), "tokens");
    cuda::check_cuda(cudaStreamSynchronize(cudaStreamLegacy), "up");
  }

  Stream stream() const { return Stream::cuda(stream_.get(), device_.index); }
  void dispatch(Exchange& exchange, Stream stream) {
    got_ = exchange.dispatch(tokens_, ids_, {}, stream);
  }
  void combine(Exchange& exchange, Stream stream) {
    exchange.combine(got_.handle, got_.experts.rows, output_, stream);
  }
  void finish(const Exchange& exchange) {
    cuda::check_cuda(cudaStreamSynchronize(stream_.get()), "kernels");
    exchange.check();
    std::vector<std::uint16_t> output(static_cast<std::size_t>(output_.view().num_elements()));
    cuda::check_cuda(
        cudaMemcpy(output.data(), output_.data(), 2 * output.size(), cudaMemcpyDeviceToHost),
        "output");
    const std::uint16_t two = bf16_from_f32(2.0f);
    EXPECT_EQ(std::count(output.begin(), output.end(), two),
              static_cast<std::ptrdiff_t>(output.size()));
  }

 private:
  Device device_;
  Tensor tokens_;
  Tensor output_;
  Tensor ids_;
  cuda::OwnedStream stream_;
  Dispatched got_;
};

/// Each handle in a stream of its own, all in flight at once. Each rank delays different streams,
/// for longer than it takes to launch everything, so that kernels start in different orders.
inline void run_in_streams_of_their_own(Exchange& exchange, const Group& group) {
  constexpr std::int64_t kLateUs = 100'000;
  const ExchangeConfig& config = exchange.config();
  std::vector<std::unique_ptr<BatchOfOnes>> batches;
  for (int i = 0; i < config.max_in_flight; ++i) {
    batches.push_back(std::make_unique<BatchOfOnes>(config, exchange.device()));
  }
  cuda::DeviceBuffer words(2 * sizeof(std::uint32_t));
  for (int round = 0; round < 3; ++round) {  // memory is taken in the first
    group.barrier();
    for (std::size_t i = 0; i < batches.size(); ++i) {
      if (i % static_cast<std::size_t>(group.size()) == static_cast<std::size_t>(group.rank())) {
        launch_late_copy({words.data(), words.data() + 4, 4}, {}, kLateUs, false,
                         batches[i]->stream().get());
      }
    }
    for (const auto& batch : batches) batch->dispatch(exchange, batch->stream());
    for (const auto& batch : batches) batch->combine(exchange, batch->stream());
    for (const auto& batch : batches) batch->finish(exchange);
  }
}

}  // namespace switchyard::test

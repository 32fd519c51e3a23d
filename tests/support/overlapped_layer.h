// SPDX-License-Identifier: Apache-2.0
//
// overlapped_layer.h: a small MoE layer of one rank, run whole and in micro-batches.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <vector>

#include "switchyard/micro_batches.h"
#include "switchyard/modular_kernel.h"

#include "conformance/random_batch.h"
#include "plan/expert_ownership.h"

namespace switchyard::test {

struct OverlapCase {
  PrepareKind kind = PrepareKind::kLowLatency;
  QuantScheme scheme = schemes::kNone;
  Reduce reduce = Reduce::kPerExpert;
  int num_micro_batches = 2;
  bool has_even_tokens = false;  ///< 9 tokens on every rank
};

inline Tensor bf16_tensor(std::initializer_list<std::int64_t> shape, std::uint64_t seed,
                          float scale) {
  Tensor tensor(DType::kBF16, shape);
  const std::int64_t count = tensor.view().num_elements();
  const reference::Table<float> table = conformance::random_table(1, count, seed, scale);
  for (std::int64_t i = 0; i < count; ++i) {
    tensor.as<std::uint16_t>()[i] = static_cast<std::uint16_t>(
        std::bit_cast<std::uint32_t>(table.data[static_cast<std::size_t>(i)]) >> 16);
  }
  return tensor;
}

/// Seven experts spread over the ranks of a group, a shared expert, and this rank's tokens: 9, or,
/// unless they are even, none on rank 1 and one on rank 2.
class OverlappedLayer {
 public:
  static constexpr std::int32_t kExperts = 7;
  static constexpr std::int32_t kTopk = 3;
  static constexpr std::int64_t kHidden = 136;
  static constexpr std::int64_t kIntermediate = 40;
  static constexpr std::int64_t kMaxTokens = 11;

  OverlappedLayer(const Group& group, const OverlapCase& test, Stream stream = Stream::host())
      : stream_(stream),
        num_tokens_(test.has_even_tokens ? 9
                    : group.rank() == 1  ? 0
                    : group.rank() == 2  ? 1
                                         : 9),
        hidden_(bf16_tensor({num_tokens_, kHidden}, seed_of(group, 50), 1.0f)),
        topk_ids_(DType::kI32, {num_tokens_, kTopk}),
        topk_weights_(DType::kF32, {num_tokens_, kTopk}) {
    const reference::RankInput input = conformance::random_tokens(
        {kExperts, kTopk, 1, 0.1, false, -1}, num_tokens_, seed_of(group, 70));
    std::copy(input.topk_ids.data.begin(), input.topk_ids.data.end(), topk_ids_.as<std::int32_t>());
    std::copy(input.topk_weights.data.begin(), input.topk_weights.data.end(),
              topk_weights_.as<float>());
    const Device device = stream.device();
    hidden_ = hidden_.to(device);
    topk_ids_ = topk_ids_.to(device);
    topk_weights_ = topk_weights_.to(device);
    output_ = Tensor(DType::kBF16, {num_tokens_, kHidden}, device);

    PrepareFinalizeConfig config;
    config.num_experts = kExperts;
    config.num_topk = kTopk;
    config.hidden = kHidden;
    config.max_tokens_per_rank = kMaxTokens;
    config.scheme = test.scheme;
    config.reduce = test.reduce;
    config.num_micro_batches = test.num_micro_batches;
    const bool is_local = test.kind == PrepareKind::kLocal;
    const ExpertOwnership ownership{kExperts, is_local ? 1 : group.size()};
    const int rank = is_local ? 0 : group.rank();
    weights_ = Weights(ownership.count(rank), static_cast<std::uint64_t>(ownership.first(rank)));
    shared_ = Weights(1, 99);
    kernel_ = std::make_unique<ModularKernel>(
        make_prepare_finalize(test.kind, group, config, {.device = device}),
        make_exact_experts(weights_.view(), {test.scheme}, device),
        SharedExpert{make_exact_experts(shared_.view(), {}, device), {}});
  }

  ModularKernel& kernel() { return *kernel_; }
  std::int64_t num_tokens() const { return num_tokens_; }
  PrepareArguments arguments() const { return {hidden_, topk_ids_, topk_weights_}; }

  /// Into the output, without waiting for a GPU.
  void launch(int num_micro_batches) {
    if (num_micro_batches == 0) {
      kernel_->apply(arguments(), output_, stream_);
    } else {
      apply_overlapped(*kernel_, arguments(), output_, num_micro_batches, stream_);
    }
  }
  /// [T, H] as bits. 0 micro-batches: ModularKernel::apply.
  std::vector<std::uint16_t> run(int num_micro_batches) {
    launch(num_micro_batches);
    return output();
  }
  const TensorView& output_view() const { return output_.view(); }
  /// What the last call wrote.
  std::vector<std::uint16_t> output() const {
    const Tensor host = output_.to(Device::cpu(), stream_);
    return {host.as<std::uint16_t>(), host.as<std::uint16_t>() + host.view().num_elements()};
  }

 private:
  // Expert e has the same weights on whichever rank it is.
  struct Weights {
    Tensor gate, up, down;
    Weights() = default;
    Weights(std::int64_t num, std::uint64_t first)
        : gate(DType::kBF16, {num, kIntermediate, kHidden}),
          up(DType::kBF16, {num, kIntermediate, kHidden}),
          down(DType::kBF16, {num, kHidden, kIntermediate}) {
      std::uint64_t seed = 1000;
      for (const Tensor* tensor : {&gate, &up, &down}) {
        constexpr std::int64_t kSize = kIntermediate * kHidden;
        seed += 1000;
        for (std::int64_t e = 0; e < num; ++e) {
          const Tensor one =
              bf16_tensor({kSize}, seed + first + static_cast<std::uint64_t>(e), 0.1f);
          std::copy_n(one.as<std::uint16_t>(), kSize, tensor->as<std::uint16_t>() + e * kSize);
        }
      }
    }
    ExpertWeights view() const { return {gate, up, down, {}, {}, {}}; }
  };

  static std::uint64_t seed_of(const Group& group, std::uint64_t base) {
    return base + static_cast<std::uint64_t>(group.rank());
  }

  Stream stream_;
  std::int64_t num_tokens_;
  Tensor output_;
  Tensor hidden_;
  Tensor topk_ids_;
  Tensor topk_weights_;
  Weights weights_;
  Weights shared_;
  std::unique_ptr<ModularKernel> kernel_;
};

}  // namespace switchyard::test

// SPDX-License-Identifier: Apache-2.0
//
// Runs one MoE layer whole and in two overlapped micro-batches, compares their bits and times both.
// On its own it runs two ranks as threads; under a launcher (mpirun -n 2, torchrun) each process is
// a rank.

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <random>
#include <vector>

#include <switchyard/group.h>
#include <switchyard/micro_batches.h>
#include <switchyard/modular_kernel.h>

namespace sy = switchyard;

namespace {

constexpr std::int64_t kTokens = 192;  // per rank
constexpr std::int64_t kHidden = 512;
constexpr std::int64_t kIntermediate = 128;
constexpr std::int32_t kExpertsPerRank = 4;
constexpr std::int32_t kTopk = 2;
constexpr int kRepeats = 20;

sy::Tensor random_bf16(int seed, float scale, std::initializer_list<std::int64_t> shape) {
  sy::Tensor tensor(sy::DType::kBF16, shape);
  std::mt19937 bits(static_cast<unsigned>(seed));
  std::normal_distribution<float> normal(0.0f, scale);
  for (std::int64_t i = 0; i < tensor.view().num_elements(); ++i) {
    const float x = normal(bits);
    std::uint32_t word = 0;
    std::memcpy(&word, &x, sizeof(word));
    tensor.as<std::uint16_t>()[i] = static_cast<std::uint16_t>(word >> 16);
  }
  return tensor;
}

// What one rank holds: its experts, its tokens and their routing.
struct Rank {
  explicit Rank(const sy::Group& group)
      : gate(random_bf16(group.rank(), 0.05f, {kExpertsPerRank, kIntermediate, kHidden})),
        up(random_bf16(group.rank() + 100, 0.05f, {kExpertsPerRank, kIntermediate, kHidden})),
        down(random_bf16(group.rank() + 200, 0.05f, {kExpertsPerRank, kHidden, kIntermediate})),
        hidden(random_bf16(group.rank() + 300, 1.0f, {kTokens, kHidden})),
        topk_ids(sy::DType::kI32, {kTokens, kTopk}),
        topk_weights(sy::DType::kF32, {kTokens, kTopk}) {
    const int num_experts = kExpertsPerRank * group.size();
    for (int i = 0; i < kTokens * kTopk; ++i) {
      topk_ids.as<std::int32_t>()[i] = (i + i / kTopk + group.rank()) % num_experts;
      topk_weights.as<float>()[i] = 0.5f;
    }
  }

  sy::Tensor gate, up, down, hidden, topk_ids, topk_weights;
};

sy::ModularKernel make_kernel(const sy::Group& group, const Rank& rank) {
  sy::PrepareFinalizeConfig config;
  config.num_experts = kExpertsPerRank * group.size();
  config.num_topk = kTopk;
  config.hidden = kHidden;
  config.max_tokens_per_rank = kTokens;
  config.num_micro_batches = 2;  // one set of buffers for each
  sy::ExpertWeights weights;
  weights.gate = rank.gate;
  weights.up = rank.up;
  weights.down = rank.down;
  return {sy::make_low_latency(group, config), sy::make_exact_experts(weights)};
}

template <typename Call>
double time_us(const sy::Group& group, Call&& call) {
  group.barrier();
  const auto start = std::chrono::steady_clock::now();
  call();
  const auto end = std::chrono::steady_clock::now();
  return std::chrono::duration<double, std::micro>(end - start).count();
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

bool run_rank(const sy::Group& group) {
  const Rank rank(group);
  sy::ModularKernel kernel = make_kernel(group, rank);
  const sy::PrepareArguments arguments{rank.hidden, rank.topk_ids, rank.topk_weights};
  const sy::Tensor whole(sy::DType::kBF16, {kTokens, kHidden});
  const sy::Tensor overlapped(sy::DType::kBF16, {kTokens, kHidden});
  const auto run_whole = [&] { kernel.apply(arguments, whole); };
  const auto run_overlapped = [&] { sy::apply_overlapped(kernel, arguments, overlapped); };
  run_whole();
  run_overlapped();  // the first calls map pages
  // Alternates which one goes first, so that other load on the machine affects both alike.
  std::vector<double> whole_us;
  std::vector<double> overlapped_us;
  for (int i = 0; i < kRepeats; ++i) {
    if (i % 2 == 0) whole_us.push_back(time_us(group, run_whole));
    overlapped_us.push_back(time_us(group, run_overlapped));
    if (i % 2 == 1) whole_us.push_back(time_us(group, run_whole));
  }
  const bool is_same = std::memcmp(whole.data(), overlapped.data(), whole.view().num_bytes()) == 0;
  if (group.rank() == 0) {
    std::printf("%d ranks, engine %s: whole %.0f us, two micro-batches %.0f us, %s\n", group.size(),
                group.engine_name(), median(whole_us), median(overlapped_us),
                is_same ? "same bits" : "DIFFERENT BITS");
  }
  return is_same;
}

}  // namespace

int main() {
  const sy::Group group = sy::Group::from_environment();
  if (group.size() > 1) return run_rank(group) ? 0 : 1;
  bool is_same[2] = {false, false};
  sy::run_local_ranks(2, [&](const sy::Group& local) { is_same[local.rank()] = run_rank(local); });
  return is_same[0] && is_same[1] ? 0 : 1;
}

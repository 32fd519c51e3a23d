// SPDX-License-Identifier: Apache-2.0
//
// Two ranks, as threads, exchange tokens: dispatch, a toy expert, combine. Prints what was moved.

#include <array>
#include <bit>
#include <cstdint>
#include <cstdio>
#include <string>

#include <switchyard/exchange.h>

namespace sy = switchyard;

namespace {

constexpr int kRanks = 2;
constexpr int kTokens = 3;
constexpr int kTopk = 2;
constexpr int kHidden = 4;

// The experts that each rank's tokens choose. Experts 0 and 1 live on rank 0, 2 and 3 on rank 1.
constexpr std::int32_t kTopkIds[kRanks][kTokens][kTopk] = {{{0, 1}, {0, 3}, {2, 3}},
                                                           {{1, 2}, {3, -1}, {0, 2}}};
constexpr float kTopkWeights[kTokens][kTopk] = {{0.5f, 0.5f}, {0.75f, 0.25f}, {0.5f, 0.25f}};

// bf16 is the upper half of a float; the numbers here fit without rounding.
std::uint16_t bf16_of(float x) {
  return static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(x) >> 16);
}
float float_of(std::uint16_t bits) { return std::bit_cast<float>(std::uint32_t{bits} << 16); }

float value_of(int rank, int token) { return static_cast<float>(10 * rank + token + 1); }

// The toy expert multiplies by its id + 1.
float expert(int id, float x) { return static_cast<float>(id + 1) * x; }

bool run_rank(const sy::Group& group, std::string& report) {
  const int rank = group.rank();
  sy::ExchangeConfig config;
  config.num_experts = 4;
  config.num_topk = kTopk;
  config.hidden = kHidden;
  config.max_tokens_per_rank = kTokens;
  config.reduce = sy::Reduce::kPerExpert;
  sy::Exchange exchange(group, config);

  const sy::Tensor tokens(sy::DType::kBF16, {kTokens, kHidden});
  for (int t = 0; t < kTokens; ++t) {
    for (int h = 0; h < kHidden; ++h) {
      tokens.as<std::uint16_t>()[t * kHidden + h] = bf16_of(value_of(rank, t));
    }
  }
  const auto topk_ids = sy::TensorView::of(&kTopkIds[rank][0][0], {kTokens, kTopk});
  const auto topk_weights = sy::TensorView::of(&kTopkWeights[0][0], {kTokens, kTopk});

  // Each token travels once to each rank that holds one of its experts.
  const sy::Dispatched received = exchange.dispatch(tokens, topk_ids, topk_weights);
  const sy::Tensor results(sy::DType::kBF16, {received.experts.rows.shape(0), kHidden});
  std::array<char, 128> line{};
  for (const sy::RowOrigin& origin : exchange.row_origins(received.handle)) {
    const int id = 2 * rank + origin.expert;
    for (int h = 0; h < kHidden; ++h) {
      const std::int64_t i = origin.row * kHidden + h;
      const float x = float_of(received.experts.rows.as<std::uint16_t>()[i]);
      results.as<std::uint16_t>()[i] = bf16_of(expert(id, x));
    }
    std::snprintf(line.data(), line.size(), "  expert %d: row %d is token %d of rank %d\n", id,
                  static_cast<int>(origin.row), origin.token, origin.rank);
    report += line.data();
  }
  const sy::WireBytes bytes = exchange.wire_bytes(received.handle);

  // The results return to the tokens' owners; each rank sums those of its own tokens, weighted.
  const sy::Tensor output(sy::DType::kF32, {kTokens, kHidden});
  exchange.combine(received.handle, results, output);

  bool is_right = true;
  for (int t = 0; t < kTokens; ++t) {
    float want = 0;
    for (int k = 0; k < kTopk; ++k) {
      const int id = kTopkIds[rank][t][k];
      if (id >= 0) want += kTopkWeights[t][k] * expert(id, value_of(rank, t));
    }
    const float got = output.as<float>()[t * kHidden];
    is_right = is_right && got == want;
    std::snprintf(line.data(), line.size(), "  token %d: %g in, %g out\n", t,
                  static_cast<double>(value_of(rank, t)), static_cast<double>(got));
    report += line.data();
  }
  std::snprintf(line.data(), line.size(), "  sent %lld bytes by dispatch, %lld by combine\n",
                static_cast<long long>(bytes.dispatch), static_cast<long long>(bytes.combine));
  report += line.data();
  return is_right;
}

}  // namespace

int main() {
  std::array<std::string, kRanks> reports;
  std::array<bool, kRanks> is_right{};
  sy::run_local_ranks(kRanks, [&](const sy::Group& group) {
    const auto rank = static_cast<std::size_t>(group.rank());
    is_right[rank] = run_rank(group, reports[rank]);
  });
  for (std::size_t rank = 0; rank < kRanks; ++rank) {
    std::printf("rank %zu\n%s", rank, reports[rank].c_str());
  }
  return is_right[0] && is_right[1] ? 0 : 1;
}

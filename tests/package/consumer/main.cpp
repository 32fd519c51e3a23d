// SPDX-License-Identifier: Apache-2.0
//
// Runs an exchange over two threads. Also calls functions that need the library's own dependencies:
// messages (fmt), the log (spdlog), vectorized conversion (Highway) and the experts.

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstring>

#include <switchyard/error.h>
#include <switchyard/exchange.h>
#include <switchyard/experts.h>
#include <switchyard/log.h>
#include <switchyard/version.h>

namespace sy = switchyard;

namespace {

constexpr std::uint16_t kOne = 0x3F80;  // bf16 1.0
constexpr std::int64_t kHidden = 40;

// One token per rank, routed to the first expert of each rank: it returns as 0.25 + 0.5.
bool exchange_works(const sy::Group& group) {
  sy::ExchangeConfig config;
  config.num_experts = 4;
  config.num_topk = 2;
  config.hidden = kHidden;
  config.max_tokens_per_rank = 1;
  sy::Exchange exchange(group, config);
  const sy::Tensor tokens(sy::DType::kBF16, {1, kHidden});
  for (std::int64_t h = 0; h < kHidden; ++h) tokens.as<std::uint16_t>()[h] = kOne;
  const std::int32_t topk_ids[] = {0, 2};
  const float topk_weights[] = {0.25f, 0.5f};
  const sy::Dispatched received = exchange.dispatch(tokens, sy::TensorView::of(topk_ids, {1, 2}),
                                                    sy::TensorView::of(topk_weights, {1, 2}));
  const sy::Tensor output(sy::DType::kF32, {1, kHidden});
  exchange.combine(received.handle, received.experts.rows, output);
  bool is_right = received.num_rows == 2;
  for (std::int64_t h = 0; h < kHidden; ++h) {
    is_right = is_right && output.as<float>()[h] == 0.75f;
  }
  return is_right;
}

// oneDNN is optional: its absence must be an error of the library, not of the linker.
bool onednn_answers() {
  const sy::Tensor weights(sy::DType::kBF16, {1, 16, 16});
  sy::ExpertWeights mlp;
  mlp.gate = mlp.up = mlp.down = weights;
  try {
    return sy::make_onednn_experts(mlp)->name() == "onednn";
  } catch (const sy::Error& error) {
    return error.code() == sy::Errc::kNotAvailable;
  }
}

bool error_is_caught() {
  try {
    (void)sy::exchange_memory({}, 1, 0);
  } catch (const sy::Error& error) {
    return error.code() == sy::Errc::kInvalidArgument &&
           std::strstr(error.what(), "num_experts is 0") != nullptr;
  }
  return false;
}

}  // namespace

int main() {
  sy::set_log_level(sy::LogLevel::kWarn);
  std::atomic<int> num_right = 0;
  sy::run_local_ranks(2, [&](const sy::Group& group) { num_right += exchange_works(group); });
  const bool is_right = num_right == 2 && onednn_answers() && error_is_caught();
  std::printf("switchyard %s: %s\n", sy::version(), is_right ? "ok" : "wrong");
  return is_right ? 0 : 1;
}

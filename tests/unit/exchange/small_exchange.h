// SPDX-License-Identifier: Apache-2.0
//
// small_exchange.h: an exchange of a few tokens, to test refusals and that it works afterwards.
#pragma once

#include <algorithm>
#include <array>

#include "switchyard/exchange.h"

#include "support/elements.h"
#include "support/errors.h"
#include "support/ranks.h"

namespace switchyard::test {

inline constexpr std::int64_t kHidden = 8;

inline ExchangeConfig small_config() {
  ExchangeConfig config;
  config.num_experts = 4;
  config.num_topk = 2;
  config.hidden = kHidden;
  config.max_tokens_per_rank = 3;
  return config;
}

struct Inputs {
  std::array<std::uint16_t, 4 * kHidden + 1> token_values{};
  std::array<std::int32_t, 8> id_values{0, 1, 2, 3, -1, 0, 1, 2};
  std::array<float, 8> weight_values{1, 1, 1, 1, 1, 1, 1, 1};

  TensorView tokens(std::int64_t t = 2) const {
    return TensorView(token_values.data(), DType::kBF16, {t, kHidden});
  }
  TensorView ids(std::int64_t t = 2) const { return TensorView::of(id_values.data(), {t, 2}); }
  TensorView weights(std::int64_t t = 2) const {
    return TensorView::of(weight_values.data(), {t, 2});
  }
};

inline Dispatched dispatch_inputs(Exchange& exchange, const Inputs& in,
                                  const DispatchOptions& options = {}) {
  return exchange.dispatch(in.tokens(), in.ids(), in.weights(), Stream::host(), options);
}

/// A round trip in which every choice returns the token itself, so the output is K times the token.
inline void expect_works(Exchange& exchange, const DispatchOptions& options = {}) {
  Inputs in;
  in.token_values.fill(0x3F80);  // 1
  const Dispatched got = dispatch_inputs(exchange, in, options);
  const Tensor rows = zeros_like(got.experts.rows);
  std::fill_n(rows.as<std::uint16_t>(), rows.view().num_elements(), 0x3F80);
  const Tensor output(DType::kBF16, {2, kHidden});
  exchange.combine(got.handle, rows, output);
  for (std::int64_t i = 0; i < 2 * kHidden; ++i) {
    ASSERT_EQ(output.as<std::uint16_t>()[i], 0x4000) << i;  // 2.0
  }
}

}  // namespace switchyard::test

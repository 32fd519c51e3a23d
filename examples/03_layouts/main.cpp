// SPDX-License-Identifier: Apache-2.0
//
// Prints one small batch in each of the five receive layouts, as rank 1 of 2 sees it.
// docs/layouts.md shows the same batch.

#include <cstdint>
#include <cstdio>
#include <vector>

#include <switchyard/exchange.h>

using namespace switchyard;

namespace {

constexpr std::int64_t kHidden = 8;

// The letter of a received row: the elements of tokens a, b and c are 1.0, 2.0 and 3.0 (bf16).
char letter_of(const TensorView& rows, std::int64_t row) {
  const std::uint16_t bits = rows.as<std::uint16_t>()[row * kHidden];
  if (bits == 0x3F80) return 'a';
  if (bits == 0x4000) return 'b';
  return bits == 0x4040 ? 'c' : ' ';
}

void print(const Exchange& exchange, const Dispatched& received) {
  std::printf("%-10s ", name_of(exchange.config().layout));
  std::vector<bool> is_valid(static_cast<std::size_t>(received.experts.rows.shape(0)));
  for (const RowOrigin& origin : exchange.row_origins(received.handle)) {
    is_valid[static_cast<std::size_t>(origin.row)] = true;
  }
  for (std::size_t row = 0; row < is_valid.size(); ++row) {
    const char letter =
        is_valid[row] ? letter_of(received.experts.rows, static_cast<std::int64_t>(row)) : ' ';
    std::printf("[%c]", letter);
  }
  const TensorView& ids = received.topk_ids;
  for (std::int64_t row = 0; ids.has_value() && row < ids.shape(0); ++row) {
    std::printf(" {%d,%d}", ids.as<std::int32_t>()[2 * row], ids.as<std::int32_t>()[2 * row + 1]);
  }
  std::printf("\n");
}

void show(const Group& group, Layout layout) {
  ExchangeConfig config;
  config.num_experts = 4;
  config.num_topk = 2;
  config.hidden = kHidden;
  config.max_tokens_per_rank = 2;
  config.layout = layout;
  config.expert_alignment = layout == Layout::kExpanded ? 4 : 1;
  Exchange exchange(group, config);

  // Rank 0 has tokens a, for experts {2, 0}, and b, for {3, 2}; rank 1 has c, for {2, none}.
  const bool is_first = group.rank() == 0;
  const std::int64_t num_tokens = is_first ? 2 : 1;
  const std::vector<std::int32_t> topk_ids =
      is_first ? std::vector<std::int32_t>{2, 0, 3, 2} : std::vector<std::int32_t>{2, -1};
  const std::uint16_t values[] = {0x3F80, 0x4000, 0x4040};  // 1.0, 2.0, 3.0
  const Tensor tokens(DType::kBF16, {num_tokens, kHidden});
  for (std::int64_t i = 0; i < num_tokens * kHidden; ++i) {
    tokens.as<std::uint16_t>()[i] = values[is_first ? i / kHidden : 2];
  }
  const Dispatched received =
      exchange.dispatch(tokens, TensorView::of(topk_ids.data(), {num_tokens, 2}));
  if (!is_first) print(exchange, received);
  exchange.release(received.handle);
}

}  // namespace

int main() {
  run_local_ranks(2, [](const Group& group) {
    for (const Layout layout : {Layout::kBatched, Layout::kExpanded, Layout::kCompact,
                                Layout::kByRank, Layout::kAllGather}) {
      show(group, layout);
    }
  });
}

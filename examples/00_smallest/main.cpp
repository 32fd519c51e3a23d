// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdint>
#include <cstdio>

#include <switchyard/exchange.h>

using namespace switchyard;

int main() {
  run_local_ranks(2, [](const Group& group) {
    Exchange exchange(group,
                      {.num_experts = 4, .num_topk = 2, .hidden = 8, .max_tokens_per_rank = 1});

    const Tensor tokens(DType::kBF16, {1, 8});  // one token per rank, all elements 1.0
    std::fill_n(tokens.as<std::uint16_t>(), 8, std::uint16_t{0x3F80});
    const std::int32_t topk_ids[] = {0, 3};  // expert 0 lives on rank 0, expert 3 on rank 1
    const float topk_weights[] = {0.25f, 0.5f};

    const Dispatched received = exchange.dispatch(tokens, TensorView::of(topk_ids, {1, 2}),
                                                  TensorView::of(topk_weights, {1, 2}));
    // Here an expert would turn received.experts.rows into results; this one returns its input.
    const Tensor output(DType::kF32, {1, 8});
    exchange.combine(received.handle, received.experts.rows, output);
    std::printf("rank %d: %d rows for its experts, output %.2f\n", group.rank(),
                static_cast<int>(received.host->num_rows), double{output.as<float>()[0]});
  });
}

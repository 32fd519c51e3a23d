// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdint>
#include <cstdio>

#include <switchyard/exchange.h>

using namespace switchyard;

int main() {
  const Device device = Device::cpu();  // Device::cuda(0) runs the same program on a GPU
  run_local_ranks(2, [&](const Group& group) {
    const Tensor token(DType::kBF16, {1, 8});  // one token per rank, all elements 1.0
    std::fill_n(token.as<std::uint16_t>(), 8, std::uint16_t{0x3F80});
    const std::int32_t ids[] = {0, 3};  // expert 0 lives on rank 0, expert 3 on rank 1
    const float weights[] = {0.25f, 0.5f};
    const Tensor tokens = token.to(device);
    const Tensor topk_ids = copy_to(TensorView::of(ids, {1, 2}), device);
    const Tensor topk_weights = copy_to(TensorView::of(weights, {1, 2}), device);
    const Tensor output(DType::kF32, {1, 8}, device);

    const Stream stream = Stream::default_of(device);
    Exchange exchange(group,
                      {.num_experts = 4, .num_topk = 2, .hidden = 8, .max_tokens_per_rank = 1},
                      {.device = device});
    const Dispatched received = exchange.dispatch(tokens, topk_ids, topk_weights, stream);
    // Here an expert would turn received.experts.rows into results; this one returns its input.
    exchange.combine(received.handle, received.experts.rows, output, stream);

    const Tensor result = output.to(Device::cpu(), stream);
    exchange.check();  // on GPUs: throws what kernels found
    std::printf("rank %d: output %.2f on %s\n", group.rank(), double{result.as<float>()[0]},
                name_of(device).c_str());
  });
}

// SPDX-License-Identifier: Apache-2.0
//
// Code as users of DeepEP and FlashInfer know it, on the compat classes that carry their names.
// docs/coming_from.md shows these functions next to the originals. The experts double each row.
// What runs on CPUs runs on GPUs: device_of selects the device.

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <vector>

#include <switchyard/compat/collectives.h>
#include <switchyard/compat/deep_ep/buffer.h>
#include <switchyard/compat/deep_ep/elastic_buffer.h>
#include <switchyard/compat/deep_ep/low_latency_buffer.h>
#include <switchyard/compat/flashinfer/mnnvl_moe.h>
#include <switchyard/compat/flashinfer/moe_alltoall.h>
#include <switchyard/error.h>

using namespace switchyard;

namespace {

constexpr std::int64_t kMaxTokens = 8;
constexpr std::int64_t kHidden = 64;
constexpr std::int32_t kExperts = 6;
constexpr std::int32_t kTopk = 2;

// The line to change: Device::cuda(rank), with a GPU for each rank.
Device device_of(int /*rank*/) { return Device::cpu(); }

// What every call is given: the ranks, and where this one's tensors lie and its work is ordered.
struct Rank {
  const Group& group;
  Device device;
  Stream stream;
};

struct Batch {
  Tensor x;             // [kMaxTokens, kHidden] bf16, all 1.0
  Tensor topk_idx;      // [kMaxTokens, kTopk] i32
  Tensor topk_weights;  // [kMaxTokens, kTopk] f32, all 0.5
};

Batch make_batch(int number, Device device) {
  const Tensor x(DType::kBF16, {kMaxTokens, kHidden});
  const Tensor topk_idx(DType::kI32, {kMaxTokens, kTopk});
  const Tensor topk_weights(DType::kF32, {kMaxTokens, kTopk});
  for (std::int64_t i = 0; i < kMaxTokens * kHidden; ++i) x.as<std::uint16_t>()[i] = 0x3F80;
  for (std::int32_t i = 0; i < kMaxTokens * kTopk; ++i) {
    topk_idx.as<std::int32_t>()[i] = (i + number) % kExperts;
    topk_weights.as<float>()[i] = 0.5f;
  }
  return {x.to(device), topk_idx.to(device), topk_weights.to(device)};
}

// The experts double their rows: 2 * x of a normal bf16 adds one to its exponent. They work on the
// host, wherever the rows lie; yours are kernels in the stream.
Tensor doubled(const Rank& rank, const TensorView& rows) {
  const Tensor result = copy_to(rows, Device::cpu(), rank.stream);
  for (std::int64_t i = 0; i < rows.num_elements(); ++i) {
    std::uint16_t& bits = result.as<std::uint16_t>()[i];
    bits = static_cast<std::uint16_t>(bits == 0 ? 0 : bits + 0x80);
  }
  return result.to(rank.device, rank.stream);
}

// True when every element is `value`.
bool is_all(const Rank& rank, const TensorView& rows, float value) {
  const Tensor here = copy_to(rows, Device::cpu(), rank.stream);
  for (std::int64_t i = 0; i < rows.num_elements(); ++i) {
    const std::uint32_t word = std::uint32_t{here.as<std::uint16_t>()[i]} << 16;
    float element = 0;
    std::memcpy(&element, &word, sizeof(element));
    if (element != value) return false;
  }
  return true;
}

bool low_latency(const Rank& rank, const Batch& first, const Batch& second) {
  deep_ep::LowLatencyBuffer buffer(rank.group, {.device = rank.device});
  const deep_ep::LowLatencyDispatchOptions options{.use_fp8 = false, .return_recv_hook = true};
  const auto a = buffer.low_latency_dispatch(first.x, first.topk_idx, kMaxTokens, kExperts,
                                             rank.stream, options);
  a.hook();
  const auto b = buffer.low_latency_dispatch(second.x, second.topk_idx, kMaxTokens, kExperts,
                                             rank.stream, options);
  const Tensor rows = doubled(rank, a.rows().recv_x);  // while b travels
  b.hook();
  const auto out = buffer.low_latency_combine(rows, first.topk_idx, first.topk_weights, a.handle,
                                              rank.stream, {.return_recv_hook = true});
  out.hook();
  return is_all(rank, out.combined_x, 2.0f);  // 0.5 * 2 + 0.5 * 2; b is given up with its handle
}

bool high_throughput(const Rank& rank, const Batch& batch) {
  deep_ep::Buffer buffer(rank.group, {.max_tokens_per_rank = kMaxTokens}, {.device = rank.device});
  const auto layout = buffer.get_dispatch_layout(batch.topk_idx, kExperts, rank.stream);
  const auto got = buffer.dispatch(batch.x, batch.topk_idx, kExperts, rank.stream,
                                   {.topk_weights = batch.topk_weights,
                                    .expert_alignment = 8,
                                    .num_worst_tokens = rank.group.size() * kMaxTokens});
  const auto out = buffer.combine(got.recv_x, got.handle, rank.stream, got.recv_topk_weights);
  const auto again = buffer.dispatch(out.combined_x, got.handle, rank.stream);  // the gradient
  const Tensor weights = out.combined_topk_weights.to(Device::cpu(), rank.stream);
  return layout.num_tokens_per_rank.shape(0) == rank.group.size() &&
         again.recv_x.shape(0) == got.recv_x.shape(0) && *weights.as<float>() == 0.5f;
}

bool elastic(const Rank& rank, const Batch& batch) {
  deep_ep::ElasticBuffer buffer(rank.group, {.num_max_tokens_per_rank = kMaxTokens},
                                {.device = rank.device});
  const auto got = buffer.dispatch(batch.x, batch.topk_idx, kExperts, rank.stream,
                                   {.topk_weights = batch.topk_weights,
                                    .expert_alignment = 16,
                                    .do_expand = true,
                                    .do_cpu_sync = false,
                                    .do_zero_padding = true});
  const auto out = buffer.combine(doubled(rank, got.recv_x), got.handle, rank.stream);
  return is_all(rank, out.combined_x, 4.0f) &&
         got.handle->num_expanded_tokens == got.recv_x.shape(0);
}

bool two_sided(const Rank& rank, const Batch& batch) {
  flashinfer::MnnvlMoe moe(rank.group, {.max_token_count_per_rank = kMaxTokens},
                           {.device = rank.device});
  const auto prepared = moe.prepare_without_allgather(batch.topk_idx, batch.topk_weights, {},
                                                      kMaxTokens, kExperts, kExperts, rank.stream);
  const Tensor rows = moe.alltoallv(batch.x, prepared.info, rank.stream);
  const Tensor out = moe.alltoallv_combine(rows, prepared.info, rank.stream);
  return out.shape(0) == kMaxTokens &&
         prepared.expert_ids.shape(0) == rank.group.size() * kMaxTokens;
}

bool one_sided(const Rank& rank, const Batch& batch) {
  flashinfer::MoeAlltoAll moe(
      rank.group, {.max_num_tokens = kMaxTokens, .top_k = kTopk, .num_experts = kExperts},
      {.device = rank.device});
  const auto got =
      moe.dispatch(batch.topk_idx, {batch.x, batch.topk_idx, batch.topk_weights}, kMaxTokens,
                   rank.stream, {.invalid_token_expert_id = -1, .expert_id_payload_index = 1});
  const Tensor out = moe.combine(got[0], rank.stream);
  return out.shape(0) == kMaxTokens;
}

bool gather_and_scatter(const Rank& rank, const Batch& batch) {
  const std::vector<std::int64_t> sizes(static_cast<std::size_t>(rank.group.size()), kMaxTokens);
  Collectives collectives(rank.group, kMaxTokens, {.device = rank.device});
  const auto gathered = collectives.all_gatherv({batch.x, batch.topk_idx}, rank.stream, sizes);
  const Tensor out = collectives.reduce_scatterv(gathered[0], rank.stream, sizes);
  return is_all(rank, out, static_cast<float>(rank.group.size()));
}

}  // namespace

int main() {
  run_local_ranks(2, [](const Group& group) {
    const Device device = device_of(group.rank());
    const Rank rank{group, device, Stream::default_of(device)};
    const Batch batch = make_batch(group.rank(), device);
    const bool is_right = low_latency(rank, batch, make_batch(group.rank() + 1, device)) &&
                          high_throughput(rank, batch) && elastic(rank, batch) &&
                          two_sided(rank, batch) && one_sided(rank, batch) &&
                          gather_and_scatter(rank, batch);
    if (!is_right) throw Error(Errc::kInternal, "example: a sum is wrong");
    if (group.rank() == 0) std::printf("every view gives the expected rows and sums\n");
  });
  return 0;
}

// SPDX-License-Identifier: Apache-2.0
//
// Code as users of DeepEP and FlashInfer know it, on the compat classes that carry their names.
// docs/coming_from.md shows these functions next to the originals. The experts double each row.

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

struct Batch {
  Tensor x{DType::kBF16, {kMaxTokens, kHidden}};  // all 1.0
  Tensor topk_idx{DType::kI32, {kMaxTokens, kTopk}};
  Tensor topk_weights{DType::kF32, {kMaxTokens, kTopk}};  // all 0.5
};

Batch make_batch(int rank) {
  Batch batch;
  for (std::int64_t i = 0; i < kMaxTokens * kHidden; ++i) batch.x.as<std::uint16_t>()[i] = 0x3F80;
  for (std::int32_t i = 0; i < kMaxTokens * kTopk; ++i) {
    batch.topk_idx.as<std::int32_t>()[i] = (i + rank) % kExperts;
    batch.topk_weights.as<float>()[i] = 0.5f;
  }
  return batch;
}

// The experts double their rows: 2 * x of a normal bf16 adds one to its exponent.
Tensor doubled(const TensorView& rows) {
  Tensor result(DType::kBF16, {rows.num_elements() / kHidden, kHidden});
  for (std::int64_t i = 0; i < rows.num_elements(); ++i) {
    const std::uint16_t bits = rows.as<std::uint16_t>()[i];
    result.as<std::uint16_t>()[i] = static_cast<std::uint16_t>(bits == 0 ? 0 : bits + 0x80);
  }
  return result;
}

TensorView as_batch(const Tensor& rows, const TensorView& like) {
  return {rows.data(), rows.dtype(), {like.shape(0), like.shape(1), like.shape(2)}};
}

// True when every element is `value`.
bool is_all(const TensorView& rows, float value) {
  for (std::int64_t i = 0; i < rows.num_elements(); ++i) {
    const std::uint32_t word = std::uint32_t{rows.as<std::uint16_t>()[i]} << 16;
    float element = 0;
    std::memcpy(&element, &word, sizeof(element));
    if (element != value) return false;
  }
  return true;
}

bool low_latency(const Group& group, const Batch& first, const Batch& second) {
  deep_ep::LowLatencyBuffer buffer(group);
  const deep_ep::LowLatencyDispatchOptions options{.use_fp8 = false, .return_recv_hook = true};
  const auto a =
      buffer.low_latency_dispatch(first.x, first.topk_idx, kMaxTokens, kExperts, options);
  a.hook();
  const auto b =
      buffer.low_latency_dispatch(second.x, second.topk_idx, kMaxTokens, kExperts, options);
  const Tensor rows = doubled(a.rows().recv_x);  // while b travels
  b.hook();
  const auto out =
      buffer.low_latency_combine(as_batch(rows, a.rows().recv_x), first.topk_idx,
                                 first.topk_weights, a.handle, {.return_recv_hook = true});
  out.hook();
  return is_all(out.combined_x, 2.0f);  // 0.5 * 2 + 0.5 * 2; b is given up with its handle
}

bool high_throughput(const Group& group, const Batch& batch) {
  deep_ep::Buffer buffer(group, {.max_tokens_per_rank = kMaxTokens});
  const auto layout = buffer.get_dispatch_layout(batch.topk_idx, kExperts);
  const auto got = buffer.dispatch(batch.x, batch.topk_idx, kExperts,
                                   {.topk_weights = batch.topk_weights, .expert_alignment = 8});
  const auto out = buffer.combine(got.recv_x, got.handle, got.recv_topk_weights);
  const auto again = buffer.dispatch(out.combined_x, got.handle);  // the gradient's way
  return layout.num_tokens_per_rank.shape(0) == group.size() &&
         again.recv_x.shape(0) == got.recv_x.shape(0) &&
         *out.combined_topk_weights.as<float>() == 0.5f;
}

bool elastic(const Group& group, const Batch& batch) {
  deep_ep::ElasticBuffer buffer(group, {.num_max_tokens_per_rank = kMaxTokens});
  const auto got = buffer.dispatch(batch.x, batch.topk_idx, kExperts,
                                   {.topk_weights = batch.topk_weights,
                                    .expert_alignment = 16,
                                    .do_expand = true,
                                    .do_zero_padding = true});
  const auto out = buffer.combine(doubled(got.recv_x), got.handle);
  return is_all(out.combined_x, 4.0f) && got.handle->num_expanded_tokens % 16 == 0;
}

bool two_sided(const Group& group, const Batch& batch) {
  flashinfer::MnnvlMoe moe(group, {.max_token_count_per_rank = kMaxTokens});
  const auto prepared = moe.prepare_without_allgather(batch.topk_idx, batch.topk_weights, {},
                                                      kMaxTokens, kExperts, kExperts);
  const Tensor rows = moe.alltoallv(batch.x, prepared.info);
  const Tensor out = moe.alltoallv_combine(rows, prepared.info);
  return out.shape(0) == kMaxTokens && prepared.expert_ids.shape(0) == group.size() * kMaxTokens;
}

bool one_sided(const Group& group, const Batch& batch) {
  flashinfer::MoeAlltoAll moe(
      group, {.max_num_tokens = kMaxTokens, .top_k = kTopk, .num_experts = kExperts});
  const auto got =
      moe.dispatch(batch.topk_idx, {batch.x, batch.topk_idx, batch.topk_weights}, kMaxTokens,
                   {.invalid_token_expert_id = -1, .expert_id_payload_index = 1});
  const Tensor out = moe.combine(got[0]);
  return out.shape(0) == kMaxTokens;
}

bool gather_and_scatter(const Group& group, const Batch& batch) {
  const std::vector<std::int64_t> sizes(static_cast<std::size_t>(group.size()), kMaxTokens);
  Collectives collectives(group, kMaxTokens);
  const auto gathered = collectives.all_gatherv({batch.x, batch.topk_idx}, sizes);
  const Tensor out = collectives.reduce_scatterv(gathered[0], sizes);
  return is_all(out, static_cast<float>(group.size()));
}

}  // namespace

int main() {
  run_local_ranks(2, [](const Group& group) {
    const Batch batch = make_batch(group.rank());
    const bool is_right = low_latency(group, batch, make_batch(group.rank() + 1)) &&
                          high_throughput(group, batch) && elastic(group, batch) &&
                          two_sided(group, batch) && one_sided(group, batch) &&
                          gather_and_scatter(group, batch);
    if (!is_right) throw Error(Errc::kInternal, "example: a sum is wrong");
    if (group.rank() == 0) std::printf("every view gives the expected rows and sums\n");
  });
  return 0;
}

// SPDX-License-Identifier: Apache-2.0

#include "measure/bench_batch.h"

#include <algorithm>

#include "core/bytes.h"
#include "core/random.h"

namespace switchyard::measure {
namespace {

constexpr std::int64_t kNumValues = 65'521;  // a prime, so that rows start at different places
constexpr std::int64_t kSpareRows = 256;
constexpr std::int64_t kStride = 37;  // rows between iterations; coprime to kSpareRows

}  // namespace

TokenValues::TokenValues(std::int64_t hidden, int rank)
    : hidden_(hidden), values_(static_cast<std::size_t>(kNumValues)) {
  const std::uint64_t seed = 7 + static_cast<std::uint64_t>(rank);
  for (std::size_t i = 0; i < values_.size(); ++i) {
    values_[i] = static_cast<std::uint16_t>(0x3C00 + (random_bits(seed, i) & 0x83FF));
  }
}

void TokenValues::copy_row(std::int64_t row, std::uint16_t* to) const {
  std::int64_t from = (row % kNumValues) * (hidden_ % kNumValues) % kNumValues;
  for (std::int64_t done = 0; done < hidden_; from = 0) {
    const std::int64_t count = std::min(hidden_ - done, kNumValues - from);
    std::copy_n(values_.data() + from, count, to + done);
    done += count;
  }
}

std::int64_t first_row_of(std::int64_t iteration) { return iteration * kStride % kSpareRows; }

std::vector<float> topk_weights_of(const BenchShape& shape, std::int64_t iteration, int rank) {
  const std::int64_t count = checked_mul<std::int64_t>(shape.num_tokens, shape.workload.num_topk);
  std::vector<float> weights(static_cast<std::size_t>(count));
  const std::uint64_t seed =
      random_bits(shape.seed ^ 0x3E16, static_cast<std::uint64_t>(iteration));
  const std::uint64_t stream = random_bits(seed, static_cast<std::uint64_t>(rank));
  for (std::size_t i = 0; i < weights.size(); ++i) {
    weights[i] = static_cast<float>(0.0625 + 0.9375 * random_uniform(stream, i));
  }
  return weights;
}

BenchBatch::BenchBatch(const BenchShape& shape, int rank)
    : shape_(shape),
      rank_(rank),
      all_tokens_(DType::kBF16, {checked_add(shape.num_tokens, kSpareRows), shape.workload.hidden}),
      tensor_scale_(tensor_scale_of(shape.scheme)) {
  const TokenValues values(shape.workload.hidden, rank);
  for (std::int64_t row = 0; row < all_tokens_.shape(0); ++row) {
    values.copy_row(row, all_tokens_.as<std::uint16_t>() + row * shape.workload.hidden);
  }
  make(0);
}

void BenchBatch::make(std::int64_t iteration) {
  first_row_ = first_row_of(iteration);
  ids_ = shape_.routing.ids(shape_.seed, iteration, rank_, shape_.num_ranks, shape_.num_tokens);
  weights_ = topk_weights_of(shape_, iteration, rank_);
}

TensorView BenchBatch::tokens() const {
  const std::int64_t hidden = shape_.workload.hidden;
  return TensorView(all_tokens_.as<std::uint16_t>() + first_row_ * hidden, DType::kBF16,
                    {shape_.num_tokens, hidden});
}

TensorView BenchBatch::topk_ids() const {
  return TensorView::of(ids_.data(), {shape_.num_tokens, std::int64_t{shape_.workload.num_topk}});
}

TensorView BenchBatch::topk_weights() const {
  return TensorView::of(weights_.data(),
                        {shape_.num_tokens, std::int64_t{shape_.workload.num_topk}});
}

DispatchOptions BenchBatch::dispatch_options() const {
  DispatchOptions options;
  if (wants_tensor_scale(shape_.scheme)) options.tensor_scale = TensorView::of(&tensor_scale_, {1});
  return options;
}

}  // namespace switchyard::measure

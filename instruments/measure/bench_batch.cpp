// SPDX-License-Identifier: Apache-2.0

#include "measure/bench_batch.h"

#include <algorithm>
#include <utility>

#include "core/bytes.h"
#include "core/random.h"
#include "quant/rows.h"
#include "quant/scheme.h"

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
  if (shape.gives_codes) quantize_tokens();
  make(0);
}

void BenchBatch::quantize_tokens() {
  const QuantScheme& scheme = shape_.scheme;
  const std::int64_t hidden = shape_.workload.hidden;
  const std::int64_t num_rows = all_tokens_.shape(0);
  const auto width = static_cast<std::int64_t>(row_bytes(scheme, hidden));
  const auto scale_width = static_cast<std::int64_t>(scale_row_bytes(scheme, hidden));
  Tensor codes(DType::kU8, {num_rows, width});
  all_scales_ = Tensor(DType::kU8, {num_rows, scale_width});
  for (std::int64_t row = 0; row < num_rows; ++row) {
    quantize_row(scheme, all_tokens_.as<std::uint16_t>() + row * hidden, DType::kBF16, hidden,
                 codes.as<std::byte>() + row * width,
                 all_scales_.as<std::byte>() + row * scale_width, tensor_scale_);
  }
  all_tokens_ = std::move(codes);
}

void BenchBatch::make(std::int64_t iteration) {
  first_row_ = first_row_of(iteration);
  ids_ = shape_.routing.ids(shape_.seed, iteration, rank_, shape_.num_ranks, shape_.num_tokens);
  weights_ = topk_weights_of(shape_, iteration, rank_);
}

TensorView BenchBatch::tokens() const {
  const auto rows = static_cast<std::size_t>(all_tokens_.shape(0));
  const std::size_t width = all_tokens_.view().num_bytes() / rows;
  return TensorView(all_tokens_.as<std::byte>() + static_cast<std::size_t>(first_row_) * width,
                    shape_.gives_codes ? shape_.scheme.dtype : DType::kBF16,
                    {shape_.num_tokens, shape_.workload.hidden});
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
  if (shape_.gives_codes && has_row_scales(shape_.scheme)) {
    const auto rows = static_cast<std::size_t>(all_scales_.shape(0));
    const std::size_t width = all_scales_.view().num_bytes() / rows;
    options.scales =
        TensorView(all_scales_.as<std::byte>() + static_cast<std::size_t>(first_row_) * width,
                   scale_dtype(shape_.scheme),
                   {shape_.num_tokens, num_scales(shape_.scheme, shape_.workload.hidden)});
  }
  return options;
}

}  // namespace switchyard::measure

// SPDX-License-Identifier: Apache-2.0
//
// The way back: what experts make of the rows, what travels home, and what the oracle says that the
// owner of a token gets.

#include <algorithm>
#include <limits>

#include "conformance/exchange_round.h"

namespace switchyard::conformance {

using reference::Position;
using reference::Table;

namespace {

// Stands in for an expert: depends on the row and on the expert, and needs rounding.
float expert_value(float x, int expert) {
  return reference::round_to(DType::kBF16, x * (1.0f + 0.37f * static_cast<float>(expert % 7)));
}

// A value for each choice of each token.
float choice_value(int rank, std::int64_t token, std::int64_t k) {
  return static_cast<float>(rank * 10000 + token * 100 + k) + 0.5f;
}

}  // namespace

Table<float> Round::values(int rank) const {
  if (!test_->scheme.is_quantized()) {
    return reference::receive(batch_, positions(rank), num_rows(rank));
  }
  return reference::dequantize(test_->scheme,
                               reference::receive(sent_, positions(rank), num_rows(rank)));
}

Table<float> Round::results(int rank) const {
  const int first = wanted_.first_expert(rank);
  const Table<float> in = values(rank);
  Table<float> out(in.rows, in.cols);
  for (const Position& p : positions(rank)) {
    for (std::int64_t h = 0; h < in.cols; ++h) {
      const float x = in(p.index, h);
      if (is_major()) {
        out(p.index, h) = expert_value(x, first + p.expert);
      } else if (test_->shape.num_topk == 0) {
        out(p.index, h) = expert_value(x, rank);
      } else {
        const reference::RankMajor& placed = this->placed(rank).by_token;
        float sum = 0.0f;
        for (std::int64_t k = 0; k < test_->shape.num_topk; ++k) {
          const std::int32_t local = placed.local_ids(p.index, k);
          if (local < 0) continue;
          sum += placed.topk_weights(p.index, k) * expert_value(x, first + local);
        }
        out(p.index, h) = sum;
      }
    }
  }
  return rounded(test_->results, out);
}

Tensor Round::results() const {
  Tensor tensor = poisoned(test_->results, num_rows(rank_), test_->shape.hidden);
  const Table<float> rows = results(rank_);
  const Bytes bytes = encode(test_->results, rows);
  const std::size_t width =
      bytes.size() / static_cast<std::size_t>(std::max<std::int64_t>(1, rows.rows));
  for (const Position& p : positions(rank_)) {
    const auto at = static_cast<std::size_t>(p.index) * width;
    std::copy_n(bytes.data() + at, width, tensor.as<std::byte>() + at);
  }
  return tensor;
}

Tensor Round::row_weights() const {
  const std::int64_t num_topk = test_->shape.num_topk;
  const std::int64_t columns = is_major() ? 1 : num_topk;
  Tensor tensor(DType::kF32, {num_rows(rank_), columns});
  std::fill_n(tensor.as<float>(), tensor.view().num_elements(),
              std::numeric_limits<float>::quiet_NaN());
  for (const Position& p : positions(rank_)) {
    if (is_major()) {
      tensor.as<float>()[p.index] = choice_value(p.source, p.token, p.slot);
      continue;
    }
    for (std::int64_t k = 0; k < num_topk; ++k) {
      if (placed(rank_).by_token.local_ids(p.index, k) < 0) continue;
      tensor.as<float>()[p.index * num_topk + k] = choice_value(p.source, p.token, k);
    }
  }
  return tensor;
}

// One row for each token that this rank serves, as it leaves, in the order of dispatch_compact;
// without routing for each token.
Table<float> Round::partial_rows(int rank) const {
  const Table<float> rows = results(rank);
  if (is_major()) {
    return through_wire(
        test_->combine_scheme,
        reference::reduce_on_rank(batch_, rank, placed(rank).by_expert, rows, true, DType::kF32));
  }
  Table<float> partials(0, rows.cols);
  for (const Position& p : positions(rank)) {
    if (p.slot < 0 && test_->shape.num_topk > 0) continue;
    partials.data.insert(partials.data.end(), rows.row(p.index).begin(), rows.row(p.index).end());
    ++partials.rows;
  }
  return through_wire(test_->combine_scheme, partials);
}

Table<float> Round::expected_output() const {
  std::vector<Table<float>> rows;
  if (test_->reduce == Reduce::kPerExpert) {
    std::vector<reference::ExpertMajor> layouts;
    for (int r = 0; r < num_ranks_; ++r) {
      layouts.push_back(placed(r).by_expert);
      rows.push_back(through_wire(test_->combine_scheme, results(r)));
    }
    return reference::combine_per_expert(batch_, rank_, layouts, rows, test_->output, bias_);
  }
  for (int r = 0; r < num_ranks_; ++r) rows.push_back(partial_rows(r));
  if (test_->reduce == Reduce::kPerHost) {
    return reference::sum_hosts(batch_, rank_, rows, hosts_, test_->combine_scheme, bias_,
                                test_->output);
  }
  if (test_->shape.num_topk == 0) {
    return reference::reduce_scatter(batch_, rank_, rows, bias_, test_->output);
  }
  const auto order = test_->layout == Layout::kAllGather ? reference::PartialOrder::kRank
                                                         : reference::PartialOrder::kHighestSlot;
  return reference::sum_partials(batch_, rank_, rows, bias_, test_->output, order);
}

void Round::check_output(const TensorView& got) const {
  const Table<float> want = expected_output();
  const Bytes bytes = encode(test_->output, want);
  const std::size_t width = static_cast<std::size_t>(bits_of(test_->output) / 8);
  for (std::size_t i = 0; i < want.data.size(); ++i) {
    expect(std::equal(bytes.begin() + static_cast<std::ptrdiff_t>(i * width),
                      bytes.begin() + static_cast<std::ptrdiff_t>((i + 1) * width),
                      got.as<std::byte>() + i * width),
           "output[{}, {}] has other bits than the oracle's {}",
           static_cast<std::int64_t>(i) / want.cols, static_cast<std::int64_t>(i) % want.cols,
           want.data[i]);
  }
}

void Round::check_returned_weights(const TensorView& got) const {
  const std::int64_t num_topk = test_->shape.num_topk;
  for (std::int64_t t = 0; t < num_tokens(); ++t) {
    for (std::int64_t k = 0; k < num_topk; ++k) {
      const float want = own().topk_ids(t, k) < 0 ? 0.0f : choice_value(rank_, t, k);
      const float found = got.as<float>()[t * num_topk + k];
      expect(found == want, "returned weight [{}, {}] is {}, expected {}", t, k, found, want);
    }
  }
}

}  // namespace switchyard::conformance

// SPDX-License-Identifier: Apache-2.0

#include "conformance/exchange_suite.h"

#include <cstring>
#include <stdexcept>

#include <fmt/format.h>

#include "core/bytes.h"
#include "reference/reference.h"

namespace switchyard::test {
namespace {

using reference::Batch;
using reference::ExpertMajor;
using reference::Table;

constexpr std::int64_t kSlack = 3;  // capacity beyond the tokens that come

void expect(bool condition, const std::string& what) {
  if (!condition) throw std::runtime_error(what);
}

template <typename T>
std::vector<std::uint16_t> bf16_bits(const T& table) {
  std::vector<std::uint16_t> bits(table.data.size());
  for (std::size_t i = 0; i < bits.size(); ++i) {
    bits[i] = static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(table.data[i]) >> 16);
  }
  return bits;
}

// Stands in for an expert: depends on the row and on the expert, and needs rounding.
float expert_value(float x, int expert) {
  return reference::round_to(DType::kBF16, x * (1.0f + 0.37f * static_cast<float>(expert % 7)));
}

// One round seen from one rank, beside what the oracle says about all ranks.
class Round {
 public:
  Round(const Group& group, const ExchangeCase& test, int number)
      : test_(test), rank_(group.rank()), num_ranks_(group.size()) {
    const auto seed = test.seed * 1000 + static_cast<std::uint64_t>(number) * 10;
    // Later rounds have other token counts, the last one none at all on most ranks.
    const std::int64_t num_tokens = number == 2 ? 1 : test.num_tokens - number;
    batch_ = split(random_tokens(test.shape, std::max<std::int64_t>(0, num_tokens), seed),
                   test.shape.num_experts, num_ranks_);
    const reference::RankInput& own = batch_.ranks[static_cast<std::size_t>(rank_)];
    token_bits_ = bf16_bits(own.tokens);
    for (int i = 0; i < test.num_bias; ++i) {
      bias_.push_back(random_table(own.num_tokens(), test.shape.hidden,
                                   seed + 5 + static_cast<std::uint64_t>(i)));
      bias_bits_.push_back(bf16_bits(bias_.back()));
    }
    ids64_.assign(own.topk_ids.data.begin(), own.topk_ids.data.end());
    for (int r = 0; r < num_ranks_; ++r) {
      placed_.push_back(test.layout == Layout::kBatched
                            ? reference::dispatch_batched(batch_, r, capacity())
                            : reference::dispatch_expanded(batch_, r, test.alignment));
      sent_.push_back(
          test.scheme.is_quantized()
              ? reference::quantize(test.scheme, batch_.ranks[static_cast<std::size_t>(r)].tokens)
              : reference::QuantizedRows{});
    }
  }

  std::int64_t capacity() const { return num_ranks_ * max_tokens(test_); }
  static std::int64_t max_tokens(const ExchangeCase& test) { return test.num_tokens + kSlack; }

  const reference::RankInput& own() const { return batch_.ranks[static_cast<std::size_t>(rank_)]; }
  TensorView tokens() const {
    return TensorView(token_bits_.data(), DType::kBF16, {own().num_tokens(), test_.shape.hidden});
  }
  TensorView ids(bool wide) const {
    const std::int64_t num_topk = test_.shape.num_topk;
    return wide ? TensorView::of(ids64_.data(), {own().num_tokens(), num_topk})
                : TensorView::of(own().topk_ids.data.data(), {own().num_tokens(), num_topk});
  }
  TensorView weights() const {
    return TensorView::of(own().topk_weights.data.data(),
                          {own().num_tokens(), std::int64_t{test_.shape.num_topk}});
  }
  CombineOptions options() const {
    CombineOptions options;
    if (test_.reduce == Reduce::kPerExpert && !test_.sends_weights)
      options.topk_weights = weights();
    for (const auto& bits : bias_bits_) {
      options.bias.emplace_back(
          bits.data(), DType::kBF16,
          std::initializer_list<std::int64_t>{own().num_tokens(), test_.shape.hidden});
    }
    return options;
  }

  // Compares what arrived and returns what the experts make of it.
  Tensor check_received(const Exchange& exchange, const Dispatched& got) const {
    const ExpertMajor& want = placed_[static_cast<std::size_t>(rank_)];
    expect(got.num_rows == static_cast<std::int64_t>(want.rows.size()),
           fmt::format("{} rows, want {}", got.num_rows, want.rows.size()));
    for (std::size_t e = 0; e < want.counts.size(); ++e) {
      expect(got.experts.num_rows[e] == want.counts[e], fmt::format("count of expert {}", e));
      expect(got.experts.first_row[e] == want.first_row[e], fmt::format("start of expert {}", e));
    }
    const std::vector<RowOrigin> origins = exchange.row_origins(got.handle);
    for (std::size_t i = 0; i < want.rows.size(); ++i) {
      const reference::Position& p = want.rows[i];
      expect(origins[i].row == p.index && origins[i].expert == p.expert &&
                 origins[i].rank == p.source && origins[i].token == p.token &&
                 origins[i].k == p.slot,
             fmt::format("origin of row {}", i));
    }
    const Table<float> values = check_rows(got, want);
    const Table<float> outputs = expert_outputs(rank_, want, values);
    Tensor rows(DType::kBF16, {got.experts.rows.shape(0), test_.shape.hidden});
    const std::vector<std::uint16_t> bits = bf16_bits(outputs);
    expect(got.experts.rows.shape(0) <= outputs.rows, "rows of the buffer");
    std::copy_n(bits.begin(), rows.view().num_elements(), rows.as<std::uint16_t>());
    return rows;
  }

  void check_output(const TensorView& got) const {
    const Table<float> want = expected_output();
    for (std::size_t i = 0; i < want.data.size(); ++i) {
      const auto want_bits = std::bit_cast<std::uint32_t>(want.data[i]);
      const bool equal =
          got.dtype() == DType::kF32
              ? got.as<std::uint32_t>()[i] == want_bits
              : got.as<std::uint16_t>()[i] == static_cast<std::uint16_t>(want_bits >> 16);
      expect(equal, fmt::format("output[{}, {}] has other bits than the oracle's {}",
                                static_cast<std::int64_t>(i) / want.cols,
                                static_cast<std::int64_t>(i) % want.cols, want.data[i]));
    }
  }

 private:
  // Valid rows bit for bit; gives their values.
  Table<float> check_rows(const Dispatched& got, const ExpertMajor& want) const {
    if (!test_.scheme.is_quantized()) {
      const Table<float> rows = reference::receive(batch_, want.rows, want.num_rows);
      const std::vector<std::uint16_t> bits = bf16_bits(rows);
      for (const reference::Position& p : want.rows) {
        expect(std::memcmp(got.experts.rows.as<std::uint16_t>() + p.index * rows.cols,
                           bits.data() + p.index * rows.cols,
                           static_cast<std::size_t>(rows.cols) * 2) == 0,
               fmt::format("row {} differs", p.index));
      }
      return rows;
    }
    const reference::QuantizedRows rows = reference::receive(sent_, want.rows, want.num_rows);
    const bool packed = test_.scheme.scale_format == ScaleFormat::kE8M0Packed;
    const std::int64_t num_scales = packed ? rows.packed_scales.cols : rows.scales.cols;
    const void* scales = packed ? static_cast<const void*>(rows.packed_scales.data.data())
                                : static_cast<const void*>(rows.scales.data.data());
    for (const reference::Position& p : want.rows) {
      expect(std::memcmp(got.experts.rows.as<std::uint8_t>() + p.index * rows.elements.cols,
                         rows.elements.data.data() + p.index * rows.elements.cols,
                         static_cast<std::size_t>(rows.elements.cols)) == 0,
             fmt::format("elements of row {} differ", p.index));
      expect(std::memcmp(got.experts.scales.as<std::uint32_t>() + p.index * num_scales,
                         static_cast<const std::uint32_t*>(scales) + p.index * num_scales,
                         static_cast<std::size_t>(num_scales) * 4) == 0,
             fmt::format("scales of row {} differ", p.index));
    }
    return reference::dequantize(test_.scheme, rows);
  }

  Table<float> expert_outputs(int rank, const ExpertMajor& placed,
                              const Table<float>& values) const {
    const int first = reference::first_expert(test_.shape.num_experts, num_ranks_, rank);
    Table<float> outputs(values.rows, test_.shape.hidden);
    for (const reference::Position& p : placed.rows) {
      for (std::int64_t h = 0; h < values.cols; ++h) {
        outputs(p.index, h) = expert_value(values(p.index, h), first + p.expert);
      }
    }
    return outputs;
  }

  Table<float> expected_output() const {
    std::vector<Table<float>> outputs;
    for (int r = 0; r < num_ranks_; ++r) {
      const ExpertMajor& placed = placed_[static_cast<std::size_t>(r)];
      const Table<float> values =
          test_.scheme.is_quantized()
              ? reference::dequantize(test_.scheme,
                                      reference::receive(sent_, placed.rows, placed.num_rows))
              : reference::receive(batch_, placed.rows, placed.num_rows);
      outputs.push_back(expert_outputs(r, placed, values));
    }
    if (test_.reduce == Reduce::kPerExpert) {
      return reference::combine_per_expert(batch_, rank_, placed_, outputs, test_.output);
    }
    std::vector<Table<float>> partials;
    for (int r = 0; r < num_ranks_; ++r) {
      const auto i = static_cast<std::size_t>(r);
      partials.push_back(
          reference::reduce_on_rank(batch_, r, placed_[i], outputs[i], test_.sends_weights));
    }
    return reference::sum_partials(batch_, rank_, partials, bias_, test_.output);
  }

  const ExchangeCase& test_;
  int rank_;
  int num_ranks_;
  Batch batch_;
  std::vector<std::uint16_t> token_bits_;
  std::vector<std::int64_t> ids64_;
  std::vector<Table<float>> bias_;
  std::vector<std::vector<std::uint16_t>> bias_bits_;
  std::vector<ExpertMajor> placed_;
  std::vector<reference::QuantizedRows> sent_;
};

ExchangeConfig config_of(const ExchangeCase& test) {
  ExchangeConfig config;
  config.num_experts = test.shape.num_experts;
  config.num_topk = test.shape.num_topk;
  config.hidden = test.shape.hidden;
  config.max_tokens_per_rank = Round::max_tokens(test);
  config.layout = test.layout;
  config.scheme = test.scheme;
  config.reduce = test.reduce;
  config.sends_weights = test.sends_weights;
  config.expert_alignment = test.layout == Layout::kExpanded ? test.alignment : 1;
  return config;
}

// Not zero, so that an element that nobody writes is noticed.
Tensor poisoned(DType dtype, std::int64_t num_tokens, std::int64_t hidden) {
  Tensor tensor(dtype, {num_tokens, hidden});
  std::memset(tensor.data(), 0x5A, tensor.view().num_bytes());
  return tensor;
}

}  // namespace

std::string ExchangeCase::describe() const {
  return fmt::format(
      "P {} E {} K {} H {} T {} layout {} scheme {} reduce {} weights {} alignment {} output {} "
      "bias "
      "{} none {} duplicates {} only {} seed {}",
      num_ranks, shape.num_experts, shape.num_topk, shape.hidden, num_tokens, name_of(layout),
      name_of(scheme), name_of(reduce), sends_weights, alignment, name_of(output), num_bias,
      shape.none_share, shape.has_duplicates, shape.only_expert, seed);
}

void check_exchange(const Group& group, const ExchangeCase& test) try {
  Exchange exchange(group, config_of(test));
  for (int number = 0; number < test.num_rounds; ++number) {
    const Round round(group, test, number);
    const TensorView weights =
        test.sends_weights || test.reduce == Reduce::kPerRank ? round.weights() : TensorView();
    const TensorView ids = round.ids(number == 2);
    Dispatched got;
    if (number == 1) {
      const DispatchHandle handle = exchange.dispatch_send(round.tokens(), ids, weights);
      got = exchange.dispatch_receive(handle);
    } else {
      got = exchange.dispatch(round.tokens(), ids, weights);
    }
    const Tensor rows = round.check_received(exchange, got);
    const Tensor output = poisoned(test.output, round.own().num_tokens(), test.shape.hidden);
    exchange.combine(got.handle, rows, output, round.options());
    round.check_output(output);
  }
} catch (const Error& error) {
  throw Error(error.code(), fmt::format("{} ({})", error.what(), test.describe()));
} catch (const std::exception& error) {
  throw std::runtime_error(
      fmt::format("rank {}: {} ({})", group.rank(), error.what(), test.describe()));
}

void check_two_in_flight(const Group& group, const ExchangeCase& test) {
  ExchangeConfig config = config_of(test);
  config.max_in_flight = 2;
  Exchange exchange(group, config);
  for (int repeat = 0; repeat < 3; ++repeat) {
    const Round first(group, test, 0);
    const Round second(group, test, 1);
    const DispatchHandle a =
        exchange.dispatch_send(first.tokens(), first.ids(false), first.weights());
    const DispatchHandle b =
        exchange.dispatch_send(second.tokens(), second.ids(true), second.weights());
    const Dispatched got_b = exchange.dispatch_receive(b);
    const Dispatched got_a = exchange.dispatch_receive(a);
    const Tensor rows_a = first.check_received(exchange, got_a);
    const Tensor rows_b = second.check_received(exchange, got_b);
    const Tensor output_a = poisoned(test.output, first.own().num_tokens(), test.shape.hidden);
    const Tensor output_b = poisoned(test.output, second.own().num_tokens(), test.shape.hidden);
    exchange.combine_send(b, rows_b);
    exchange.combine_send(a, rows_a);
    exchange.combine_receive(a, output_a, first.options());
    exchange.combine_receive(b, output_b, second.options());
    first.check_output(output_a);
    second.check_output(output_b);
  }
}

std::vector<ExchangeCase> exchange_cases(std::vector<int> rank_counts) {
  const QuantScheme packed{DType::kE4M3, ScaleGroup::kBlock, 128, ScaleRule::kDivide,
                           ScaleFormat::kE8M0Packed};
  const std::vector<QuantScheme> formats{schemes::kNone, schemes::kFp8Block,
                                         schemes::kFp8BlockDeepEp, schemes::kFp8Token, packed};
  const std::vector<BatchShape> shapes{
      {.num_experts = 8, .num_topk = 2, .hidden = 16},
      {.num_experts = 7, .num_topk = 3, .hidden = 136, .none_share = 0.3},
      {.num_experts = 13, .num_topk = 5, .hidden = 257, .none_share = 0.1},
      {.num_experts = 4, .num_topk = 1, .hidden = 1},
      {.num_experts = 5, .num_topk = 2, .hidden = 40, .none_share = 1.0},
      {.num_experts = 6, .num_topk = 1, .hidden = 24, .only_expert = 4},
  };
  std::vector<ExchangeCase> cases;
  std::uint64_t seed = 1;
  for (const int num_ranks : rank_counts) {
    for (const BatchShape& shape : shapes) {
      for (const Layout layout : {Layout::kBatched, Layout::kExpanded}) {
        for (const Reduce reduce : {Reduce::kPerExpert, Reduce::kPerRank}) {
          ExchangeCase test;
          test.num_ranks = num_ranks;
          test.shape = shape;
          test.shape.has_duplicates = layout == Layout::kExpanded && seed % 3 == 0;
          test.num_tokens = static_cast<std::int64_t>(seed % 4 == 0 ? 0 : 5 + seed % 19);
          test.layout = layout;
          test.scheme = formats[seed % formats.size()];
          test.reduce = reduce;
          test.sends_weights = reduce == Reduce::kPerRank || seed % 2 == 0;
          test.alignment =
              layout == Layout::kExpanded ? 1 + static_cast<std::int64_t>(seed % 3) * 7 : 1;
          test.output = seed % 5 == 0 ? DType::kF32 : DType::kBF16;
          test.num_bias = reduce == Reduce::kPerRank ? static_cast<int>(seed % 3) : 0;
          test.seed = seed++;
          cases.push_back(test);
        }
      }
    }
  }
  return cases;
}

}  // namespace switchyard::test

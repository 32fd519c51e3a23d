// SPDX-License-Identifier: Apache-2.0

#include "run_oracle.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <set>
#include <utility>

#include <fmt/format.h>

#include "conformance/exchange_values.h"
#include "core/even_parts.h"
#include "oracle_layer.h"
#include "quant/bits.h"
#include "quant/scalar.h"
#include "reference/batched.h"
#include "run_report.h"

namespace switchyard::cli {
namespace {

using reference::Batch;
using reference::Position;
using reference::Table;

constexpr std::int64_t kMaxElements = std::int64_t{1} << 23;  // whose codes are compared
constexpr std::int64_t kMaxProducts = std::int64_t{1} << 25;  // of a sample of the tokens
constexpr std::int64_t kMaxOfWhole = std::int64_t{1} << 27;   // where a sample does not do

// Ranks that exchange with each other, and the micro-batch that they exchange.
struct Part {
  int micro_batch = 0;
  int first_rank = 0;
  int num_ranks = 1;
};

class RunOracle {
 public:
  explicit RunOracle(const RunTrace& trace)
      : trace_(trace),
        model_(trace.result.config),
        config_(trace.result.run_config),
        first_token_(trace.result.first_token) {}

  OracleReport compare() {
    if (num_tokens() == 0) return report_;
    compare_rows();
    if (report_.is_ok()) compare_results();
    return report_;
  }

 private:
  const QuantScheme& scheme() const { return config_.prepare.scheme; }
  std::int64_t num_tokens() const { return first_token_.back(); }
  std::vector<Part> parts() const;
  std::int64_t first_of(const Part& part, int rank) const;
  Batch batch_of(const Part& part, const Table<float>& sample, std::int64_t stride) const;
  Tensor load_sample(std::int64_t stride) const;
  void weigh(Tensor& sample, std::int64_t stride) const;

  void compare_rows();
  void compare_rows(const Part& part, int rank, const Batch& batch);
  void compare_bytes(const std::vector<ReceivedRow>& rows, const std::string& where);
  void add_digests(const std::vector<ReceivedRow>& rows);
  bool is_dynamic() const {
    return scheme().group == ScaleGroup::kTensor && !config_.prepare.static_scale.has_value();
  }
  std::vector<Position> positions_of(const Batch& batch, int rank, std::int64_t num_rows) const;
  void compare_results();
  bool needs_all_rows() const;
  std::int64_t products_of_token() const;
  std::vector<std::int32_t> wanted_experts(std::int64_t stride) const;
  void compare_result(std::int64_t token, std::span<const float> want);
  void differ(std::string difference) {
    if (report_.difference.empty()) report_.difference = std::move(difference);
  }

  const RunTrace& trace_;
  const ModelConfig& model_;
  const RunConfig& config_;
  const std::vector<std::int64_t>& first_token_;
  OracleReport report_;
  std::int64_t stride_ = 1;  // the bytes of rows of every so many-th token are compared
  Tensor sample_;            // those tokens; absent: no bytes are compared
  std::map<std::int64_t, std::pair<std::uint64_t, std::uint64_t>> digests_;  // by token
  double error_ = 0;
  double norm_ = 0;
};

std::vector<Part> RunOracle::parts() const {
  const int num_ranks = static_cast<int>(first_token_.size()) - 1;
  const int step = config_.kind == PrepareKind::kLocal ? 1 : num_ranks;
  std::vector<Part> parts;
  for (int m = 0; m < trace_.options.micro_batches; ++m) {
    for (int r = 0; r < num_ranks; r += step) parts.push_back({m, r, step});
  }
  return parts;
}

// The first token of a rank's part, among those of all ranks.
std::int64_t RunOracle::first_of(const Part& part, int rank) const {
  const auto r = static_cast<std::size_t>(rank);
  return first_token_[r] + part_begin(first_token_[r + 1] - first_token_[r],
                                      trace_.options.micro_batches, part.micro_batch);
}

// Every stride-th token of the run, as far as it is in this part; without a sample no elements.
Batch RunOracle::batch_of(const Part& part, const Table<float>& sample, std::int64_t stride) const {
  Batch batch{model_.num_experts(), {}};
  const std::int64_t num_topk = model_.num_topk();
  for (int rank = part.first_rank; rank < part.first_rank + part.num_ranks; ++rank) {
    const auto r = static_cast<std::size_t>(rank);
    const std::int64_t begin = first_of(part, rank);
    const std::int64_t end = first_of({part.micro_batch + 1, 0, 0}, rank);
    reference::RankInput input;
    input.topk_ids.cols = input.topk_weights.cols = num_topk;
    input.tokens.cols = sample.cols;
    for (std::int64_t t = (begin + stride - 1) / stride * stride; t < end; t += stride) {
      const std::int64_t first = (t - first_token_[r]) * num_topk;
      const auto* ids = trace_.ranks[r].topk_ids.as<std::int32_t>() + first;
      const auto* weights = trace_.ranks[r].topk_weights.as<float>() + first;
      input.topk_ids.data.insert(input.topk_ids.data.end(), ids, ids + num_topk);
      input.topk_weights.data.insert(input.topk_weights.data.end(), weights, weights + num_topk);
      if (sample.cols > 0) {
        const auto row = sample.row(t / stride);
        input.tokens.data.insert(input.tokens.data.end(), row.begin(), row.end());
      }
      ++input.tokens.rows;
    }
    input.topk_ids.rows = input.topk_weights.rows = input.tokens.rows;
    batch.ranks.push_back(std::move(input));
  }
  return batch;
}

Tensor RunOracle::load_sample(std::int64_t stride) const {
  return load_run_sample(trace_.options, model_, num_tokens(), stride);
}

// Tokens as they are sent where their one weight is applied to them.
void RunOracle::weigh(Tensor& sample, std::int64_t stride) const {
  std::size_t r = 0;
  for (std::int64_t i = 0; i < sample.shape(0); ++i) {
    while (i * stride >= first_token_[r + 1]) ++r;
    const float weight = trace_.ranks[r].topk_weights.as<float>()[i * stride - first_token_[r]];
    for (std::int64_t at = i * model_.hidden; at < (i + 1) * model_.hidden; ++at) {
      const float x = scalar::load(sample.data(), sample.dtype(), at);
      scalar::store(sample.data(), sample.dtype(), at,
                    reference::weigh_input(sample.dtype(), x, weight));
    }
  }
}

void RunOracle::compare_rows() {
  const std::int64_t elements = num_tokens() * model_.hidden;
  stride_ = std::max<std::int64_t>(1, (elements + kMaxElements - 1) / kMaxElements);
  // The scale of all rows that arrive follows from all of them.
  if (!is_dynamic() || stride_ == 1) sample_ = load_sample(stride_);
  if (model_.weighs_input && sample_.view().has_value()) weigh(sample_, stride_);
  for (const Part& part : parts()) {
    const Batch batch = batch_of(part, {}, 1);
    for (int r = 0; r < part.num_ranks; ++r) compare_rows(part, r, batch);
  }
}

std::vector<Position> RunOracle::positions_of(const Batch& batch, int rank,
                                              std::int64_t num_rows) const {
  switch (config_.kind) {
    case PrepareKind::kLowLatency: {
      const std::int64_t num_experts = std::max(1, batch.num_local_experts(rank));
      return reference::dispatch_batched(batch, rank, num_rows / num_experts).rows;
    }
    case PrepareKind::kElasticPrefill:
      return reference::dispatch_expanded(batch, rank, config_.prepare.expert_alignment).rows;
    case PrepareKind::kElasticDecode:
    case PrepareKind::kAllToAll: return reference::dispatch_compact(batch, rank).rows;
    case PrepareKind::kAllToAllOneSided:
      return reference::dispatch_by_rank(batch, rank, num_rows / batch.num_ranks()).rows;
    case PrepareKind::kAllGather:
    case PrepareKind::kLocal: break;
  }
  return reference::dispatch_all_gather(batch, rank).rows;
}

void RunOracle::compare_rows(const Part& part, int rank, const Batch& batch) {
  const auto by_place = [](const ReceivedRow& a, const ReceivedRow& b) {
    return a.place < b.place;
  };
  std::vector<ReceivedRow> rows;
  for (const ReceivedRow& row :
       trace_.ranks[static_cast<std::size_t>(part.first_rank + rank)].rows) {
    if (row.micro_batch == part.micro_batch) rows.push_back(row);
  }
  std::ranges::stable_sort(rows, by_place);
  constexpr std::int64_t kAnySize = std::int64_t{1} << 40;
  std::vector<Position> positions =
      positions_of(batch, rank, rows.empty() ? kAnySize : rows.front().buffer_rows);
  std::ranges::stable_sort(positions, {}, &Position::index);
  const std::string where = fmt::format("rank {}", part.first_rank + rank);
  report_.num_rows += static_cast<std::int64_t>(positions.size());
  if (rows.size() != positions.size()) {
    return differ(
        fmt::format("{} received {} rows, must be {}", where, rows.size(), positions.size()));
  }
  std::vector<ReceivedRow> sampled;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    ReceivedRow& row = rows[i];
    const Position& want = positions[i];
    if (Position{row.source, row.token, row.k, row.expert, row.place} != want) {
      return differ(fmt::format(
          "row {} of {} is choice {} of token {} of rank {}, must be row {}: choice {} of token {} "
          "of rank {}",
          row.place, where, row.k, row.token, row.source, want.index, want.slot, want.token,
          want.source));
    }
    row.token += first_of(part, part.first_rank + row.source);
    if (sample_.view().has_value() && row.token % stride_ == 0) sampled.push_back(row);
  }
  compare_bytes(sampled, where);
}

// Rows whose places are right; `token` counts those of all ranks.
void RunOracle::compare_bytes(const std::vector<ReceivedRow>& rows, const std::string& where) {
  if (is_dynamic()) digests_.clear();  // the scale is that of the rows that this rank received
  add_digests(rows);
  for (const ReceivedRow& row : rows) {
    const auto& [codes, scales] = digests_.at(row.token);
    if (row.codes == codes && row.scales == scales) continue;
    return differ(fmt::format("{} of row {} of {}, token {} of the input, differ",
                              row.codes == codes ? "scales" : "elements", row.place, where,
                              row.token));
  }
  report_.compared_rows += static_cast<std::int64_t>(rows.size());
}

// Of the tokens of these rows that have none yet.
void RunOracle::add_digests(const std::vector<ReceivedRow>& rows) {
  std::set<std::int64_t> tokens;
  for (const ReceivedRow& row : rows) {
    if (!digests_.contains(row.token)) tokens.insert(row.token);
  }
  if (tokens.empty()) return;
  Tensor raw(config_.row_dtype(), {static_cast<std::int64_t>(tokens.size()), model_.hidden});
  const std::int64_t row_bytes = model_.hidden * bits_of(raw.dtype()) / 8;
  std::byte* to = raw.as<std::byte>();
  for (const std::int64_t token : tokens) {
    to = std::copy_n(sample_.as<std::byte>() + token / stride_ * row_bytes, row_bytes, to);
  }
  conformance::Bytes codes(raw.as<std::byte>(), to);
  conformance::Bytes scales;
  conformance::Bytes whole;  // the scale of all rows
  if (scheme().is_quantized()) {
    const reference::QuantizedRows quantized =
        reference::quantize(scheme(), table_of(raw), config_.prepare.static_scale);
    codes = conformance::stored_bytes(scheme(), quantized);
    scales = conformance::scale_bytes(scheme(), quantized);
    const bool is_tensor = scheme().group == ScaleGroup::kTensor;
    if (is_tensor || scheme().needs_tensor_scale()) {
      const float scale = is_tensor ? quantized.scales(0, 0) : quantized.tensor_scale;
      whole = conformance::encode(DType::kF32, {1, 1, std::vector<float>{scale}});
    }
  }
  std::size_t i = 0;
  for (const std::int64_t token : tokens) {
    const auto row_of = [&](const conformance::Bytes& bytes) {
      const std::size_t size = bytes.size() / tokens.size();
      return std::span(bytes).subspan(i * size, size);
    };
    conformance::Bytes scales_of_row(row_of(scales).begin(), row_of(scales).end());
    scales_of_row.insert(scales_of_row.end(), whole.begin(), whole.end());
    digests_[token] = {digest_of(row_of(codes)), digest_of(scales_of_row)};
    ++i;
  }
}

// A scale of all rows of an expert follows from all of them.
bool RunOracle::needs_all_rows() const {
  return scheme().group == ScaleGroup::kTensor &&
         !(config_.prepare.static_scale && config_.intermediate_scale);
}

std::int64_t RunOracle::products_of_token() const {
  const std::int64_t intermediate =
      std::int64_t{model_.num_topk()} * model_.moe_intermediate + model_.shared_intermediate;
  return 3 * model_.hidden * intermediate;
}

std::vector<std::int32_t> RunOracle::wanted_experts(std::int64_t stride) const {
  std::set<std::int32_t> wanted;
  for (const Part& part : parts()) {
    for (const reference::RankInput& input : batch_of(part, {}, stride).ranks) {
      wanted.insert(input.topk_ids.data.begin(), input.topk_ids.data.end());
    }
  }
  wanted.erase(-1);
  return {wanted.begin(), wanted.end()};
}

void RunOracle::compare_results() {
  const std::int64_t most = std::max<std::int64_t>(1, kMaxProducts / products_of_token());
  std::int64_t stride = (num_tokens() + most - 1) / most;
  if (needs_all_rows()) {
    stride = 1;
    if (num_tokens() * products_of_token() > kMaxOfWhole) {
      report_.left_out = "all rows of an expert share a scale, and they are many";
      return;
    }
  }
  if (trace_.options.experts != "exact") report_.bound = rel_l2_bound(trace_.options.scheme);
  const OracleLayer layer(config_, model_, Checkpoint(trace_.options.model), trace_.result.layer,
                          wanted_experts(stride));
  const Table<float> sample = table_of(load_sample(stride));
  for (const Part& part : parts()) {
    const auto first_host = trace_.hosts.begin() + part.first_rank;
    const std::vector<Table<float>> outputs =
        layer.apply(batch_of(part, sample, stride), {first_host, first_host + part.num_ranks});
    for (int r = 0; r < part.num_ranks; ++r) {
      const Table<float>& output = outputs[static_cast<std::size_t>(r)];
      const std::int64_t begin = first_of(part, part.first_rank + r);
      const std::int64_t first = (begin + stride - 1) / stride * stride;
      for (std::int64_t i = 0; i < output.rows; ++i) {
        compare_result(first + i * stride, output.row(i));
      }
    }
  }
  report_.rel_l2 = std::sqrt(norm_ > 0 ? error_ / norm_ : error_);
  if (!(report_.rel_l2 <= report_.bound)) {
    differ(fmt::format("||result - reference|| / ||reference|| is {:.3e}, at most {:.1e} for {}",
                       report_.rel_l2, report_.bound, trace_.options.experts));
  }
}

void RunOracle::compare_result(std::int64_t token, std::span<const float> want) {
  const DType dtype = trace_.output.dtype();
  ++report_.compared_tokens;
  for (std::size_t h = 0; h < want.size(); ++h) {
    const float value = scalar::load(trace_.output.data(), dtype,
                                     token * model_.hidden + static_cast<std::int64_t>(h));
    const bool is_equal =
        bits_from_f32(value) == bits_from_f32(reference::round_to(dtype, want[h]));
    if (is_equal || (std::isnan(value) && std::isnan(want[h]))) continue;
    if (report_.bound == 0 || !std::isfinite(value) || !std::isfinite(want[h])) {
      return differ(fmt::format("element {} of the result of token {} is {}, must be {}", h, token,
                                value, want[h]));
    }
    error_ += (double{value} - want[h]) * (double{value} - want[h]);
  }
  for (const float value : want) norm_ += std::isfinite(value) ? double{value} * value : 0;
}

}  // namespace

OracleReport compare_with_oracle(const RunTrace& trace) { return RunOracle(trace).compare(); }

}  // namespace switchyard::cli

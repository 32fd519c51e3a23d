// SPDX-License-Identifier: Apache-2.0
//
// What the oracle says that a layer gives, from every rank's tokens.

#include <array>

#include "conformance/layer_run.h"
#include "core/even_parts.h"

namespace switchyard::conformance {
namespace {

using reference::Batch;
using reference::ExpertMajor;
using reference::Table;

template <typename T>
void append(Table<T>& to, const Table<T>& from) {
  to.rows += from.rows;
  to.data.insert(to.data.end(), from.data.begin(), from.data.end());
}

}  // namespace

// A dynamic scale of all rows is known only where they arrive.
QuantScheme LayerRun::wire() const {
  const QuantScheme wanted = test_.wire_scheme.value_or(test_.scheme);
  const bool is_late = wanted.group == ScaleGroup::kTensor && !test_.has_static_scale;
  const bool is_deferred = test_.defers && test_.scheme.is_quantized() && wanted.is_quantized();
  return is_late || is_deferred ? schemes::kNone : wanted;
}

// Tokens as they arrive; those in the experts' own scheme are quantized only once.
Table<float> LayerRun::arrived(const Table<float>& tokens) const {
  const QuantScheme scheme = wire();
  if (scheme == test_.scheme && scheme.is_quantized()) return tokens;
  if (!scheme.is_quantized()) return rounded(scheme.dtype, tokens);
  return rounded(DType::kBF16,
                 reference::dequantize(scheme, reference::quantize(scheme, tokens, static_scale_)));
}

// Blocks and rows have scales of their own, so it does not matter where they are quantized; one
// scale for the tensor is that of all rows that arrived.
Table<float> LayerRun::read_by_experts(const Table<float>& rows,
                                       const Table<float>& all_rows) const {
  const QuantScheme& scheme = test_.scheme;
  if (test_.defers || rows.rows == 0) return rows;
  if (!scheme.is_quantized()) return rounded(scheme.dtype, rows);
  std::optional<float> scale = static_scale_;
  if (scheme.group == ScaleGroup::kTensor && !scale) {
    scale = reference::quantize(scheme, all_rows).scales(0, 0);
  }
  const Table<float> read = reference::dequantize(scheme, reference::quantize(scheme, rows, scale));
  return scheme.is_simulated() ? rounded(DType::kBF16, read) : read;
}

Table<float> LayerRun::exact() const {
  Table<float> output = routed();
  if (!layer_.shared) return output;
  const Table<float> shared =
      reference::shared_rows(layer_, batch_.ranks[static_cast<std::size_t>(rank_)].tokens);
  for (std::size_t i = 0; i < output.data.size(); ++i) {
    output.data[i] = reference::round_to(test_.output(), output.data[i] + shared.data[i]);
  }
  return output;
}

Batch LayerRun::gathered() const {
  reference::RankInput all = served_.ranks.front();
  for (std::size_t r = 1; r < served_.ranks.size(); ++r) {
    append(all.tokens, served_.ranks[r].tokens);
    append(all.topk_ids, served_.ranks[r].topk_ids);
    append(all.topk_weights, served_.ranks[r].topk_weights);
  }
  return {served_.num_experts, {all}};
}

reference::MlpWeights LayerRun::slice_of_rank(int rank) const {
  const std::int64_t first = part_begin(test_.intermediate, num_ranks_, rank);
  const std::int64_t end = part_begin(test_.intermediate, num_ranks_, rank + 1);
  return reference::slice_of(layer_.experts, first, end - first);
}

// Every rank applies its slice to every token, as if it were alone.
Table<float> LayerRun::routed_in_slices() const {
  const QuantScheme intermediate = test_.quantizes_activation ? test_.scheme : schemes::kNone;
  const Batch all = gathered();
  const ExpertMajor placed = reference::dispatch_expanded(all, 0, 1);
  const Table<float> rows =
      read_by_experts(arrived(reference::receive(all, placed.rows, placed.num_rows)),
                      arrived(all.ranks.front().tokens));
  std::vector<Table<float>> partials;
  for (int r = 0; r < num_ranks_; ++r) {
    const Table<float> results =
        reference::apply_experts(slice_of_rank(r), 0, placed, rows, intermediate);
    const std::array<Table<float>, 1> sums{
        reference::reduce_on_rank(all, 0, placed, results, true, test_.output())};
    partials.push_back(reference::sum_partials(all, 0, sums, {}, test_.output()));
  }
  return reference::reduce_scatter(served_, rank_, partials, {}, test_.output());
}

Table<float> LayerRun::routed() const {
  if (test_.slices_experts) return routed_in_slices();
  const QuantScheme intermediate = test_.quantizes_activation ? test_.scheme : schemes::kNone;
  std::vector<ExpertMajor> placed;
  std::vector<Table<float>> rows;
  const bool sees_all = test_.kind == PrepareKind::kAllGather || test_.kind == PrepareKind::kLocal;
  const Table<float> everything = arrived(gathered().ranks.front().tokens);
  for (int r = 0; r < num_ranks_; ++r) {
    placed.push_back(reference::dispatch_expanded(served_, r, 1));
    const ExpertMajor& last = placed.back();
    const Table<float> own = arrived(reference::receive(served_, last.rows, last.num_rows));
    rows.push_back(reference::apply_experts(
        layer_.experts, reference::first_expert(served_.num_experts, num_ranks_, r), last,
        read_by_experts(own, sees_all ? everything : own), intermediate));
  }
  if (test_.reduce == Reduce::kPerExpert) {
    return reference::combine_per_expert(served_, rank_, placed, rows, test_.output());
  }
  std::vector<Table<float>> partials;
  for (int r = 0; r < num_ranks_; ++r) {
    const auto i = static_cast<std::size_t>(r);
    partials.push_back(
        reference::reduce_on_rank(served_, r, placed[i], rows[i], true, test_.output()));
  }
  const auto order = test_.kind == PrepareKind::kAllGather ? reference::PartialOrder::kRank
                                                           : reference::PartialOrder::kHighestSlot;
  return reference::sum_partials(served_, rank_, partials, {}, test_.output(), order);
}

Table<float> LayerRun::plain() const {
  const Batch own{served_.num_experts, {served_.ranks[static_cast<std::size_t>(rank_)]}};
  const std::array<ExpertMajor, 1> placed{reference::dispatch_expanded(own, 0, 1)};
  const Table<float> tokens = arrived(own.ranks[0].tokens);
  const Table<float> sent = read_by_experts(tokens, tokens);
  Table<float> rows(placed[0].num_rows, sent.cols);
  for (const reference::Position& p : placed[0].rows) {
    std::ranges::copy(sent.row(p.token), rows.row(p.index).begin());
  }
  const std::array<Table<float>, 1> outputs{
      reference::apply_experts(layer_.experts, 0, placed[0], rows, schemes::kNone)};
  return reference::combine_per_expert(own, 0, placed, outputs, DType::kF32);
}

}  // namespace switchyard::conformance

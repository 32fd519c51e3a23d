// SPDX-License-Identifier: Apache-2.0
//
// What a class hands to experts beside the rows, which their results show: counts, starts, ids and
// weights of the rows.

#include <algorithm>
#include <bit>

#include "conformance/layer_run.h"

namespace switchyard::conformance {
namespace {

using reference::Batch;
using reference::Position;
using reference::RankMajor;
using reference::Table;

/// Of every row of the buffer; none where the class hands out none.
struct Choices {
  Table<std::int64_t> ids;
  Table<float> weights;
  std::int64_t none = -1;  ///< the id of no expert
};

bool is_grouped(PrepareKind kind) {
  return kind == PrepareKind::kLowLatency || kind == PrepareKind::kElasticPrefill;
}

// Rows of a token, `size` for each rank.
RankMajor tokens_of(PrepareKind kind, const Batch& batch, int rank, std::int64_t size) {
  if (kind == PrepareKind::kAllToAllOneSided) return reference::dispatch_by_rank(batch, rank, size);
  if (kind == PrepareKind::kAllGather || kind == PrepareKind::kLocal) {
    return reference::dispatch_all_gather(batch, rank);
  }
  RankMajor placed = reference::dispatch_compact(batch, rank);
  const std::int64_t num_topk = batch.ranks.front().topk_ids.cols;
  placed.num_rows = batch.num_ranks() * size;
  placed.topk_ids.data.resize(static_cast<std::size_t>(placed.num_rows * num_topk), -1);
  placed.local_ids.data.resize(placed.topk_ids.data.size(), -1);
  placed.topk_weights.data.resize(placed.topk_ids.data.size(), 0.0f);
  return placed;
}

Choices choices_of_tokens(PrepareKind kind, const Batch& batch, int rank, std::int64_t size) {
  const RankMajor placed = tokens_of(kind, batch, rank, size);
  Choices choices;
  choices.ids.data.assign(placed.topk_ids.data.begin(), placed.topk_ids.data.end());
  choices.weights.data = placed.topk_weights.data;
  if (kind != PrepareKind::kElasticDecode && kind != PrepareKind::kAllToAll) return choices;
  if (kind == PrepareKind::kAllToAll) choices.none = batch.num_experts;
  const std::int32_t first = reference::first_expert(batch.num_experts, batch.num_ranks(), rank);
  for (std::size_t i = 0; i < placed.local_ids.data.size(); ++i) {
    const std::int32_t local = placed.local_ids.data[i];
    choices.ids.data[i] = local >= 0 ? first + local : choices.none;
  }
  return choices;
}

// Padding before the next expert has the id of the expert that it follows.
Choices choices_of_rows(const Batch& batch, int rank, std::int64_t alignment) {
  const reference::ExpertMajor placed = reference::dispatch_expanded(batch, rank, alignment);
  Choices choices;
  choices.ids.data.resize(static_cast<std::size_t>(placed.num_rows));
  choices.weights.data.resize(choices.ids.data.size());
  const std::int32_t first = reference::first_expert(batch.num_experts, batch.num_ranks(), rank);
  for (std::size_t e = 0; e < placed.first_row.size(); ++e) {
    std::fill(choices.ids.data.begin() + placed.first_row[e], choices.ids.data.end(),
              first + static_cast<std::int64_t>(e));
  }
  for (const Position& row : placed.rows) {
    choices.weights.data[static_cast<std::size_t>(row.index)] =
        batch.ranks[static_cast<std::size_t>(row.source)].topk_weights(row.token, row.slot);
  }
  return choices;
}

template <typename T>
std::vector<T> values_of(const TensorView& view, const Arena& arena) {
  std::vector<T> values(static_cast<std::size_t>(view.num_elements()));
  if (view.device().is_cpu()) {
    std::copy_n(view.as<T>(), values.size(), values.begin());
  } else {
    arena.copy_out(view, values.data());
  }
  return values;
}

}  // namespace

void LayerRun::check_prepared(const Prepared& got, const Arena& arena) const {
  const bool is_prefill = test_.kind == PrepareKind::kElasticPrefill;
  std::vector<std::int64_t> counts = test_.slices_experts
                                         ? reference::dispatch_expanded(gathered(), 0, 1).counts
                                         : reference::dispatch_expanded(served_, rank_, 1).counts;
  const auto expect_counts = [&](const char* what, const TensorView& view) {
    expect(std::ranges::equal(values_of<std::int32_t>(view, arena), counts), "{} differ", what);
  };
  expect_counts("rows of experts", got.experts.num_rows);
  expect(got.experts.first_row.has_value() == is_grouped(test_.kind), "starts of experts");
  expect(got.metadata.has_value() == (is_prefill || test_.kind == PrepareKind::kLowLatency),
         "metadata where none belongs, or none");
  for (std::int64_t& count : counts) {
    while (is_prefill && count % test_.alignment != 0) ++count;
  }
  if (got.metadata.has_value()) {
    expect_counts("counts of the metadata", got.metadata->expert_num_tokens);
    if (arena.device().is_cpu()) {
      expect_counts("counts for the host", got.metadata->expert_num_tokens_cpu);
    }
  }
  expect(got.topk_ids.has_value() == (is_prefill || !is_grouped(test_.kind)), "ids of rows");
  if (!got.topk_ids.has_value()) return;

  std::int64_t size = max_tokens() + (test_.limits_calls ? 0 : kSpareTokens);
  if (test_.kind == PrepareKind::kElasticDecode && test_.limits_calls) {
    size = std::min(max_tokens() + kSpareTokens,
                    static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(size))));
  }
  const Choices want = is_prefill ? choices_of_rows(served_, rank_, test_.alignment)
                                  : choices_of_tokens(test_.kind, served_, rank_, size);
  const bool is_wide = is_prefill || test_.kind == PrepareKind::kElasticDecode;
  expect(got.topk_ids.dtype() == (is_wide ? DType::kI64 : DType::kI32), "ids are {}",
         got.topk_ids.describe());
  std::vector<std::int64_t> ids =
      is_wide ? values_of<std::int64_t>(got.topk_ids, arena) : std::vector<std::int64_t>();
  if (!is_wide) {
    const std::vector<std::int32_t> narrow = values_of<std::int32_t>(got.topk_ids, arena);
    ids.assign(narrow.begin(), narrow.end());
  }
  const std::vector<float> weights = values_of<float>(got.topk_weights, arena);
  // The buffer of a GPU may be longer; nothing is there.
  expect(ids.size() == weights.size() && ids.size() >= want.ids.data.size() &&
             (arena.device().is_cuda() || ids.size() == want.ids.data.size()),
         "{} ids and {} weights, expected {}", ids.size(), weights.size(), want.ids.data.size());
  for (std::size_t i = 0; i < ids.size(); ++i) {
    const bool is_there = i < want.ids.data.size();
    const std::int64_t id = is_there ? want.ids.data[i] : want.none;
    expect(ids[i] == id, "id {} is {}, expected {}", i, ids[i], id);
    const float weight = is_there ? want.weights.data[i] : 0.0f;
    expect(weights[i] == weight, "weight {} is {}, expected {}", i, weights[i], weight);
  }
}

}  // namespace switchyard::conformance

// SPDX-License-Identifier: Apache-2.0

#include "prepare_finalize_oracle.h"

#include <bit>

#include "quant/bf16.h"

namespace switchyard::test {

using reference::Batch;
using reference::ExpertMajor;
using reference::Position;
using reference::QuantizedRows;
using reference::RankMajor;
using reference::Table;

namespace {

bool is_expert_major_class(PrepareKind kind) {
  return kind == PrepareKind::kLowLatency || kind == PrepareKind::kElasticPrefill ||
         kind == PrepareKind::kLocal;
}

Table<float> rounded(Table<float> table, DType dtype) {
  for (float& x : table.data) x = reference::round_to(dtype, x);
  return table;
}

// The bytes of unquantized or simulated rows.
Table<std::uint8_t> plain_bytes(const Table<float>& rows) {
  Table<std::uint8_t> bytes(rows.rows, rows.cols * 2);
  for (std::size_t i = 0; i < rows.data.size(); ++i) {
    const std::uint16_t bits = bf16_from_f32(rows.data[i]);
    bytes.data[2 * i] = static_cast<std::uint8_t>(bits & 0xFF);
    bytes.data[2 * i + 1] = static_cast<std::uint8_t>(bits >> 8);
  }
  return bytes;
}

std::vector<std::int32_t> narrow(const std::vector<std::int64_t>& counts) {
  return {counts.begin(), counts.end()};
}

}  // namespace

ClassOracle::ClassOracle(const ClassCase& test, const Batch& batch) : test_(test), batch_(batch) {
  for (reference::RankInput& input : batch_.ranks) {
    for (std::int32_t& id : input.topk_ids.data) {
      if (id >= 0 && !test.global_to_physical.empty()) {
        id = test.global_to_physical[static_cast<std::size_t>(id)];
      }
    }
    alone_.push_back({batch.num_experts, {input}});
  }
}

std::pair<const Batch*, int> ClassOracle::seen_by(int rank) const {
  if (!test_.is_local()) return {&batch_, rank};
  return {&alone_[static_cast<std::size_t>(rank)], 0};
}

// A dynamic per-tensor scale is known only where the rows arrive.
QuantScheme ClassOracle::wire() const {
  const QuantScheme wanted = test_.wire_scheme.value_or(test_.scheme);
  const bool is_late = wanted.group == ScaleGroup::kTensor && !test_.static_scale;
  const bool is_deferred = test_.defers && test_.scheme.is_quantized() && wanted.is_quantized();
  return is_late || is_deferred ? schemes::kNone : wanted;
}

// Rows as they arrive, before the experts' own scheme is applied; [rows, H].
Table<float> ClassOracle::travelled(const Batch& batch, const std::vector<Position>& rows) const {
  const QuantScheme scheme = wire();
  Table<float> result(static_cast<std::int64_t>(rows.size()), test_.hidden);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const auto& tokens = batch.ranks[static_cast<std::size_t>(rows[i].source)].tokens;
    const auto from = tokens.row(rows[i].token);
    std::copy(from.begin(), from.end(), result.row(static_cast<std::int64_t>(i)).begin());
  }
  if (!scheme.is_quantized()) return rounded(result, scheme.dtype);
  if (scheme == test_.scheme) return result;  // quantized only once, below
  return rounded(
      reference::dequantize(scheme, reference::quantize(scheme, result, test_.static_scale)),
      DType::kBF16);
}

RankMajor ClassOracle::tokens_of(const Batch& batch, int rank) const {
  std::int64_t size = test_.max_tokens == 0 ? test_.max_tokens_per_rank : test_.max_tokens;
  if (test_.kind == PrepareKind::kAllToAllOneSided) {
    return reference::dispatch_by_rank(batch, rank, size);
  }
  RankMajor placed;
  if (test_.kind != PrepareKind::kAllGather) {
    placed = reference::dispatch_compact(batch, rank);
    if (test_.kind == PrepareKind::kElasticDecode) {
      size = std::min(test_.max_tokens_per_rank,
                      static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(size))));
    }
    placed.num_rows = batch.num_ranks() * size;
    placed.topk_ids.data.resize(static_cast<std::size_t>(placed.num_rows * test_.num_topk), -1);
    placed.local_ids.data.resize(placed.topk_ids.data.size(), -1);
    placed.topk_weights.data.resize(placed.topk_ids.data.size(), 0.0f);
    return placed;
  }
  for (int source = 0; source < batch.num_ranks(); ++source) {
    const auto& input = batch.ranks[static_cast<std::size_t>(source)];
    for (std::int64_t t = 0; t < input.num_tokens(); ++t) {
      placed.rows.push_back({source, t, -1, -1, placed.num_rows++});
    }
    const auto append = [](auto& to, const auto& from) {
      to.insert(to.end(), from.begin(), from.end());
    };
    append(placed.topk_ids.data, input.topk_ids.data);
    append(placed.topk_weights.data, input.topk_weights.data);
  }
  return placed;
}

void ClassOracle::place_tokens(const Batch& batch, int rank, ExpectedRows& want) const {
  const RankMajor placed = tokens_of(batch, rank);
  const bool is_decode = test_.kind == PrepareKind::kElasticDecode;
  const bool is_compact = is_decode || test_.kind == PrepareKind::kAllToAll;
  want.positions = placed.rows;
  want.num_rows = placed.num_rows;
  want.ids_dtype = is_decode ? DType::kI64 : DType::kI32;
  want.topk_ids = {
      placed.num_rows, test_.num_topk,
      std::vector<std::int64_t>(placed.topk_ids.data.begin(), placed.topk_ids.data.end())};
  want.topk_weights = placed.topk_weights;
  want.topk_weights.cols = test_.num_topk;
  const std::int32_t first = reference::first_expert(batch.num_experts, batch.num_ranks(), rank);
  for (std::size_t i = 0; is_compact && i < placed.local_ids.data.size(); ++i) {
    const std::int32_t local = placed.local_ids.data[i];
    want.topk_ids.data[i] = local >= 0 ? first + local : is_decode ? -1 : test_.num_experts;
  }
  want.counts = narrow(reference::dispatch_expanded(batch, rank, 1).counts);
}

void ClassOracle::place(const Batch& batch, int rank, ExpectedRows& want) const {
  if (!is_expert_major_class(test_.kind)) return place_tokens(batch, rank, want);
  const bool is_batched = test_.kind == PrepareKind::kLowLatency;
  const ExpertMajor placed =
      is_batched
          ? reference::dispatch_batched(batch, rank, batch.num_ranks() * test_.max_tokens_per_rank)
          : reference::dispatch_expanded(batch, rank, test_.expert_alignment);
  want.positions = placed.rows;
  want.num_rows = placed.num_rows;
  want.counts = narrow(placed.counts);
  if (test_.kind != PrepareKind::kElasticPrefill) return;
  want.ids_dtype = DType::kI64;
  want.topk_ids = Table<std::int64_t>(placed.num_rows, 1);
  want.topk_weights = Table<float>(placed.num_rows, 1);
  const std::int32_t first = reference::first_expert(batch.num_experts, batch.num_ranks(), rank);
  for (std::size_t e = 0; e < placed.first_row.size(); ++e) {
    for (std::int64_t n = placed.first_row[e]; n < placed.num_rows; ++n) {
      want.topk_ids(n, 0) = first + static_cast<std::int64_t>(e);
    }
  }
  for (const Position& row : placed.rows) {
    want.topk_weights(row.index, 0) =
        batch.ranks[static_cast<std::size_t>(row.source)].topk_weights(row.token, row.slot);
  }
}

ExpectedRows ClassOracle::received(int rank) const {
  const auto [batch, r] = seen_by(rank);
  ExpectedRows want;
  place(*batch, r, want);
  Table<float> rows = travelled(*batch, want.positions);
  if (!test_.scheme.is_quantized() || test_.defers) {
    want.elements = plain_bytes(rows);
    return want;
  }
  if (test_.scheme.is_simulated()) {
    want.elements = plain_bytes(reference::dequantize(
        test_.scheme, reference::quantize(test_.scheme, rounded(rows, DType::kBF16))));
    return want;
  }
  const QuantizedRows quantized = reference::quantize(test_.scheme, rows, test_.static_scale);
  want.elements = reference::stored_elements(test_.scheme, quantized);
  if (test_.scheme.group == ScaleGroup::kTensor) {
    want.tensor_scale = quantized.scales(0, 0);
    return want;
  }
  want.scales = reference::stored_scales(test_.scheme, quantized);
  if (test_.scheme.needs_tensor_scale()) want.tensor_scale = test_.static_scale;
  return want;
}

// Rows of `placed` as the experts read them. A dynamic per-tensor scale covers the arrived rows.
Table<float> ClassOracle::read_by_experts(const Batch& batch, int rank,
                                          const ExpertMajor& placed) const {
  const Table<float> rows = travelled(batch, placed.rows);
  if (test_.defers) return rows;
  if (!test_.scheme.is_quantized()) return rounded(rows, test_.scheme.dtype);
  std::optional<float> scale = test_.static_scale;
  if (test_.scheme.group == ScaleGroup::kTensor && !scale) {
    ExpectedRows want;
    place(batch, rank, want);
    scale = reference::quantize(test_.scheme, travelled(batch, want.positions)).scales(0, 0);
  }
  const Table<float> read =
      reference::dequantize(test_.scheme, reference::quantize(test_.scheme, rows, scale));
  return test_.scheme.is_simulated() ? rounded(read, DType::kBF16) : read;
}

Table<float> ClassOracle::output(int rank) const {
  const auto [batch, owner] = seen_by(rank);
  std::vector<ExpertMajor> placed;
  std::vector<Table<float>> rows;
  std::vector<Table<float>> partials;
  for (int r = 0; r < batch->num_ranks(); ++r) {
    placed.push_back(reference::dispatch_expanded(*batch, r, 1));
    const std::int32_t first = reference::first_expert(batch->num_experts, batch->num_ranks(), r);
    rows.push_back(read_by_experts(*batch, r, placed.back()));
    for (const Position& row : placed.back().rows) {
      for (float& x : rows.back().row(row.index)) {
        x = reference::round_to(DType::kBF16, x * factor_of(first + row.expert));
      }
    }
    partials.push_back(reference::reduce_on_rank(*batch, r, placed.back(), rows.back(), true));
  }
  const Reduce usual = test_.kind == PrepareKind::kLowLatency || test_.is_local()
                           ? Reduce::kPerExpert
                           : Reduce::kPerRank;
  if (test_.reduce.value_or(usual) == Reduce::kPerExpert) {
    return reference::combine_per_expert(*batch, owner, placed, rows, DType::kBF16);
  }
  return reference::sum_partials(*batch, owner, partials, {}, DType::kBF16,
                                 test_.kind == PrepareKind::kAllGather
                                     ? reference::PartialOrder::kRank
                                     : reference::PartialOrder::kHighestSlot);
}

}  // namespace switchyard::test

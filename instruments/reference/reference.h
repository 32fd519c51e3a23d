// SPDX-License-Identifier: Apache-2.0
//
// reference.h: the oracle: a whole MoE layer over P ranks in one process. It is slow, obviously
// right, and shares no loop with the code that it checks. Values are floats that the stated dtype
// represents exactly.
//
// Letters used for shapes in this header:
//   P  ranks     T  tokens per rank     K  experts chosen per token     H  elements per token
//   E  experts   L  experts per rank    N  rows of a receive buffer     I  intermediate elements
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "switchyard/activation.h"
#include "switchyard/layout.h"
#include "switchyard/quant.h"
#include "switchyard/router.h"

#include "reference/table.h"

namespace switchyard::reference {

// ---- inputs ------------------------------------------------------------------------------------

struct RankInput {
  Table<float> tokens;           ///< [T, H]
  Table<std::int32_t> topk_ids;  ///< [T, K], -1 for no expert; an expert may be listed twice
  Table<float> topk_weights;     ///< [T, K]

  std::int64_t num_tokens() const { return tokens.rows; }
};

/// The inputs of all ranks. H and K are the same on every rank; T may differ.
struct Batch {
  std::int32_t num_experts = 0;
  std::vector<RankInput> ranks;
  std::vector<std::int32_t> experts_per_rank{};  ///< empty: linear placement, see below

  int num_ranks() const { return static_cast<int>(ranks.size()); }
  std::int64_t hidden() const { return ranks.front().tokens.cols; }
  std::int64_t num_topk() const { return ranks.front().topk_ids.cols; }
  std::int32_t num_local_experts(int rank) const;
  std::int32_t first_expert(int rank) const;
  int owner_of(std::int32_t expert) const;
};

/// Errors: kInvalidArgument if shapes differ between ranks or an id is outside [-1, E).
void check_batch(const Batch& batch);

// ---- route.cpp: who owns an expert, which experts a token wants --------------------------------

/// Linear placement: every rank owns E / P experts, and each of the first E % P ranks one more.
std::int32_t num_local_experts(std::int32_t num_experts, int num_ranks, int rank);
std::int32_t first_expert(std::int32_t num_experts, int num_ranks, int rank);
int owner_of(std::int32_t num_experts, int num_ranks, std::int32_t expert);

/// logits [T, E] = hidden [T, H] x gate [E, H]: one fma chain per logit, h ascending, from +0.
Table<float> router_logits(const Table<float>& hidden, const Table<float>& gate);

struct Routing {
  Table<std::int32_t> topk_ids;  ///< [T, K]
  Table<float> topk_weights;     ///< [T, K]
};

/// The definition of switchyard::select_experts, by full sorts. `bias` is empty or [E].
Routing select_experts(const RouterConfig& config, const Table<float>& logits,
                       std::span<const float> bias);

// ---- dispatch.cpp: where every row lands -------------------------------------------------------

/// One row of a receive buffer and where it came from.
struct Position {
  int source = 0;            ///< rank that sent it
  std::int64_t token = 0;    ///< its row on that rank
  std::int32_t slot = 0;     ///< k; in rank-major layouts the highest k with an expert here, or -1
  std::int32_t expert = -1;  ///< local expert; -1 in rank-major layouts
  std::int64_t index = 0;    ///< row of the receive buffer

  friend bool operator==(const Position&, const Position&) = default;
};

/// Layouts `batched` and `expanded`: one row per (token, slot) whose slot names a local expert.
struct ExpertMajor {
  std::vector<Position> rows;           ///< by (expert, source rank, token, slot)
  std::vector<std::int64_t> counts;     ///< [L] rows per expert
  std::vector<std::int64_t> first_row;  ///< [L]
  Table<std::int64_t> segment_counts;   ///< [L, P] rows per source
  Table<std::int64_t> segment_first;    ///< [L, P] first row per source
  std::int64_t num_rows = 0;            ///< N, padding included
};

/// Layouts `compact` and `by_rank`: one row per token that wants any expert of this rank.
/// `all_gather`: one row per token.
struct RankMajor {
  std::vector<Position> rows;               ///< by (source rank, token)
  std::vector<std::int64_t> source_counts;  ///< [P]
  Table<std::int32_t> topk_ids;             ///< [N, K] as sent; -1 in rows without a token
  Table<std::int32_t> local_ids;            ///< [N, K]; -1 if the expert is on another rank
  Table<float> topk_weights;                ///< [N, K] as sent; 0 in rows without a token
  std::int64_t num_rows = 0;                ///< N
};

/// `batched`, [L, capacity]: expert e starts at row e * capacity.
/// Errors: kInvalidArgument if an expert receives more rows than `capacity`.
ExpertMajor dispatch_batched(const Batch& batch, int rank, std::int64_t capacity);

/// `expanded`: experts in sequence, each starting at a multiple of `alignment`, as does N.
ExpertMajor dispatch_expanded(const Batch& batch, int rank, std::int64_t alignment);

/// `compact`: rows without gaps.
RankMajor dispatch_compact(const Batch& batch, int rank);

/// `by_rank`, [P, max_tokens]: the n-th row of source s is row s * max_tokens + n.
RankMajor dispatch_by_rank(const Batch& batch, int rank, std::int64_t max_tokens);

/// `all_gather`: every token of every rank, without gaps. K may be 0.
RankMajor dispatch_all_gather(const Batch& batch, int rank);

/// The batch as served if each expert accepts `capacity` rows: a choice becomes -1 if at least
/// `capacity` choices of its expert precede it, by larger weight, then by (rank, token, slot).
/// Without `is_weighted` all weights count as 1.
Batch drop_overflow(const Batch& batch, std::int64_t capacity, bool is_weighted);

// ---- formats.cpp: elements ---------------------------------------------------------------------

/// Rounds `x` to bf16, f16 or f32 and widens it again; NaN becomes the canonical quiet NaN.
float round_to(DType dtype, float x);

/// The value of a code of e4m3, e2m1, e2m3, e3m2 or i8 (two's complement).
float value_of_code(DType dtype, std::uint8_t code);

/// The code of x in e4m3, e2m1, e2m3 or e3m2: to nearest, ties to even, saturating. NaN becomes
/// `nan_code`. Minus zero keeps its sign except in e2m3 and e3m2.
std::uint8_t nearest_code(DType dtype, float x, std::uint8_t nan_code);

/// The i8 code of a rounded value, saturating; NaN becomes 0.
std::uint8_t int8_code(float rounded);

float f32_from_e4m3(std::uint8_t code);
std::uint8_t e4m3_from_f32(float x, std::uint8_t nan_code);

// ---- quantize.cpp: rows ------------------------------------------------------------------------

struct QuantizedRows {
  Table<std::uint8_t> elements;        ///< [N, H] codes, one per byte in every format
  Table<float> scales;                 ///< [N, S]; kTensor: [1, 1], or [N, 1] after receive
  Table<std::uint32_t> packed_scales;  ///< [N, cdiv(S, 4)] for kE8M0Packed: exponent bytes
  float tensor_scale = 1.0f;           ///< nvfp4: the global scale
};

/// The definition of switchyard::quantize. Simulated schemes also return codes and scales.
/// `static_scale` is for kTensor, or the global scale of nvfp4.
/// Errors: kNotSupported (no scales, invalid fields); kInvalidArgument (nvfp4 without a scale).
QuantizedRows quantize(const QuantScheme& scheme, const Table<float>& x,
                       std::optional<float> static_scale = {});

/// element * scale in f32, rounded once.
Table<float> dequantize(const QuantScheme& scheme, const QuantizedRows& rows);

/// The bytes of the elements as stored: [N, H], or [N, H / 2] for e2m1.
Table<std::uint8_t> stored_elements(const QuantScheme& scheme, const QuantizedRows& rows);

/// The bytes of the scales as stored: [N, (S or words) * bytes per scale].
Table<std::uint8_t> stored_scales(const QuantScheme& scheme, const QuantizedRows& rows);

/// Dequantizes weights stored as e4m3 codes [M, C] with one scale per 128 x 128 block.
Table<float> dequantize_weight(const Table<std::uint8_t>& codes, const Table<float>& block_scales);

/// The rows as received: [num_rows, H], zero where no token landed.
Table<float> receive(const Batch& batch, std::span<const Position> rows, std::int64_t num_rows);

/// The same for rows quantized at their source; `sent` has one entry per rank.
QuantizedRows receive(std::span<const QuantizedRows> sent, std::span<const Position> rows,
                      std::int64_t num_rows);

// ---- experts.cpp: down( activation(gate x, up x) ) -------------------------------------------

struct MlpWeights {
  std::int32_t num_experts = 0;
  std::int64_t hidden = 0;
  std::int64_t intermediate = 0;
  Table<float> gate;         ///< [experts * I, H]
  Table<float> up;           ///< [experts * I, H]
  Table<float> down;         ///< [experts * H, I]
  Table<float> gate_bias{};  ///< [experts, I], or empty
  Table<float> up_bias{};    ///< [experts, I], or empty
  Table<float> down_bias{};  ///< [experts, H], or empty
};

/// What a tensor-parallel rank holds of every expert: intermediate elements [first, first + count).
/// Of weights without biases.
MlpWeights slice_of(const MlpWeights& weights, std::int64_t first, std::int64_t count);

/// Applies one expert to all rows: [N, H] to [N, H], rounded to bf16. Every dot product is one f32
/// fma chain, ascending, from +0, to which the bias is then added. exp is that of quant/exp.h. The
/// activation is rounded to bf16, or requantized by `intermediate` (with `static_scale` if given).
/// Where that is plain f32, both stay f32.
Table<float> expert_mlp(const MlpWeights& weights, std::int32_t expert, const Table<float>& rows,
                        const QuantScheme& intermediate, const Activation& activation = {},
                        std::optional<float> static_scale = {});

/// expert_mlp over a receive buffer. Local expert e uses the weights of expert `first + e`.
Table<float> apply_experts(const MlpWeights& weights, std::int32_t first, const ExpertMajor& placed,
                           const Table<float>& rows, const QuantScheme& intermediate,
                           const Activation& activation = {});

// ---- combine.cpp: results back to the owners ---------------------------------------------------

/// Contract per_expert: the owner of a token starts from +0 and computes one chain acc =
/// fma(weight, row, acc), k ascending over valid slots, rounded once to `output`.
///   placed, outputs  one entry per rank: its layout, and the results of its experts, [N, H]
///   bias             any number of [T, H], added before the chain in the order given
Table<float> combine_per_expert(const Batch& batch, int owner, std::span<const ExpertMajor> placed,
                                std::span<const Table<float>> outputs, DType output,
                                std::span<const Table<float>> bias = {});

/// Contract per_rank, first half: a rank sums its rows of each token, k ascending from +0, with fma
/// if `is_weighted`, rounded once to `wire`. Returns [R, H] in the order of dispatch_compact.
Table<float> reduce_on_rank(const Batch& batch, int rank, const ExpertMajor& placed,
                            const Table<float>& outputs, bool is_weighted,
                            DType wire = DType::kBF16);

/// The order in which the owner adds partial sums.
enum class PartialOrder : std::uint8_t {
  kHighestSlot,  ///< ascending by the highest k that each rank holds
  kRank,         ///< ascending by rank: all-gather and reduce-scatter
};

/// Contract per_rank, second half: the owner starts from +0, adds `bias` rows in the order given,
/// then partial sums, and rounds once.
///   partials  one entry per rank, [R, H] in the order of dispatch_compact
///   bias      any number of [T, H]
Table<float> sum_partials(const Batch& batch, int owner, std::span<const Table<float>> partials,
                          std::span<const Table<float>> bias, DType output,
                          PartialOrder order = PartialOrder::kHighestSlot);

/// Contract per_host, after reduce_on_rank: for each host, ascending, the sum from +0 of the
/// partial sums of its ranks, ascending, through `wire` once; the owner starts from +0, adds `bias`
/// rows in the order given, then the sums of hosts, and rounds once.
///   partials  as in sum_partials; without routing as in reduce_scatter
///   hosts     [P] number of each rank's host
Table<float> sum_hosts(const Batch& batch, int owner, std::span<const Table<float>> partials,
                       std::span<const int> hosts, const QuantScheme& wire,
                       std::span<const Table<float>> bias, DType output);

/// Combine without routing: token t of `owner` is the sum, from +0, of `bias` rows and of its row
/// on each rank, ascending by rank, rounded once.
///   rows  one entry per rank, [N, H] in the order of dispatch_all_gather
Table<float> reduce_scatter(const Batch& batch, int owner, std::span<const Table<float>> rows,
                            std::span<const Table<float>> bias, DType output);

// ---- layer.cpp: everything together ------------------------------------------------------------

struct Layer {
  RouterConfig router;
  Table<float> router_gate;        ///< [E, H]
  std::vector<float> router_bias;  ///< empty or [E]
  MlpWeights experts;
  std::optional<MlpWeights> shared;  ///< one expert that every token visits
  std::vector<float> shared_gate;    ///< empty, or [H]: shared rows are scaled by sigmoid(x . gate)
  /// How tokens are sent to experts; a dynamic kTensor scale covers the rows that arrive on a rank.
  QuantScheme dispatch;
  QuantScheme intermediate;           ///< see expert_mlp
  std::optional<float> static_scale;  ///< for dispatch.group == kTensor
  Activation activation{};            ///< of routed experts; shared ones use silu(g) * u
  /// A token has one choice, whose weight multiplies its row before dispatch: both are of the rows'
  /// dtype, and so is the product.
  bool weighs_input = false;

  /// Of rows, returned rows and the output: bf16, or f32 where rows are sent as f32.
  DType dtype() const { return dispatch.is_quantized() ? DType::kBF16 : dispatch.dtype; }
};

/// Rows of the shared expert, [T, H]: the MLP's rows times the sigmoid, in f32, rounded again.
Table<float> shared_rows(const Layer& layer, const Table<float>& hidden);

/// The output of each rank, [T, H]; ranks are of one host. Shared rows are added to the
/// rounded routed rows in f32, and the sum is rounded once more.
std::vector<Table<float>> run_layer(const Layer& layer, std::span<const Table<float>> hidden,
                                    Reduce reduce);

/// The layer without ranks, one expert after another: the result of kPerExpert for every P.
Table<float> run_layer(const Layer& layer, const Table<float>& hidden);

}  // namespace switchyard::reference

// SPDX-License-Identifier: Apache-2.0
//
// reference.h: the oracle. A whole MoE layer over P ranks in one process: slow, obviously right,
// and sharing no loop with the code it judges. Values are floats that the stated dtype holds
// exactly.
//
// Letters used for shapes in this header:
//   P  ranks     T  tokens of a rank     K  experts chosen per token     H  elements per token
//   E  experts   L  experts of a rank    N  rows of a receive buffer     I  intermediate elements
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

/// What all ranks bring. H and K are the same on every rank, T is not.
struct Batch {
  std::int32_t num_experts = 0;
  std::vector<RankInput> ranks;

  int num_ranks() const { return static_cast<int>(ranks.size()); }
  std::int64_t hidden() const { return ranks.front().tokens.cols; }
  std::int64_t num_topk() const { return ranks.front().topk_ids.cols; }
};

/// Errors: kInvalidArgument when shapes differ between ranks or an id is outside [-1, E).
void check_batch(const Batch& batch);

// ---- route.cpp: who owns an expert, which experts a token wants --------------------------------

/// Linear placement: every rank owns E / P experts, the first E % P ranks one more.
std::int32_t num_local_experts(std::int32_t num_experts, int num_ranks, int rank);
std::int32_t first_expert(std::int32_t num_experts, int num_ranks, int rank);
int owner_of(std::int32_t num_experts, int num_ranks, std::int32_t expert);

/// logits [T, E] = hidden [T, H] x gate [E, H]: one chain a logit, h ascending, fma, from +0.
Table<float> router_logits(const Table<float>& hidden, const Table<float>& gate);

struct Routing {
  Table<std::int32_t> topk_ids;  ///< [T, K]
  Table<float> topk_weights;     ///< [T, K]
};

/// The definition behind switchyard::select_experts, by full sorts. `bias` is empty or [E].
Routing select_experts(const RouterConfig& config, const Table<float>& logits,
                       std::span<const float> bias);

// ---- dispatch.cpp: where every row lands -------------------------------------------------------

/// One row of a receive buffer and where it came from.
struct Position {
  int source = 0;            ///< rank that sent it
  std::int64_t token = 0;    ///< its row there
  std::int32_t slot = 0;     ///< k; rank-major layouts: the highest k that this rank holds, or -1
  std::int32_t expert = -1;  ///< local expert; rank-major layouts: -1
  std::int64_t index = 0;    ///< row of the receive buffer

  friend bool operator==(const Position&, const Position&) = default;
};

/// Layouts `batched` and `expanded`: one row per (token, slot that names a local expert).
struct ExpertMajor {
  std::vector<Position> rows;           ///< by (expert, source rank, token, slot)
  std::vector<std::int64_t> counts;     ///< [L] rows of each expert
  std::vector<std::int64_t> first_row;  ///< [L]
  Table<std::int64_t> segment_counts;   ///< [L, P] rows of each source
  Table<std::int64_t> segment_first;    ///< [L, P] first row of each source
  std::int64_t num_rows = 0;            ///< N, with padding
};

/// Layouts `compact` and `by_rank`: one row per token that wants any expert of this rank;
/// `all_gather`: one row per token.
struct RankMajor {
  std::vector<Position> rows;               ///< by (source rank, token)
  std::vector<std::int64_t> source_counts;  ///< [P]
  Table<std::int32_t> topk_ids;             ///< [N, K] as sent; -1 in rows without a token
  Table<std::int32_t> local_ids;            ///< [N, K] -1 where the expert lives elsewhere
  Table<float> topk_weights;                ///< [N, K] as sent; 0 in rows without a token
  std::int64_t num_rows = 0;                ///< N
};

/// `batched`, [L, capacity]: expert e starts at row e * capacity.
/// Errors: kInvalidArgument when an expert receives more rows than `capacity`.
ExpertMajor dispatch_batched(const Batch& batch, int rank, std::int64_t capacity);

/// `expanded`: experts follow each other, each starts at a multiple of `alignment`; N is one too.
ExpertMajor dispatch_expanded(const Batch& batch, int rank, std::int64_t alignment);

/// `compact`: rows without gaps.
RankMajor dispatch_compact(const Batch& batch, int rank);

/// `by_rank`, [P, max_tokens]: the n-th row of source s is row s * max_tokens + n.
RankMajor dispatch_by_rank(const Batch& batch, int rank, std::int64_t max_tokens);

/// `all_gather`: every token of every rank, without gaps. K may be 0.
RankMajor dispatch_all_gather(const Batch& batch, int rank);

/// The batch as it is served when an expert accepts `capacity` rows: -1 for each choice that at
/// least `capacity` others of its expert precede, by larger weight, then by (rank, token, slot).
/// Without `is_weighted` all weights count as 1.
Batch drop_overflow(const Batch& batch, std::int64_t capacity, bool is_weighted);

// ---- formats.cpp: elements ---------------------------------------------------------------------

/// `x` rounded to bf16, f16 or f32 and widened again; NaN becomes the canonical quiet NaN.
float round_to(DType dtype, float x);

/// The value of a code of e4m3, e2m1, e2m3, e3m2 or i8 (two's complement).
float value_of_code(DType dtype, std::uint8_t code);

/// Code of e4m3, e2m1, e2m3 or e3m2: to nearest, ties to even, saturating; NaN becomes `nan_code`.
/// Minus zero keeps its sign but in e2m3 and e3m2.
std::uint8_t nearest_code(DType dtype, float x, std::uint8_t nan_code);

/// Code of i8 of a rounded value: saturating; NaN becomes 0.
std::uint8_t int8_code(float rounded);

float f32_from_e4m3(std::uint8_t code);
std::uint8_t e4m3_from_f32(float x, std::uint8_t nan_code);

// ---- quantize.cpp: rows ------------------------------------------------------------------------

struct QuantizedRows {
  Table<std::uint8_t> elements;        ///< [N, H] codes, one to a byte in every format
  Table<float> scales;                 ///< [N, S]; kTensor: [1, 1], or [N, 1] after receive
  Table<std::uint32_t> packed_scales;  ///< [N, cdiv(S, 4)] for kE8M0Packed: exponent bytes
  float tensor_scale = 1.0f;           ///< nvfp4: the global scale
};

/// The definition behind switchyard::quantize. Simulated schemes give codes and scales too.
/// `static_scale` is for kTensor, and the global scale of nvfp4.
/// Errors: kNotSupported for a scheme without scales or without a meaning.
QuantizedRows quantize(const QuantScheme& scheme, const Table<float>& x,
                       std::optional<float> static_scale = {});

/// element * scale in f32, one rounding.
Table<float> dequantize(const QuantScheme& scheme, const QuantizedRows& rows);

/// Bytes of the elements as they are stored: [N, H], or [N, H / 2] for e2m1.
Table<std::uint8_t> stored_elements(const QuantScheme& scheme, const QuantizedRows& rows);

/// Bytes of the scales as they are stored: [N, S or words * bytes of a scale].
Table<std::uint8_t> stored_scales(const QuantScheme& scheme, const QuantizedRows& rows);

/// Weights stored as e4m3 codes [M, C] with one scale for each 128 x 128 block.
Table<float> dequantize_weight(const Table<std::uint8_t>& codes, const Table<float>& block_scales);

/// Rows as they arrive: [num_rows, H], zero where no token landed.
Table<float> receive(const Batch& batch, std::span<const Position> rows, std::int64_t num_rows);

/// The same for rows quantized on their source; `sent` has one entry a rank.
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

/// All rows of one expert: [N, H] to [N, H], rounded to bf16. Every dot product is one f32 chain,
/// ascending, fma, from +0; then its bias is added. exp is that of quant/exp.h; the activation is
/// rounded to bf16, or requantized by `intermediate`, with `static_scale` if it has one.
Table<float> expert_mlp(const MlpWeights& weights, std::int32_t expert, const Table<float>& rows,
                        const QuantScheme& intermediate, const Activation& activation = {},
                        std::optional<float> static_scale = {});

/// expert_mlp over a receive buffer. Local expert e uses weights of expert `first + e`.
Table<float> apply_experts(const MlpWeights& weights, std::int32_t first, const ExpertMajor& placed,
                           const Table<float>& rows, const QuantScheme& intermediate,
                           const Activation& activation = {});

// ---- combine.cpp: the way back -----------------------------------------------------------------

/// Contract per_expert: the owner of a token starts from +0 and runs one chain
/// acc = fma(weight, row, acc), k ascending over valid slots, rounded once to `output`.
///   placed, outputs  one entry a rank: its layout and what its experts returned, [N, H]
///   bias             any number of [T, H], added before the chain in the order given
Table<float> combine_per_expert(const Batch& batch, int owner, std::span<const ExpertMajor> placed,
                                std::span<const Table<float>> outputs, DType output,
                                std::span<const Table<float>> bias = {});

/// Contract per_rank, first half: a rank sums its rows of each token, k ascending from +0, with fma
/// when `is_weighted`, rounded once to `wire`. [R, H] in the order of dispatch_compact.
Table<float> reduce_on_rank(const Batch& batch, int rank, const ExpertMajor& placed,
                            const Table<float>& outputs, bool is_weighted,
                            DType wire = DType::kBF16);

/// Order in which the owner adds partial rows.
enum class PartialOrder : std::uint8_t {
  kHighestSlot,  ///< ascending by the highest k that each rank holds
  kRank,         ///< ascending by rank: all-gather and reduce-scatter
};

/// Contract per_rank, second half: from +0, plus `bias` rows in the order given, plus partial rows,
/// rounded once.
///   partials  one entry a rank, [R, H] in the order of dispatch_compact
///   bias      any number of [T, H]
Table<float> sum_partials(const Batch& batch, int owner, std::span<const Table<float>> partials,
                          std::span<const Table<float>> bias, DType output,
                          PartialOrder order = PartialOrder::kHighestSlot);

/// The way back without routing: token t of `owner` is the sum, from +0, of `bias` rows and of its
/// row on each rank, ascending by rank, rounded once.
///   rows  one entry a rank, [N, H] in the order of dispatch_all_gather
Table<float> reduce_scatter(const Batch& batch, int owner, std::span<const Table<float>> rows,
                            std::span<const Table<float>> bias, DType output);

// ---- layer.cpp: everything together ------------------------------------------------------------

struct Layer {
  RouterConfig router;
  Table<float> router_gate;        ///< [E, H]
  std::vector<float> router_bias;  ///< empty or [E]
  MlpWeights experts;
  std::optional<MlpWeights> shared;  ///< one expert that every token visits
  std::vector<float> shared_gate;  ///< empty, or [H]: the shared row is scaled by sigmoid(x . gate)
  /// How experts get their tokens; a dynamic kTensor scale is that of the rows arriving on a rank.
  QuantScheme dispatch;
  QuantScheme intermediate;           ///< see expert_mlp
  std::optional<float> static_scale;  ///< for dispatch.group == kTensor
  Activation activation{};            ///< of the routed experts; shared ones use silu(g) * u
};

/// Rows of the shared expert, [T, H] bf16: the MLP's rows, times the sigmoid in f32, rounded again.
Table<float> shared_rows(const Layer& layer, const Table<float>& hidden);

/// Output of each rank, [T, H] bf16. Shared rows are added to the rounded routed rows in f32 and
/// the sum is rounded once more.
std::vector<Table<float>> run_layer(const Layer& layer, std::span<const Table<float>> hidden,
                                    Reduce reduce);

/// The layer without ranks, expert after expert; what kPerExpert gives for every P.
Table<float> run_layer(const Layer& layer, const Table<float>& hidden);

}  // namespace switchyard::reference

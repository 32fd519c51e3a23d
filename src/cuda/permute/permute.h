// SPDX-License-Identifier: Apache-2.0
//
// permute.h: arguments and launchers of the permute kernels. Callers have checked shapes; the
// kernels check the values of ids. All launchers are asynchronous and allocate nothing.
//
// Letters: T tokens, K choices per token, L local experts, M rows of the permuted buffer.
#pragma once

#include "switchyard/stream.h"

#include "plan/choice_map.h"
#include "plan/row_views.h"
#include "plan/sum_views.h"

namespace switchyard::cuda {

/// Maps choices to experts and to places among all choices of the expert, by (token, choice).
struct MapArgs {
  IdTable ids;
  ExpertLookup lookup;
  ChoiceMap map;
  std::int64_t first_expert = 0;  ///< subtracted from ids after the lookup
  bool is_strict = true;          ///< experts from L on are errors
  bool is_once_a_token = false;   ///< of a token's choices of one expert, only the first counts
  bool is_aligned = true;         ///< places are row numbers; else they begin at 0 in each expert
  std::int32_t alignment = 1;     ///< of each expert's rows; all rows are below 2^31
  const std::int32_t* known = nullptr;  ///< [L] counts that the caller knows, or null
  std::int32_t* counts = nullptr;       ///< [L]
  std::int64_t* first_row = nullptr;    ///< [L], or null
  std::int64_t* num_rows = nullptr;     ///< [1]
  std::int32_t* num_errors = nullptr;   ///< [1], or null
  std::int32_t* inv_perm = nullptr;     ///< [T, K] places, or null
  std::int32_t* m_indices = nullptr;    ///< [M]
  std::int32_t* tokens = nullptr;       ///< [M] the token of each row, or -1; or null
  std::int64_t m = 0;                   ///< rows of the buffer; 0: rows are not marked
  bool is_padding_owned = false;        ///< CompatPadding::kOwner
};
void map_choices(const MapArgs& args, Stream stream);

/// Moves scales [T, S] to words [M, W]. Strides count elements.
struct ScaleMove {
  const std::byte* from = nullptr;
  std::byte* to = nullptr;
  std::int64_t num_scales = 0;
  std::int64_t num_words = 0;
  std::int64_t from_token_stride = 0;
  std::int64_t from_scale_stride = 0;
  std::int64_t to_row_stride = 0;
  std::int64_t to_word_stride = 0;
  int word_bytes = 0;  ///< 0: no scales
  bool packs = false;  ///< four bytes per word

  /// Whether words are column-major, as DeepGEMM wants them. The first column then holds the token
  /// of each row (MapArgs::tokens) until the scales are placed.
  constexpr bool has_columns() const {
    return word_bytes == 4 && to_row_stride == 1 && num_words > 1;
  }
};

/// Copies rows and scales to their places, and clears the scales of rows without a token.
struct ScatterArgs {
  ByteRows from;  ///< empty for plan_permute
  ByteRows to;
  ScaleMove scales;
  std::int64_t num_topk = 0;
  std::int64_t num_local = 0;
  std::int64_t m = 0;                      ///< rows of the buffer
  bool reads_ahead = false;                ///< load rows of x before it is known which have a place
  const std::int32_t* inv_perm = nullptr;  ///< [T, K]; this and the next three are from map_choices
  const std::int32_t* counts = nullptr;    ///< [L]
  const std::int64_t* first_row = nullptr;  ///< [L]
  const std::int64_t* num_rows = nullptr;   ///< [1]
};
void scatter_rows(const ScatterArgs& args, Stream stream);

/// Copies each row to the row of the same number.
void copy_rows(const ByteRows& from, const ByteRows& to, Stream stream);

/// How the rows of a token are found.
enum class SumSource : std::uint8_t {
  kGather,      ///< by inv_perm, for choices with a local expert
  kContiguous,  ///< at row t * K + k
  kBatched,     ///< at row expert * capacity + place in the map, by ascending expert
};

struct ReduceArgs {
  SumSource sum_source = SumSource::kGather;
  IdTable ids;
  ExpertLookup lookup;
  bool skips_padding = false;    ///< kContiguous
  bool weighs_in_place = false;  ///< for kContiguous with weights: first row = round(row * weight)
  const float* weights = nullptr;  ///< null: all 1
  std::int64_t weight_token_stride = 0;
  std::int64_t weight_choice_stride = 0;
  const std::int32_t* inv_perm = nullptr;
  std::int64_t inv_perm_token_stride = 0;
  std::int64_t inv_perm_choice_stride = 0;
  ChoiceMap map;  ///< for kBatched
  std::int64_t capacity = 0;
  ByteRows rows;
  ByteRows out;
  std::int64_t hidden = 0;
  DType row_dtype = DType::kBF16;
  DType out_dtype = DType::kBF16;
  std::int32_t* num_errors = nullptr;
};
void reduce_rows(const ReduceArgs& args, Stream stream);

struct CountArgs {
  IdTable ids;
  ExpertLookup lookup;
  std::int32_t* counts = nullptr;  ///< [L]
  std::int64_t num_local = 0;
  std::int32_t* num_errors = nullptr;
};
void count_experts(const CountArgs& args, Stream stream);

struct MapIdsArgs {
  IdTable ids;
  ExpertLookup lookup;
  IdTable local;  ///< the output
  std::int32_t* num_errors = nullptr;
};
void map_ids(const MapIdsArgs& args, Stream stream);

struct RoundUpArgs {
  const std::int32_t* counts = nullptr;  ///< [L]
  std::int64_t num_local = 0;
  std::int64_t alignment = 1;
  std::int64_t* sum = nullptr;
  std::int32_t* num_errors = nullptr;
};
void round_up_and_sum(const RoundUpArgs& args, Stream stream);

}  // namespace switchyard::cuda

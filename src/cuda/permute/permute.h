// SPDX-License-Identifier: Apache-2.0
//
// permute.h: arguments and launchers of the permute family's kernels. Callers have checked shapes;
// values of ids are checked by the kernels. All launchers are asynchronous and allocate nothing.
//
// Letters: T tokens, K choices a token, L local experts, M rows of the permuted buffer.
#pragma once

#include "switchyard/stream.h"

#include "plan/choice_map.h"
#include "plan/row_views.h"
#include "plan/sum_views.h"

namespace switchyard::cuda {

/// Choices -> experts -> places among all choices of an expert, by (token, choice).
struct MapArgs {
  IdTable ids;
  ExpertLookup lookup;
  ChoiceMap map;
  std::int64_t first_expert = 0;        ///< subtracted from ids after the lookup
  bool is_strict = true;                ///< an expert from L on is an error
  bool is_once_a_token = false;         ///< only the first choice of an expert by a token counts
  bool is_aligned = true;               ///< places are rows; else they begin at 0 in each expert
  std::int32_t alignment = 1;           ///< of rows, which are below 2^31
  const std::int32_t* known = nullptr;  ///< [L] counts of the caller, or null
  std::int32_t* counts = nullptr;       ///< [L]
  std::int64_t* first_row = nullptr;    ///< [L], or null
  std::int64_t* num_rows = nullptr;     ///< [1]
  std::int32_t* num_errors = nullptr;   ///< [1], or null
  std::int32_t* inv_perm = nullptr;     ///< [T, K] places, or null
  std::int32_t* m_indices = nullptr;    ///< [M]
  std::int32_t* tokens = nullptr;       ///< [M] of each row, or -1; or null
  std::int64_t m = 0;                   ///< 0: rows of the buffer are not marked
  bool is_padding_owned = false;        ///< CompatPadding::kOwner
};
void map_choices(const MapArgs& args, Stream stream);

/// Scales [T, S] to words [M, W]. Strides count elements.
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
  bool packs = false;  ///< four bytes to a word

  /// Words of one column side by side, as DeepGEMM wants them. Until then the first column holds
  /// the tokens of rows (MapArgs::tokens).
  constexpr bool has_columns() const {
    return word_bytes == 4 && to_row_stride == 1 && num_words > 1;
  }
};

/// Rows and scales to their places, and zero scales where there is no token.
struct ScatterArgs {
  ByteRows from;  ///< no rows: the plan alone
  ByteRows to;
  ScaleMove scales;
  std::int64_t num_topk = 0;
  std::int64_t num_local = 0;
  std::int64_t m = 0;        ///< rows of the buffer
  bool reads_ahead = false;  ///< rows of x before it is known which have a place: most have
  const std::int32_t* inv_perm = nullptr;   ///< [T, K], of map_choices as the next three
  const std::int32_t* counts = nullptr;     ///< [L]
  const std::int64_t* first_row = nullptr;  ///< [L]
  const std::int64_t* num_rows = nullptr;   ///< [1]
};
void scatter_rows(const ScatterArgs& args, Stream stream);

/// Each row to the row of the same number.
void copy_rows(const ByteRows& from, const ByteRows& to, Stream stream);

/// How a token finds its rows.
enum class SumSource : std::uint8_t {
  kGather,      ///< inv_perm, of choices with a local expert
  kContiguous,  ///< row t K + k
  kBatched,     ///< row expert * capacity + place in the map, experts ascending
};

struct ReduceArgs {
  SumSource sum_source = SumSource::kGather;
  IdTable ids;
  ExpertLookup lookup;
  bool skips_padding = false;      ///< kContiguous
  bool weighs_in_place = false;    ///< kContiguous with weights: row = round(row * weight) first
  const float* weights = nullptr;  ///< null: 1
  std::int64_t weight_token_stride = 0;
  std::int64_t weight_choice_stride = 0;
  const std::int32_t* inv_perm = nullptr;
  std::int64_t inv_perm_token_stride = 0;
  std::int64_t inv_perm_choice_stride = 0;
  ChoiceMap map;  ///< kBatched
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
  IdTable local;  ///< written
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

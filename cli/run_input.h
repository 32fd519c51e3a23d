// SPDX-License-Identifier: Apache-2.0
//
// run_input.h: the tokens that `run` feeds to a layer, and which rank gets which.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "switchyard/tensor.h"

#include "io/model_config.h"
#include "run.h"

namespace switchyard::cli {

/// The tokens of one rank.
struct RunInput {
  std::string source;   ///< a file, or for example "random, seed 1"
  Tensor hidden;        ///< [T, H] of row_dtype()
  Tensor topk_ids;      ///< [T, K] i32; absent: the router runs
  Tensor topk_weights;  ///< [T, K] f32
};

/// What the input says of the whole result.
struct RunReference {
  Tensor output;                     ///< [T, H] f32: routed + shared output; absent: unknown
  std::int64_t num_bad_weights = 0;  ///< NaN or infinite topk_weights
  std::string source;                ///< the file
  std::string layer;                 ///< whose output it is, as the file says; empty: it does not
};

/// What results are: f32 where the input is, with --scheme none on CPUs; else bf16. Errors: those
/// of count_tokens.
DType result_dtype(const RunOptions& options, const ModelConfig& config);

/// What tokens are given to the layer as: likewise, and f32 where their weights are applied to
/// them, since few products are bf16. Errors: those of count_tokens.
DType row_dtype(const RunOptions& options, const ModelConfig& config);

/// The input is f32, and its tokens are rounded to bf16. Errors: those of count_tokens.
bool rounds_input(const RunOptions& options, const ModelConfig& config);

/// Returns the number of tokens of all ranks without reading them. Errors: kInvalidArgument (no
/// such file, fewer than --tokens), kSystem, kMalformedFile (tensors that are missing or do not fit
/// the model).
std::int64_t count_tokens(const RunOptions& options, const ModelConfig& config);

/// Checks once what no rank then has to find: the input file with its ids, or that a random input
/// fits in memory. Errors: those of count_tokens; kInvalidArgument (an id), kOutOfMemory.
void check_run_input(const RunOptions& options, const ModelConfig& config);

/// Tokens [begin, end) of the run. Errors: those of count_tokens.
RunInput load_run_input(const RunOptions& options, const ModelConfig& config, std::int64_t begin,
                        std::int64_t end);

/// Every stride-th of the run's first `num_tokens` tokens, as load_run_input gives them. Errors:
/// those of count_tokens.
Tensor load_run_sample(const RunOptions& options, const ModelConfig& config,
                       std::int64_t num_tokens, std::int64_t stride);

/// Errors: those of count_tokens.
RunReference load_run_reference(const RunOptions& options, const ModelConfig& config);

/// Returns the first token of each rank, then the end: P + 1 numbers.
///   even    as equal as possible; earlier ranks get one more
///   uneven  rank r gets a share proportional to r, so rank 0 gets none
///   N,N,... as given; the sum must be the number of tokens
/// Errors: kInvalidArgument.
std::vector<std::int64_t> split_tokens(const std::string& split, std::int64_t num_tokens,
                                       int num_ranks);

/// Returns rows [begin, end) of a tensor of two dimensions; an absent tensor stays absent.
TensorView slice_rows(const TensorView& tensor, std::int64_t begin, std::int64_t end);

}  // namespace switchyard::cli

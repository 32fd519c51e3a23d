// SPDX-License-Identifier: Apache-2.0
//
// row_sources.h: where received rows come from, written for the caller. None of the kernels waits.
//
// Letters: P ranks, T tokens at most, N rows of the receive buffer.
#pragma once

#include <cuda_runtime_api.h>

#include "cuda/exchange/exchange_args.h"

namespace switchyard::cuda {

struct RowSourcesArgs {
  CallState state;  ///< of the rows' dispatch
  std::int32_t num_ranks = 0;
  std::int32_t num_columns = 0;           ///< of the arrays of `state`
  std::int32_t max_tokens = 0;            ///< T
  std::int64_t num_rows = 0;              ///< N
  std::int32_t* rank = nullptr;           ///< [N], or null
  std::int32_t* token = nullptr;          ///< [N], or null
  std::int32_t* k = nullptr;              ///< [N], or null
  std::int32_t* rows_per_rank = nullptr;  ///< [P], or null
};

void launch_row_sources(const RowSourcesArgs& args, cudaStream_t stream);

}  // namespace switchyard::cuda

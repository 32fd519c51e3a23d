// SPDX-License-Identifier: Apache-2.0
//
// exchange_args.h: what the dispatch and combine kernels are given. Plain values and device
// pointers; everything that changes from call to call without the host (the call's number, counts)
// is in device memory, so that a captured graph can be replayed.
//
// Letters: P ranks, T tokens at most, K choices, L local experts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cuda_runtime_api.h>

#include "switchyard/dtype.h"
#include "switchyard/layout.h"
#include "switchyard/quant.h"

#include "cuda/base/kernel_math.h"
#include "cuda/exchange/watch.h"
#include "plan/push_layout.h"
#include "quant/scale_layout.h"

namespace switchyard::cuda {

/// Which halves of an operation one launch does.
enum class Phases : std::uint8_t { kNone = 0, kSend = 1, kReceive = 2, kBoth = 3 };

constexpr bool sends(Phases phases) { return phases == Phases::kSend || phases == Phases::kBoth; }
constexpr bool receives(Phases phases) {
  return phases == Phases::kReceive || phases == Phases::kBoth;
}

inline constexpr std::uint64_t kCallUnit = 65536;  ///< more than a grid has CTAs

/// What a call leaves in device memory for its combine. Arrays are as large as a call can be.
struct CallState {
  /// The number of the next call, times kCallUnit, and what CTAs that have ended have added.
  std::uint64_t* counter = nullptr;
  // Of own tokens, written by the send part of dispatch: which returned rows a token's sum has, in
  // order.
  std::int32_t* num_partials = nullptr;   ///< [T]
  std::int32_t* columns = nullptr;        ///< [T, K]
  float* partial_weights = nullptr;       ///< [T, K]; per_expert only
  std::int32_t* partial_ranks = nullptr;  ///< [T, K]: who returns it
  // Of arrived rows, written by the receive part.
  std::int32_t* num_arrivals = nullptr;   ///< [P]
  std::int32_t* arrival_token = nullptr;  ///< [P, T]
  std::int32_t* arrival_rows = nullptr;   ///< [P, T, K] row of each choice, -1: not here
  float* arrival_weights = nullptr;       ///< [P, T, K]
};

/// Last in the arguments of a kernel, which asks for the first lines of them at once.
struct PeerTable {
  std::byte* base[kMaxPushRanks];
};

inline constexpr unsigned kAllLanes = 0xFFFFFFFFu;
inline constexpr int kExchangeThreads = 512;  ///< of a CTA, at most
inline constexpr int kMinExchangeThreads = 256;
inline constexpr int kExchangeCtasPerSm = 2;
inline constexpr int kMinCtas = 3;  ///< of a dispatch: one of each kind
inline constexpr int kExchangeWarps = kExchangeThreads / kLanes;

struct ExchangeBase {
  PushLayout layout;
  KernelOwnership ownership;
  std::int32_t rank = 0;
  std::int32_t num_topk = 0;
  Layout rows_layout = Layout::kBatched;
  Reduce reduce = Reduce::kPerRank;
  CallState state;
  Watch watch;
  std::int32_t num_warps = kExchangeWarps;  ///< of a CTA
};

struct DispatchArgs : ExchangeBase {
  // This rank's tokens.
  const std::byte* tokens = nullptr;
  std::int64_t token_stride = 0;  ///< bytes
  std::int32_t num_tokens = 0;
  DType token_dtype = DType::kBF16;
  QuantScheme scheme;
  const std::byte* given_scales = nullptr;  ///< of tokens that are quantized already
  std::int64_t given_scale_stride[2] = {};  ///< elements
  const float* tensor_scale = nullptr;
  const void* topk_ids = nullptr;
  bool ids_are_64_bits = false;
  const float* topk_weights = nullptr;  ///< null: all 1
  bool aligned_tokens = false;          ///< rows start and end at 16 bytes

  // What is received.
  std::byte* rows = nullptr;
  std::int64_t row_bytes = 0;
  bool aligned_rows = false;
  std::int64_t capacity = 0;       ///< rows of an expert
  std::int64_t row_alignment = 1;  ///< expanded
  std::int32_t source_rows = 0;    ///< a row a token: rows of each source; 0: as many as come
  std::byte* scales = nullptr;
  ScaleGeometry scale_block;
  std::int32_t scales_per_chunk = 1;
  std::int32_t scale_units_per_row = 0;  ///< of 16 bytes
  std::size_t scale_block_bytes = 0;     ///< from expert to expert in a batch, else 0
  std::int64_t scale_row_step = 0;       ///< bytes from row to row, unless scales lie in tiles
  std::int64_t scale_step = 0;           ///< bytes from scale to scale, likewise
  bool scales_are_tiled = false;
  std::int32_t* num_rows = nullptr;    ///< [L]
  std::int64_t* first_row = nullptr;   ///< [L]; null in layouts with a row a token
  std::int32_t* total_rows = nullptr;  ///< [1]
  std::int32_t* row_ids = nullptr;     ///< [N, K], layouts with a row a token
  float* row_weights = nullptr;        ///< [N] or [N, K]; null without weights

  // The grid: notify CTAs, senders, receivers.
  std::int32_t num_notify_ctas = 1;
  std::int32_t num_runs = 1;  ///< of tokens, told about one by one
  std::int32_t tokens_per_run = 1;
  std::int32_t tokens_per_task = 1;  ///< tokens whose partials are kept by what counts for a rank
  std::int32_t num_senders = 0;
  std::int32_t shares = 1;  ///< warps that share the destinations of a chunk
  std::int32_t num_receivers = 0;
  FastDivisor by_topk;    ///< num_topk
  FastDivisor by_ranks;   ///< num_ranks
  FastDivisor by_chunks;  ///< chunks of a row
  FastDivisor by_shares;  ///< chunks of all tokens
  FastDivisor by_items;   ///< of a received row: its chunks, then what is kept of it
  FastDivisor by_slot;    ///< items of a row of every rank
  PeerTable windows;
};

struct CombineArgs : ExchangeBase {
  const std::byte* rows = nullptr;  ///< results, one for each row of the receive buffer
  std::int64_t row_stride = 0;      ///< bytes
  DType row_dtype = DType::kBF16;
  QuantScheme wire;
  bool applies_weights = true;  ///< per_rank: rows are not weighted yet
  bool aligned_rows = false;

  std::int32_t num_tokens = 0;
  const float* topk_weights = nullptr;  ///< per_expert: instead of those given to dispatch
  const std::uint16_t* bias[4] = {};
  std::int64_t bias_stride[4] = {};  ///< elements
  std::int32_t num_bias = 0;
  std::byte* output = nullptr;
  std::int64_t output_stride = 0;  ///< bytes
  DType output_dtype = DType::kBF16;
  bool aligned_output = false;

  std::int32_t num_senders = 0;
  std::int32_t num_receivers = 0;
  FastDivisor by_chunks;                  ///< chunks of a returned row
  FastDivisor by_slot;                    ///< chunks of a returned row of every rank
  const std::uint16_t* shared = nullptr;  ///< added to the rounded sum; null: none
  std::int64_t shared_stride = 0;         ///< elements
  bool aligned_shared = false;
  PeerTable windows;
};

/// With Phases::kNone, and only where watch.failed is set, the kernel runs without doing anything.
/// The first launch of a kernel may wait for all that run: to load it, and until there is the local
/// memory that it needs. Those may be waiting for it, so every kernel has run once before. This
/// also allows it the shared memory that later launches with the same configuration take.
/// Errors: kSystem.
void launch_dispatch(const DispatchArgs& args, Phases phases, bool programmatic,
                     cudaStream_t stream);
void launch_combine(const CombineArgs& args, Phases phases, bool programmatic, cudaStream_t stream);

}  // namespace switchyard::cuda

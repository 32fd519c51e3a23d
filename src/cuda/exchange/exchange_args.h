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

#include "switchyard/dtype.h"
#include "switchyard/layout.h"
#include "switchyard/quant.h"

#include "cuda/base/kernel_math.h"
#include "cuda/exchange/stages.h"
#include "cuda/exchange/watch.h"
#include "plan/push_grid.h"
#include "plan/push_layout.h"
#include "plan/row_block.h"
#include "quant/scale_layout.h"

struct CUstream_st;  // a cudaStream_t points to it; this header needs no CUDA

namespace switchyard::cuda {

/// Which halves of an operation one launch does.
enum class Phases : std::uint8_t { kNone = 0, kSend = 1, kReceive = 2, kBoth = 3 };

constexpr bool sends(Phases phases) { return phases == Phases::kSend || phases == Phases::kBoth; }
constexpr bool receives(Phases phases) {
  return phases == Phases::kReceive || phases == Phases::kBoth;
}

inline constexpr std::uint64_t kCallUnit = 65536;        ///< more than a grid has CTAs
inline constexpr std::size_t kCounterWords = 6;          ///< see CallState::counter
inline constexpr std::uint32_t kRoutingOnly = 1u << 31;  ///< in DispatchArgs::mode

/// What a call leaves in device memory for its combine. Arrays are as large as a call can be.
struct CallState {
  /// [kCounterWords] The number of the next call, times kCallUnit, and what CTAs that have ended
  /// have added; the same of the combines since the last dispatch; then, where CTAs share work, how
  /// many notify tasks and how many send items were taken, as [2, 2] u32 by parity of the call, how
  /// many shares of the combine, and how many items that are received, as [2] u32 by parity.
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

/// Last in the arguments of a kernel: begin_kernel (call.cuh) requests the first lines of them at
/// once, and those hold all but the windows of high ranks.
struct PeerTable {
  std::byte* base[kMaxPushRanks];
};

inline constexpr unsigned kAllLanes = 0xFFFFFFFFu;
struct ExchangeBase {
  PushLayout layout;
  KernelOwnership ownership;
  std::int32_t rank = 0;
  std::int32_t num_topk = 0;
  Layout rows_layout = Layout::kBatched;
  Reduce reduce = Reduce::kPerRank;
  CallState state;
  Watch watch;
#ifdef SWITCHYARD_STAGES
  StageRecord stages{};  ///< of one launch
#endif
};

/// Ids of experts [tokens, K] as the caller gives them.
struct GivenIds {
  const void* data = nullptr;
  bool are_64_bits = false;
};

/// This rank's tokens.
struct TokenInput {
  const std::byte* data = nullptr;
  std::int64_t stride = 0;  ///< bytes
  /// [tokens] Which row of `data` a token is, -1: none, of a token that goes nowhere; null: rows
  /// are in the order of tokens.
  const std::int32_t* numbers = nullptr;
  RowBlock sent{};  ///< by number, others are not; CTAs that share work send all
  std::int32_t count = 0;
  DType dtype = DType::kBF16;
  const std::byte* scales = nullptr;  ///< of tokens that are quantized already
  std::int64_t scale_stride[2] = {};  ///< elements
  const float* tensor_scale = nullptr;
  GivenIds ids;
  const float* topk_weights = nullptr;  ///< null: all 1
  bool are_aligned = false;             ///< rows start and end at multiples of 16 bytes
};

/// Where received rows go, and what is said of them.
struct ReceiveBuffer {
  std::byte* rows = nullptr;
  std::int64_t row_bytes = 0;
  bool are_aligned = false;            ///< rows start and end at multiples of 16 bytes
  std::int64_t capacity = 0;           ///< rows of an expert
  std::int64_t row_alignment = 1;      ///< expanded
  std::int32_t source_rows = 0;        ///< token-major: rows of each source; 0: as many as come
  std::int32_t* num_rows = nullptr;    ///< [L]
  std::int64_t* first_row = nullptr;   ///< [L]; null in token-major layouts
  std::int32_t* total_rows = nullptr;  ///< [1]
  std::int32_t* row_ids = nullptr;     ///< [N, K], token-major layouts; null: not wanted
  float* row_weights = nullptr;        ///< [N], or [N, K] token-major; null without weights
};

/// Where the scales of received rows go. All zero where rows have none.
struct ScalePlacement {
  std::byte* data = nullptr;
  ScaleGeometry block;
  std::int32_t per_chunk = 1;
  std::int32_t units_per_row = 0;  ///< of 16 bytes
  std::size_t expert_stride = 0;   ///< bytes from expert to expert in a batch, else 0
  std::int64_t row_step = 0;       ///< bytes from row to row, unless tiled
  std::int64_t step = 0;           ///< bytes from scale to scale, unless tiled
  bool are_tiled = false;
};

struct DispatchGrid : DispatchCtas {
  FastDivisor by_topk;    ///< num_topk
  FastDivisor by_ranks;   ///< num_ranks
  FastDivisor by_chunks;  ///< items of a row that is sent
  FastDivisor by_shares;  ///< items of all tokens
  FastDivisor by_items;   ///< of a received row
  FastDivisor by_slot;    ///< items of a row of every rank
};

struct DispatchArgs : ExchangeBase {
  /// What all ranks must pass alike: max_tokens, and kRoutingOnly.
  std::uint32_t mode = 0;
  QuantScheme scheme;
  TokenInput tokens;
  ReceiveBuffer received;
  ScalePlacement scales;
  DispatchGrid grid;
  // Ranks by bit, for groups over hosts: a token goes to its own host from its rank, and to each
  // other host from the forwarder there, which launches the kernel with that rank's number.
  static constexpr std::uint64_t kAllRanks = ~std::uint64_t{0};
  std::uint64_t sends_to = kAllRanks;     ///< who gets rows, routes and announcements
  std::uint64_t returned_by = kAllRanks;  ///< whose partial sums are kept, see CallState
  bool reports_ids = true;                ///< invalid ones; else they count as none
  PeerTable windows;
};

/// Results of this rank's experts, one for each row of the receive buffer.
struct ReturnInput {
  const std::byte* data = nullptr;
  std::int64_t stride = 0;  ///< bytes
  DType dtype = DType::kBF16;
  bool applies_weights = true;  ///< per_rank: rows are not weighted yet
  bool are_aligned = false;     ///< rows start and end at multiples of 16 bytes
};

/// Sums of own tokens, and what is added to them.
struct SumOutput {
  std::int32_t num_tokens = 0;
  const float* topk_weights = nullptr;  ///< per_expert: instead of those given to dispatch
  const std::uint16_t* bias[4] = {};
  std::int64_t bias_stride[4] = {};  ///< elements
  std::int32_t num_bias = 0;
  std::byte* data = nullptr;
  std::int64_t stride = 0;  ///< bytes
  DType dtype = DType::kBF16;
  bool are_aligned = false;               ///< rows start and end at multiples of 16 bytes
  const std::uint16_t* shared = nullptr;  ///< added to the rounded sum; null: none
  std::int64_t shared_stride = 0;         ///< elements
  bool shared_is_aligned = false;
};

struct CombineGrid : CombineCtas {
  FastDivisor by_items;  ///< items of a returned row
  FastDivisor by_slot;   ///< items of a returned row of every rank
};

/// `results` or `sums` is not set if its phase is not launched.
struct CombineArgs : ExchangeBase {
  QuantScheme wire;
  ReturnInput results;
  SumOutput sums;
  CombineGrid grid;
  PeerTable windows;
};

/// With Phases::kNone, and only where watch.failed is set, the kernel runs without doing anything.
/// The first launch of a kernel may wait for all that run: to load it, and until there is the local
/// memory that it needs. Those may be waiting for it, so every kernel has run once before. This
/// also allows it the shared memory that later launches with the same configuration take.
/// Errors: kSystem.
void launch_dispatch(const DispatchArgs& args, Phases phases, bool programmatic,
                     CUstream_st* stream);
void launch_combine(const CombineArgs& args, Phases phases, bool programmatic, CUstream_st* stream);
/// Whether combine_stream.cuh serves this call, and whether the current GPU has the shared memory.
bool can_stream(const CombineArgs& args, Phases phases);
bool gpu_can_stream();

}  // namespace switchyard::cuda

// SPDX-License-Identifier: Apache-2.0
//
// push_grid.h: how many CTAs of a push kernel get each role, and how work is cut into items for
// warps. Tuned values live here and nowhere else; kernels and the cost model follow them.
#pragma once

#include <cstdint>

#include "switchyard/exchange_config.h"

#include "plan/push_layout.h"

namespace switchyard {

inline constexpr int kExchangeThreads = 512;  ///< of a CTA, at most
inline constexpr int kMinExchangeThreads = 256;
inline constexpr int kExchangeCtasPerSm = 2;
inline constexpr int kMinCtas = 3;  ///< of a dispatch: one of each kind
inline constexpr int kExchangeWarps = kExchangeThreads / kLanes;
/// Chunks that a warp takes at a time where CTAs share all work, at most.
inline constexpr int kMaxChunksPerItem = 16;
/// Chunks of a row that cuda/exchange/combine_stream.cuh copies and sums at a time.
inline constexpr int kStreamChunks = 2;

/// CTAs that are resident early take room from long kernels. On 2 H200 a pair of 128 tokens takes
/// 23 instead of 25 us with programmatic launches, one of 4096 tokens 442 instead of 419.
inline constexpr std::int64_t kMaxProgrammaticTokens = 512;

/// What a grid depends on.
struct GridRequest {
  int max_ctas = 1;  ///< of 512 threads, or twice as many of 256
  bool sends = true;
  bool receives = true;
  /// No other kernel needs room beside this one, so CTAs may be of either size. (Where sizes mix,
  /// the free room may be enough in total but too little on every single SM.)
  bool has_whole_gpu = false;
  /// Max tokens of any rank in this call; 0: unknown.
  std::int64_t call_max_tokens = 0;
  bool can_stream = false;  ///< combine: the kernel can stream this call
  bool may_share = true;    ///< dispatch: CTAs may share the work
};

/// Which CTAs do what: first notify CTAs, then senders, then receivers. Or, where there is much
/// work, CTAs share it: the first num_senders take what is left of the notify tasks, then of the
/// items to send; every CTA takes what is left to be received, the others from the start.
struct DispatchCtas {
  bool shares_work = false;
  std::int32_t chunks_per_item = 1;  ///< that a warp takes at a time; 1 unless work is shared
  std::int32_t num_warps = kExchangeWarps;  ///< of a CTA
  std::int32_t num_notify_ctas = 1;
  std::int32_t num_runs = 1;  ///< of tokens; each has its routes published by a CTA per rank
  std::int32_t tokens_per_run = 1;
  std::int32_t tokens_per_task = 1;  ///< tokens whose partials are kept by what counts for a rank
  std::int32_t num_senders = 0;
  std::int32_t shares = 1;  ///< warps that share the destinations of a chunk
  std::int32_t num_receivers = 0;

  int num_ctas(bool sends, bool receives) const {
    if (shares_work) return receives ? num_receivers : num_senders;
    return (sends ? num_notify_ctas + num_senders : 0) + (receives ? num_receivers : 0);
  }
  /// Of a row: those sent, and those received. Unless work is shared, the last one received is what
  /// is kept of the row.
  int items(const PushLayout& layout) const { return layout.num_chunks / chunks_per_item; }
  int received_items(const PushLayout& layout) const {
    return shares_work ? items(layout) : layout.num_chunks + 1;
  }
};

/// Which CTAs do what: first senders, then receivers. Or, where CTAs are few beside the work, every
/// CTA takes shares of what is to be sent until none is left, as combine_stream.cuh does, and then
/// receives its share.
struct CombineCtas {
  bool streams = false;
  std::int32_t chunks_per_item = 1;         ///< where it streams: a multiple of kStreamChunks
  std::int32_t num_warps = kExchangeWarps;  ///< of a CTA
  std::int32_t num_senders = 0;
  std::int32_t num_receivers = 0;

  int num_ctas(bool sends, bool receives) const {
    if (streams) return num_senders;
    return (sends ? num_senders : 0) + (receives ? num_receivers : 0);
  }
  /// Of a returned row.
  int items(const PushLayout& layout) const { return layout.num_return_chunks / chunks_per_item; }
};

/// Whether returned rows of this form can be streamed. Kernels also need bf16 rows and results that
/// are aligned, and the shared memory (cuda/exchange/exchange_args.h).
bool can_stream(const PushLayout& layout, Reduce reduce);

/// How the warps of a direct dispatch cut rows.
struct DirectChunks {
  std::int32_t of_row = 1;
  std::int32_t together = 1;  ///< what a warp takes at a time, at most
};

/// For `num_tokens` of this rank. Pure. The direct ones are those of push_path.h: senders come
/// first, notify CTAs follow, and every CTA of a combine sends and receives.
DispatchCtas dispatch_ctas(const GridRequest& request, const PushLayout& layout,
                           std::int32_t num_tokens);
CombineCtas combine_ctas(const GridRequest& request, const PushLayout& layout,
                         std::int32_t num_tokens);
DispatchCtas direct_dispatch_ctas(const GridRequest& request, const PushLayout& layout,
                                  std::int32_t num_tokens, const DirectChunks& chunks);
CombineCtas direct_combine_ctas(const GridRequest& request, const PushLayout& layout,
                                std::int32_t num_tokens);

}  // namespace switchyard

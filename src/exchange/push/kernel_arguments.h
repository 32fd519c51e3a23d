// SPDX-License-Identifier: Apache-2.0
//
// kernel_arguments.h: what the kernels of a slot are given. Each structure is built whole by one
// function, from what no call changes (SlotKernels) and what a call brings (PushDispatch,
// PushCombine).
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "cuda/exchange/direct_args.h"
#include "cuda/exchange/exchange_args.h"
#include "cuda/exchange/host_counts.h"
#include "cuda/exchange/return_weights.h"
#include "cuda/exchange/routing.h"
#include "exchange/push/push_shape.h"
#include "exchange/push/slot_memory.h"

namespace switchyard {

/// A region of push_shape.h, as its kernel sees it.
struct PushRegion {
  cuda::ExchangeBase base;
  cuda::PeerTable windows;  ///< where the region begins at each rank
};

/// What no call changes, but for `received` where memory is taken to size.
struct SlotKernels {
  const PushExchangeShape* shape = nullptr;
  int rank = 0;
  cuda::Watch watch;
  const std::int32_t* every_rank = nullptr;  ///< [T, P]: ids of tokens that go to every rank
  /// KernelOwnership::make_table, where ranks hold numbers of their own.
  const std::int32_t* expert_table = nullptr;
  SlotMemory memory{};
  ReceivedMemory received{};
  cuda::HostCountWords counts{};
  PushRegion main{};
  std::vector<PushRegion> payloads{};
  // Over hosts, see push_hosts.h.
  std::uint64_t sends_to = cuda::DispatchArgs::kAllRanks;
  cuda::PeerTable far_returns{};  ///< instead of the windows of ranks of other hosts
  cuda::PeerTable far_weights{};
  cuda::PeerTable returns{};  ///< where `main` returns rows to
  PushRegion gather{};        ///< where shape.gathers_routing
  cuda::PeerTable weights{};  ///< where shape.returns_weights
};

/// `shared`, whose memory is that of a slot, with its regions. `windows`: where those begin at each
/// rank.
SlotKernels make_slot_kernels(const SlotKernels& shared, const cuda::PeerTable& windows);

/// How the rows of a receive buffer are found.
enum class Sizing : std::uint8_t { kWorstCase, kToBeCounted, kCounted };

/// What one dispatch is given.
struct PushDispatch {
  cuda::TokenInput tokens;                 ///< as the caller gives them; no ids with is_again
  std::vector<const std::byte*> payloads;  ///< none with routing_only
  std::int64_t max_tokens = 0;             ///< of any rank
  std::int64_t call_max_tokens = 0;        ///< the same, if the caller gave it
  Sizing sizing = Sizing::kWorstCase;
  std::int64_t num_rows = 0;  ///< N of the receive buffer: the most until they are counted
  bool is_again = false;      ///< its ids are those of an earlier dispatch, in own_ids
  bool routing_only = false;  ///< rows travel as one vector of elements, without scales
  bool is_direct = false;     ///< see plan/push_path.h

  std::int64_t num_tokens() const { return tokens.count; }
};

/// Arguments of one combine. Those of a phase that is not launched are not set.
struct PushCombine {
  cuda::ReturnInput results;
  cuda::SumOutput sums;
  const float* row_weights = nullptr;         ///< to return; null: none
  std::uint32_t* returned_weights = nullptr;  ///< null: not wanted
};

// Rows of one dispatch. The grid, which depends on the phases of a launch, is not chosen yet.
cuda::DispatchArgs token_args(const SlotKernels& slot, const PushDispatch& call);
cuda::DispatchArgs payload_args(const SlotKernels& slot, const PushDispatch& call,
                                std::size_t index);
cuda::DispatchArgs gather_args(const SlotKernels& slot, const PushDispatch& call);
/// Of payloads, then of tokens.
std::vector<cuda::DispatchArgs> regions_of(const SlotKernels& slot, const PushDispatch& call);
/// Of token_args.
cuda::ReceiveBuffer receive_buffer(const SlotKernels& slot, const PushDispatch& call);
cuda::ScalePlacement scale_placement(const SlotKernels& slot, const PushDispatch& call);

/// Of token_args and combine_args.
cuda::DirectDispatchArgs direct_dispatch_args(const SlotKernels& slot, const PushDispatch& call);
/// Where a call's results lie when peers read them: bf16, in rows of the receive buffer.
std::byte* direct_results(const SlotKernels& slot);
cuda::DirectCombineArgs direct_combine_args(const SlotKernels& slot, const PushCombine& call,
                                            cuda::Phases phases);

cuda::HostCountsArgs host_counts_args(const SlotKernels& slot);
cuda::RoutingArgs routing_args(const SlotKernels& slot, const PushDispatch& call);

/// Without a grid, as above.
cuda::CombineArgs combine_args(const SlotKernels& slot, const PushCombine& call);
cuda::ReturnWeightsArgs return_weights_args(const SlotKernels& slot, const PushCombine& call);

}  // namespace switchyard

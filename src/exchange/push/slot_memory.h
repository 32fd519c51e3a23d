// SPDX-License-Identifier: Apache-2.0
//
// slot_memory.h: the device memory of one slot: what a call leaves for its combine.
//
// Letters: P ranks, T tokens at most, K choices, L local experts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "cuda/exchange/routing.h"
#include "exchange/push/push_shape.h"
#include "exchange/push/received_memory.h"

namespace switchyard {

/// Ids and weights of all ranks' tokens; every array is null unless shape.gathers_routing.
struct GatherMemory {
  cuda::CallState state;
  std::int32_t* num_rows = nullptr;    ///< [1]
  std::int32_t* total_rows = nullptr;  ///< [1]
  std::byte* rows = nullptr;           ///< [P T, 2 K] words
  std::uint32_t* own_rows = nullptr;   ///< [T, 2 K]
  cuda::ChoiceSort sort;               ///< where overflow is dropped
};

/// What received_memory.h does not have. Null: the exchange has no use for it.
struct SlotMemory {
  cuda::CallState state;
  std::int32_t* num_rows = nullptr;            ///< [L]
  std::int32_t* total_rows = nullptr;          ///< [1]
  std::int64_t* first_row = nullptr;           ///< [L], expert-major
  std::int32_t* num_rows_of_expert = nullptr;  ///< [L]; num_rows unless every rank gets all tokens
  std::int32_t* own_ids = nullptr;             ///< [T, K], where ids are kept
  std::int32_t* num_dropped = nullptr;         ///< [1]
  std::vector<std::uint64_t*>
      payload_counters;  ///< [kCounterWords] each: payloads count calls of their own
  GatherMemory gather;
  std::size_t num_bytes = 0;  ///< of all
};

/// Where each array lies in an allocation that begins at `base`. With null it only finds num_bytes.
SlotMemory lay_out_slot(std::byte* base, const PushExchangeShape& shape, int rank, bool keeps_ids);

}  // namespace switchyard

// SPDX-License-Identifier: Apache-2.0
//
// received_memory.h: the device memory into which a slot's calls receive.
//
// Letters: K choices, N rows of the receive buffer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/bytes.h"
#include "core/carver.h"
#include "exchange/push/push_shape.h"

namespace switchyard {

inline constexpr std::size_t kPartAlignment = 256;

template <typename T>
void carve(Carver& parts, T*& array, std::size_t count) {
  array = reinterpret_cast<T*>(parts.carve(checked_mul(count, sizeof(T))));
}

/// In a buffer of N rows. Null: the exchange has no use for it.
struct ReceivedMemory {
  std::byte* rows = nullptr;  ///< [N]
  std::byte* scales = nullptr;
  std::int32_t* row_ids = nullptr;   ///< [N, K], token-major
  float* row_weights = nullptr;      ///< [N], or [N, K] token-major
  std::vector<std::byte*> payloads;  ///< [N] of the configured bytes each
  std::size_t num_bytes = 0;         ///< of all
};

/// Where each array lies in an allocation that begins at `base`. With null it only finds num_bytes.
ReceivedMemory lay_out_received(std::byte* base, const PushExchangeShape& shape, int rank,
                                std::int64_t num_rows);

/// Adds the part of the window for rows stored straight to their places, received rows included.
void lay_out_direct(PushExchangeShape& shape, int rank);

}  // namespace switchyard

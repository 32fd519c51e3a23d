// SPDX-License-Identifier: Apache-2.0
//
// cost.h: how long a dispatch or a combine takes, from what it moves and from measured constants.
// Pure formulas. Grids, and with them the path that a kernel takes, are those of push_grid.h.
//
// A call uses several resources at once: the wire, the memory of its own processor, the SMs, and
// the network between hosts. Each alone would take some time; together they take more than the
// longest and less than the sum: (a^p + b^p + ...)^(1/p), with one p for a machine (`overlap`).
// A start time comes before that. docs/lab/forecasts.md derives the terms.
#pragma once

#include <cstdint>
#include <vector>

#include "plan/push_grid.h"
#include "plan/push_layout.h"

namespace switchyard {

/// A rate at one size: GB/s of transfers of `at` bytes, or of grids of `at` CTAs.
struct RateAt {
  double at = 0;
  double gb_per_second = 0;
};

/// GB/s at `at`, linear over its logarithm and constant outside the range. `rates` ascend and are
/// not empty.
double rate_at(const std::vector<RateAt>& rates, double at);

/// The network between hosts; each rank has a link of its own.
struct NetworkCosts {
  double gb_per_second = 0;  ///< of each rank, in each direction
  double start_us = 0;       ///< of a message, however small
};

/// Constants of GPUs that push into each other's windows.
struct PushCosts {
  int num_sms = 0;
  double start_us = 0;            ///< a launch, a row's hop, a dependent read and write
  double saved_us = 0;            ///< of it, by programmatic launch
  double copy_gb_per_second = 0;  ///< own memory, bytes read plus bytes written
  std::vector<RateAt> wire;       ///< by CTAs that store
  double overlap = 2;             ///< p
  double dispatch_start_us = 0;   ///< beyond start_us
  double shared_start_us = 0;     ///< the same, where CTAs share the work of a dispatch
  double dispatch_memory = 1;     ///< part of copy_gb_per_second that it reaches
  double instruction_us = 0;      ///< one instruction of a warp where the SM is full
  double send_chunk_us = 0;       ///< a warp whose only work is to send takes one chunk
  double receive_chunk_us = 0;    ///< the same for receiving
  double combine_start_us = 0;    ///< beyond start_us
  double stream_start_us = 0;     ///< the same, where CTAs stream a combine
  double combine_memory = 1;      ///< part of copy_gb_per_second that it reaches
  double stream_item_us = 0;      ///< a warp that streams, per item
  double stream_chunk_us = 0;     ///< per chunk
  double stream_row_us = 0;       ///< per chunk of each row that is summed
  double return_chunk_us = 0;     ///< a warp whose only work is to send sums, per chunk
  double return_row_us = 0;       ///< per chunk of each row that is summed
  double sum_chunk_us = 0;        ///< the same of a warp that sums what has returned
  double sum_row_us = 0;
};

/// What one rank does in a call; exact counts or means.
struct PushWork {
  double tokens = 0;         ///< rows that it sends to ranks of its host
  double stored = 0;         ///< slots into which it stores them, its own included
  double arrivals = 0;       ///< rows that it receives, its own included
  double placed = 0;         ///< rows that experts get
  double returned = 0;       ///< rows that it makes for owners
  double partials = 0;       ///< rows that it adds up for its own tokens
  double token_bytes = 0;    ///< as the caller gives a token
  double placed_bytes = 0;   ///< a row as experts get it, scales included
  double wire_bytes = 0;     ///< of the busier direction of its link inside the host
  double network_bytes = 0;  ///< of the busier direction of its link to other hosts
  bool quantizes = false;    ///< dispatch
};

/// Time by resource, in microseconds; what a call waits for most is its bound.
struct CallTime {
  double start_us = 0;
  double rounds_us = 0;  ///< warps that take one chunk after another, at the latency of a chunk
  double sm_us = 0;      ///< instructions
  double wire_us = 0;
  double memory_us = 0;
  double network_us = 0;
  double total_us = 0;

  /// "start", "rounds", "instructions", "wire", "memory" or "network".
  const char* bound() const;
};

/// `is_programmatic`: launched while the kernel ahead ends.
CallTime dispatch_time(const PushCosts& costs, const NetworkCosts& network,
                       const PushLayout& layout, const DispatchCtas& grid, const PushWork& work,
                       bool is_programmatic);
CallTime combine_time(const PushCosts& costs, const NetworkCosts& network, const PushLayout& layout,
                      const CombineCtas& grid, const PushWork& work, bool is_programmatic);

/// Constants of CPU ranks that read each other's windows, each on a core of its own.
struct PullCosts {
  std::vector<RateAt> copy;  ///< GB/s of memcpy by all ranks at once, by bytes
  double overlap = 2;        ///< p
  /// Bytes touched between two uses of a line / the call's bytes. A copy of the same size finds all
  /// of its lines in a cache that holds it; calls alternate between slot sets and inputs.
  double reuse = 1;
  double dispatch_start_us = 0;
  double dispatch_copy = 1;  ///< part of the copy's rate that it reaches
  double combine_start_us = 0;
  double combine_copy = 1;
  double quantize_gb_per_second = 0;  ///< of a token's bytes, by one core
  double dispatch_row_us = 0;         ///< per row that arrives or is placed, however short
  double combine_row_us = 0;          ///< per row that is read
};

/// What one rank reads and writes in a call.
struct PullWork {
  double bytes_read = 0;
  double bytes_written = 0;
  double quantized_bytes = 0;  ///< of tokens, before they are quantized
  double rows = 0;
  double network_bytes = 0;
};

CallTime pull_dispatch_time(const PullCosts& costs, const NetworkCosts& network,
                            const PullWork& work);
CallTime pull_combine_time(const PullCosts& costs, const NetworkCosts& network,
                           const PullWork& work);

}  // namespace switchyard

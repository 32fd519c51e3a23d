// SPDX-License-Identifier: Apache-2.0
//
// hosts_layout.h: byte offsets of what crosses between hosts. Behind the slot sets of
// window_layout.h a rank's window has a part for each source of another host whose tokens it passes
// on, in each slot set:
//
//   header line    as in the window
//   arrival lines  one for each rank of this host
//   routing        ids and weights of dispatch; or weights that return, by (position, k)
//   rows           those that crossed, by position; or what this host's ranks return for them, by
//                  (position, column)
//
// The position of a token is its number among those that crossed. Beside it each rank has private
// memory for the messages of each handle.
#pragma once

#include <cstddef>
#include <cstdint>

#include "plan/message_layout.h"

namespace switchyard {

struct HostsLayout {
  WindowLayout window;
  std::size_t num_parts = 0;      ///< of a slot set
  std::size_t routing_bytes = 0;  ///< of the largest routing message
  std::size_t routing_in_part = 0;
  std::size_t rows_in_part = 0;
  std::size_t part_bytes = 0;
  std::size_t window_bytes = 0;  ///< slot sets included

  // Private memory of one handle.
  std::size_t headers_out = 0;
  std::size_t routing_out = 0;
  std::size_t rows_out = 0;
  std::size_t weights_out = 0;
  std::size_t headers_in = 0;
  std::size_t rows_in = 0;
  std::size_t weights_in = 0;
  std::size_t private_bytes = 0;

  std::size_t part(std::uint64_t call, std::size_t number) const {
    const std::size_t set =
        static_cast<std::size_t>(call % static_cast<std::uint64_t>(window.shape.num_sets));
    return window.total_bytes + (set * num_parts + number) * part_bytes;
  }
  std::size_t arrived_in_part(int local) const {
    return kLineBytes * static_cast<std::size_t>(1 + local);
  }
};

/// Equal on every rank, so that windows are.
struct HostNumbers {
  std::size_t num_hosts = 1;
  std::size_t max_host_size = 1;
  std::size_t max_forwarded = 0;
};

/// `takes_all`: every rank gets every token. Errors: kInvalidArgument when a size overflows.
HostsLayout make_hosts_layout(const WindowLayout& window, const HostNumbers& counts,
                              bool takes_all);

}  // namespace switchyard

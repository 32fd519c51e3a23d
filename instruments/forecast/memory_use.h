// SPDX-License-Identifier: Apache-2.0
//
// memory_use.h: what an exchange allocates on a rank, from the layout functions that allocate it.
#pragma once

#include <string>

#include "forecast/hosts_shape.h"

namespace switchyard::forecast {

struct MemoryUse {
  std::size_t window_bytes = 0;
  std::size_t receive_bytes = 0;  ///< received rows, and messages where there are any
  std::string obstacle;           ///< not empty: this exchange cannot be made, and why
  bool exceeds_ranks = false;     ///< the obstacle is the number of ranks: bytes are those without
  bool is_known() const { return obstacle.empty() || exceeds_ranks; }
  std::size_t total() const { return window_bytes + receive_bytes; }
};

/// Of an exchange whose calls are the shape's micro-batches, as many in flight.
///
/// `backend`: "push" (GPUs of one host), "pull" (CPU ranks of one host), "messages" (CPU ranks), or
/// "hosts", of GPUs with `is_gpu`. GPUs without the state that a dispatch leaves for its combine, a
/// few bytes per choice.
MemoryUse memory_use(const HostsShape& shape, std::int32_t num_physical, const std::string& backend,
                     bool is_gpu);

}  // namespace switchyard::forecast

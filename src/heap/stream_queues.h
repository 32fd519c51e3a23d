// SPDX-License-Identifier: Apache-2.0
//
// stream_queues.h: whether kernels of ranks that are threads of one process and share a GPU can all
// be there at once. A process has so many hardware queues on a GPU; streams that share one stand in
// line, where a kernel may wait behind one of another rank, which waits for it.
#pragma once

#include <string>

namespace switchyard {

/// Why they cannot, and what to do; empty: they can, with a stream a rank. `max_connections`: the
/// value of CUDA_DEVICE_MAX_CONNECTIONS, null without it; CUDA takes 1 to 32, and 8 by itself.
std::string queue_obstacle(int ranks_on_gpu, const char* max_connections);

}  // namespace switchyard

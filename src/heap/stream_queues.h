// SPDX-License-Identifier: Apache-2.0
//
// stream_queues.h: whether ranks that are threads of one process and share a GPU can all have a
// kernel on it at once. A process has a fixed number of hardware queues per GPU. Streams that share
// a queue are served in order, so a kernel may wait behind that of another rank, which waits for
// it.
#pragma once

#include <string>

namespace switchyard {

/// Why they cannot, and what to do; empty if they can, with one stream per rank. `max_connections`
/// is the value of CUDA_DEVICE_MAX_CONNECTIONS, or null if it is not set. CUDA accepts 1 to 32; its
/// default is 8.
std::string queue_obstacle(int ranks_on_gpu, const char* max_connections);

}  // namespace switchyard

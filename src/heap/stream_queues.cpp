// SPDX-License-Identifier: Apache-2.0

#include "heap/stream_queues.h"

#include <cstdlib>

#include <fmt/format.h>

namespace switchyard {
namespace {

constexpr int kDefaultQueues = 8;
constexpr int kMaxQueues = 32;

}  // namespace

std::string queue_obstacle(int ranks_on_gpu, const char* max_connections) {
  const int asked = max_connections == nullptr ? 0 : std::atoi(max_connections);
  const int num_queues = asked >= 1 && asked <= kMaxQueues ? asked : kDefaultQueues;
  if (ranks_on_gpu <= num_queues) return {};
  const std::string what =
      fmt::format("{} threads share a GPU, but it takes kernels of {} streams of a process at once",
                  ranks_on_gpu, num_queues);
  if (ranks_on_gpu > kMaxQueues) return what + "; start ranks as processes";
  return fmt::format(
      "{}; set CUDA_DEVICE_MAX_CONNECTIONS to {} before CUDA is used, or start ranks as processes",
      what, ranks_on_gpu);
}

}  // namespace switchyard

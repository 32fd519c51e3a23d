// SPDX-License-Identifier: Apache-2.0
//
// gpu.h: which GPUs a test has, and how it skips without one. A process that forks ranks must not
// use CUDA itself, so it asks a child.
#pragma once

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cuda_runtime_api.h>

#include <gtest/gtest.h>

#define REQUIRE_GPU() \
  if (::switchyard::test::num_gpus() == 0) GTEST_SKIP() << "no CUDA device on this machine"
#define REQUIRE_GPU_OF_A_CHILD()                      \
  if (::switchyard::test::num_gpus_of_a_child() == 0) \
  GTEST_SKIP() << "no CUDA device on this machine"

namespace switchyard::test {

inline int num_gpus() {
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess ? count : 0;
}

inline int num_gpus_of_a_child() {
  const pid_t child = fork();
  if (child == 0) _exit(std::min(num_gpus(), 100));
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 0;
}

}  // namespace switchyard::test

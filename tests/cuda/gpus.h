// SPDX-License-Identifier: Apache-2.0
//
// gpus.h: how many GPUs a test has. A process that forks ranks must not have used CUDA itself, so
// there a child is asked.
#pragma once

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cuda_runtime_api.h>

#include <gtest/gtest.h>

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

#define SWITCHYARD_REQUIRE_GPU(count) \
  if ((count) == 0) GTEST_SKIP() << "no CUDA device on this machine"

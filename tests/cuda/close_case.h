// SPDX-License-Identifier: Apache-2.0
//
// close_case.h: close() of an exchange between GPUs: it ends the kernels of all ranks, rows stay,
// and destruction needs no other rank.
#pragma once

#include <unistd.h>

#include <atomic>
#include <cstddef>
#include <memory>
#include <vector>

#include <gtest/gtest.h>

#include "cuda/base/check.h"
#include "exchange_rank.h"

namespace switchyard::test {

struct CloseFlags {
  std::atomic<int> num_closing;
  std::atomic<int> num_destroyed;
};

inline std::vector<std::byte> host_bytes(const TensorView& tensor) {
  std::vector<std::byte> bytes(tensor.num_bytes());
  cuda::check_cuda(cudaMemcpy(bytes.data(), tensor.data(), bytes.size(), cudaMemcpyDeviceToHost),
                   "cudaMemcpy");
  return bytes;
}

/// Two ranks; rank 1 closes late and destroys first. With `waits` the close is collective.
inline void close_and_go_on(const Group& group, const ExchangeOptions& options, bool waits,
                            CloseFlags& flags) {
  constexpr useconds_t kLateUs = 200'000;
  const auto wait_for = [](const std::atomic<int>& count, int wanted) {
    for (int i = 0; i < 20'000 && count < wanted; ++i) usleep(1000);
    ASSERT_GE(count, wanted);
  };
  auto rank = std::make_unique<ExchangeRank>(group, fault_config(), options);
  const Dispatched got = rank->dispatch();
  rank->combine(got);
  rank->finish();
  const std::vector<std::byte> before = host_bytes(got.experts.rows);
  group.barrier();
  if (group.rank() == 1) usleep(kLateUs);
  ++flags.num_closing;
  rank->exchange().close(waits);
  if (waits) {
    EXPECT_EQ(flags.num_closing.load(), 2) << "close waits for every rank";
  }
  rank->exchange().close();
  EXPECT_TRUE(rank->exchange().is_closed());
  EXPECT_THROW(rank->dispatch(), Error);
  EXPECT_EQ(host_bytes(got.experts.rows), before);
  if (group.rank() == 0) wait_for(flags.num_destroyed, 1);
  EXPECT_EQ(host_bytes(got.experts.rows), before);
  rank.reset();
  ++flags.num_destroyed;

  ExchangeRank next(group, fault_config(), options);
  next.pair();
  next.finish();
}

}  // namespace switchyard::test

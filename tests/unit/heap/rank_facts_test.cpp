// SPDX-License-Identifier: Apache-2.0
//
// Which heap a group uses, and the message when there is none. Needs no GPU.

#include "heap/rank_facts.h"

#include <gtest/gtest.h>

#include "support/errors.h"

namespace switchyard {
namespace {

using test::expect_error;
using test::expect_invalid;

std::vector<RankFacts> processes(int count) {
  std::vector<RankFacts> ranks(static_cast<std::size_t>(count));
  for (int rank = 0; rank < count; ++rank) {
    RankFacts& one = ranks[static_cast<std::size_t>(rank)];
    one.wanted = "auto";
    one.bytes = 4096;
    one.host = "h";
    one.process = "p" + std::to_string(rank);
    one.device = rank;
    one.gpu = "GPU-" + std::to_string(rank);
  }
  return ranks;
}

std::vector<RankFacts> threads(int count) {
  std::vector<RankFacts> ranks = processes(count);
  for (RankFacts& one : ranks) one.process = "p";
  return ranks;
}

std::string& obstacle(RankFacts& facts, HeapKind kind) {
  return facts.obstacles[static_cast<std::size_t>(kind)];
}

void want(std::vector<RankFacts>& ranks, const std::string& wanted) {
  for (RankFacts& one : ranks) one.wanted = wanted;
}

TEST(RankFactsTest, TextKeepsEverything) {
  RankFacts facts = processes(3)[2];
  facts.bytes = (std::size_t{1} << 63) + 1;
  obstacle(facts, HeapKind::kVmm) = "two\nlines";
  const RankFacts read = RankFacts::parse(facts.text());
  EXPECT_EQ(read.wanted, "auto");
  EXPECT_EQ(read.bytes, facts.bytes);
  EXPECT_EQ(read.host, "h");
  EXPECT_EQ(read.process, "p2");
  EXPECT_EQ(read.device, 2);
  EXPECT_EQ(read.gpu, "GPU-2");
  EXPECT_EQ(read.obstacles[static_cast<std::size_t>(HeapKind::kVmm)], "two lines");
  EXPECT_EQ(read.obstacles[static_cast<std::size_t>(HeapKind::kIpc)], "");
  expect_error(Errc::kSystem, "a text that no rank wrote", [] { RankFacts::parse("auto\nx\n"); });
}

TEST(RankFactsTest, AutoTakesPointersForThreadsAndVmmForProcesses) {
  EXPECT_EQ(heaps_to_try(threads(4)), std::vector{HeapKind::kSameProcess});
  EXPECT_EQ(heaps_to_try(processes(4)), (std::vector{HeapKind::kVmm, HeapKind::kIpc}));
  EXPECT_EQ(heaps_to_try(processes(1)), std::vector{HeapKind::kSameProcess});
}

TEST(RankFactsTest, OneRankThatCannotDecidesForAll) {
  auto ranks = processes(3);
  obstacle(ranks[1], HeapKind::kVmm) = "no descriptors";
  EXPECT_EQ(heaps_to_try(ranks), std::vector{HeapKind::kIpc});
  obstacle(ranks[2], HeapKind::kIpc) = "no IPC";
  expect_error(Errc::kNotAvailable, "vmm: rank 1: no descriptors; ipc: rank 2: no IPC",
               [&] { heaps_to_try(ranks); });
}

TEST(RankFactsTest, WantedHeapIsTheOnlyOne) {
  auto ranks = processes(2);
  want(ranks, "ipc");
  EXPECT_EQ(heaps_to_try(ranks), std::vector{HeapKind::kIpc});
  want(ranks, "nccl");
  EXPECT_EQ(heaps_to_try(ranks), std::vector{HeapKind::kNccl});
  want(ranks, "same_process");
  expect_error(Errc::kNotAvailable, "same_process: ranks 0 and 1 are of two processes",
               [&] { heaps_to_try(ranks); });
  want(ranks, "nvlink");
  expect_invalid("heap \"nvlink\", must be auto, same_process, vmm, ipc or nccl",
                 [&] { heaps_to_try(ranks); });
}

TEST(RankFactsTest, ThreadsHaveNoHandlesAndSharedGpusNoNccl) {
  auto ranks = threads(2);
  want(ranks, "vmm");
  expect_error(Errc::kNotAvailable, "ranks 0 and 1 are threads of one process",
               [&] { heaps_to_try(ranks); });
  ranks = processes(3);
  ranks[2].gpu = ranks[0].gpu;
  want(ranks, "nccl");
  expect_error(Errc::kNotAvailable, "nccl: ranks 0 and 2 share a GPU",
               [&] { heaps_to_try(ranks); });
  EXPECT_EQ(num_ranks_on_gpu(ranks, 0), 2);
  EXPECT_EQ(num_ranks_on_gpu(ranks, 1), 1);
}

TEST(RankFactsTest, MixOfThreadsAndProcessesHasNoHeap) {
  auto ranks = processes(3);
  ranks[2].process = ranks[1].process;
  expect_error(Errc::kNotAvailable, "vmm: ranks 1 and 2 are threads of one process",
               [&] { heaps_to_try(ranks); });
}

TEST(RankFactsTest, FirstDifferenceIsNamed) {
  auto ranks = processes(3);
  require_equal_facts(ranks);
  ranks[2].bytes = 8192;
  expect_invalid("rank 2 asks for 8192 bytes, but rank 0 for 4096",
                 [&] { require_equal_facts(ranks); });
  ranks[1].wanted = "ipc";
  expect_invalid("rank 1 selects heap ipc, but rank 0 auto", [&] { require_equal_facts(ranks); });
  ranks = processes(2);
  ranks[1].host = "other";
  expect_error(Errc::kNotAvailable, "ranks 0 and 1 run on different hosts",
               [&] { require_equal_facts(ranks); });
}

TEST(RankFactsTest, PairWithoutPeerAccessIsNamed) {
  const auto ranks = processes(3);
  require_reach(ranks, {"111", "111", "1?1"});
  expect_error(Errc::kNotAvailable, "GPU 1 of rank 1 cannot address the memory of GPU 2 of rank 2",
               [&] {
                 require_reach(ranks, {"111", "110", "011"});
               });
  expect_error(Errc::kSystem, "rank 0 reports 2 GPUs, must report 3", [&] {
    require_reach(ranks, {"11", "111", "111"});
  });
}

}  // namespace
}  // namespace switchyard

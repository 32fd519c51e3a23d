// SPDX-License-Identifier: Apache-2.0
//
// The memory of a map equals its formula.

#include "plan/choice_map.h"

#include <algorithm>

#include <gtest/gtest.h>

namespace switchyard {
namespace {

TEST(ChoiceMapTest, MemoryIsBoundedAndInOrder) {
  for (const std::int64_t num_choices : {0, 1, 300, 32768, 1 << 20, 2147483647}) {
    for (const std::int64_t num_local : {0, 1, 256, 65535}) {
      const ChoiceMapMemory memory = choice_map_memory(num_choices, num_local);
      const ChoiceMap& map = memory.map;
      EXPECT_LE(memory.chunks_offset, memory.counts_offset);
      EXPECT_LE(memory.counts_offset, memory.num_rows_offset);
      EXPECT_EQ(memory.num_rows_offset + 16, memory.num_bytes);
      EXPECT_EQ(map.chunk_choices % 512, 0);
      EXPECT_GE(std::int64_t{map.num_chunks} * map.chunk_choices, num_choices);
      EXPECT_LE(std::int64_t{map.num_chunks} * num_local, 1 << 17);
      const std::int64_t chunks = std::min({(num_choices + 511) / 512, std::int64_t{256},
                                            (1 << 17) / std::max<std::int64_t>(1, num_local)});
      EXPECT_LE(map.num_chunks, 256);
      EXPECT_LE(memory.num_bytes,
                static_cast<std::size_t>(8 * num_choices + 4 * num_local * (chunks + 1) + 64));
    }
  }
}

}  // namespace
}  // namespace switchyard

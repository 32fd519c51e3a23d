// SPDX-License-Identifier: Apache-2.0
//
// Ranks in chunks and the counts before them give the places of one walk over all choices, and the
// memory of a map is what its formula says.

#include "plan/choice_map.h"

#include <vector>

#include <gtest/gtest.h>

#include "core/random.h"

namespace switchyard {
namespace {

TEST(ChoiceMapTest, ChunksGiveThePlacesOfOneWalk) {
  for (const std::int64_t num_choices : {0, 1, 255, 256, 257, 5000}) {
    for (const std::int64_t num_local : {1, 7, 1000}) {
      const ChoiceMapMemory memory = choice_map_memory(num_choices, num_local);
      std::vector<ChoiceRank> workspace(memory.num_bytes / sizeof(ChoiceRank) + 1);
      const ChoiceMap map = memory.place_in(reinterpret_cast<std::byte*>(workspace.data()));
      ASSERT_GE(std::int64_t{map.num_chunks} * map.chunk_choices, num_choices);
      // As the workers do: ranks inside a chunk, then the choices of earlier chunks before them.
      std::vector<std::int32_t> walked(static_cast<std::size_t>(num_local));
      std::vector<std::int32_t> want;
      for (std::int32_t chunk = 0; chunk < map.num_chunks; ++chunk) {
        std::int32_t* bases = map.bases + std::int64_t{chunk} * num_local;
        std::copy(walked.begin(), walked.end(), bases);
        const std::int32_t begin = chunk * map.chunk_choices;
        const std::int32_t end = std::min(begin + map.chunk_choices, map.num_choices);
        for (std::int32_t i = begin; i < end; ++i) {
          const std::uint64_t bits = random_bits(3, static_cast<std::uint64_t>(i));
          const auto expert = static_cast<std::int32_t>(bits % (walked.size() + 1)) - 1;
          map.choices[i] = {expert, 0};
          want.push_back(-1);
          if (expert < 0) continue;
          std::int32_t& next = walked[static_cast<std::size_t>(expert)];
          map.choices[i].rank = next - bases[expert];
          want.back() = next++;
        }
      }
      for (std::int32_t i = 0; i < map.num_choices; ++i) {
        ASSERT_EQ(map.place(i), want[static_cast<std::size_t>(i)]) << i;
      }
    }
  }
}

TEST(ChoiceMapTest, MemoryIsBoundedAndInOrder) {
  for (const std::int64_t num_choices : {0, 1, 300, 32768, 1 << 20, 2147483647}) {
    for (const std::int64_t num_local : {0, 1, 256, 65535}) {
      const ChoiceMapMemory memory = choice_map_memory(num_choices, num_local);
      const ChoiceMap& map = memory.map;
      EXPECT_LE(memory.bases_offset, memory.counts_offset);
      EXPECT_LE(memory.counts_offset, memory.num_rows_offset);
      EXPECT_EQ(memory.num_rows_offset + 16, memory.num_bytes);
      EXPECT_EQ(map.chunk_choices % 256, 0);
      EXPECT_GE(std::int64_t{map.num_chunks} * map.chunk_choices, num_choices);
      EXPECT_LE(std::int64_t{map.num_chunks} * num_local, 1 << 18);
      const std::int64_t chunks =
          std::min((num_choices + 255) / 256, (1 << 18) / std::max<std::int64_t>(1, num_local));
      EXPECT_LE(memory.num_bytes,
                static_cast<std::size_t>(8 * num_choices + 4 * num_local * (chunks + 1) + 64));
    }
  }
}

}  // namespace
}  // namespace switchyard

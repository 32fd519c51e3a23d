// SPDX-License-Identifier: Apache-2.0

#include "cpu/copy_rows.h"

#include <cstring>
#include <initializer_list>
#include <vector>

#include <gtest/gtest.h>

#include "core/aligned_buffer.h"
#include "core/fence.h"
#include "core/random.h"
#include "support/for_each_target.h"

namespace switchyard {
namespace {

constexpr std::size_t kRoom = 16384;
constexpr std::byte kUntouched{0xA5};

std::vector<std::size_t> sizes(std::initializer_list<std::size_t> values) { return values; }

AlignedBuffer untouched() {
  AlignedBuffer buffer(kRoom);
  std::memset(buffer.data(), static_cast<int>(kUntouched), kRoom);
  return buffer;
}

std::vector<std::byte> random_bytes(std::size_t count) {
  std::vector<std::byte> bytes(count);
  for (std::size_t i = 0; i < count; ++i) bytes[i] = static_cast<std::byte>(random_bits(7, i));
  return bytes;
}

// Exactly the row is written: all bytes before and after it keep their values.
void expect_row(const AlignedBuffer& buffer, std::size_t at, const std::byte* row,
                std::size_t bytes) {
  for (std::size_t i = 0; i < kRoom; ++i) {
    const bool inside = i >= at && i < at + bytes;
    ASSERT_EQ(buffer.data()[i], inside ? row[i - at] : kUntouched)
        << "byte " << i << " of " << bytes;
  }
}

TEST(CopyRowsTest, EverySizeAndAlignmentIsCopiedExactly) {
  const std::vector<std::byte> source = random_bytes(kRoom);
  test::for_each_target([&] {
    for (const std::size_t bytes :
         sizes({0, 1, 15, 16, 17, 48, 63, 64, 80, 127, 200, 4096, 14336, 7171})) {
      for (const std::size_t at : sizes({0, 16, 32, 48, 112})) {
        const AlignedBuffer to = untouched();
        copy_row_streaming(source.data() + 3, to.data() + at, bytes);
        streaming_store_fence();
        expect_row(to, at, source.data() + 3, bytes);
      }
    }
  });
}

// 19 destinations need more than one round of streams, at equal and at different alignments.
TEST(CopyRowsTest, EveryDestinationGetsTheRow) {
  const std::vector<std::byte> source = random_bytes(kRoom);
  test::for_each_target([&] {
    for (const std::size_t step : sizes({0, 16})) {
      for (const std::size_t bytes : sizes({0, 5, 16, 100, 333, 4100})) {
        std::vector<AlignedBuffer> buffers;
        std::vector<std::byte*> to;
        for (std::size_t i = 0; i < 19; ++i) {
          buffers.push_back(untouched());
          to.push_back(buffers[i].data() + 32 + step * i);
        }
        copy_row_to_many(source.data() + 1, to.data(), static_cast<int>(to.size()), bytes);
        streaming_store_fence();
        for (std::size_t i = 0; i < 19; ++i) {
          expect_row(buffers[i], 32 + step * i, source.data() + 1, bytes);
        }
      }
    }
  });
}

TEST(CopyRowsTest, NoDestinationIsNoWork) {
  const std::byte row{};
  copy_row_to_many(&row, nullptr, 0, 1);
}

}  // namespace
}  // namespace switchyard

// SPDX-License-Identifier: Apache-2.0

#include "transport/shared_memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>

#include <gmock/gmock.h>

#include "support/ranks.h"

namespace switchyard {
namespace {

using test::error_of;
using test::expect_error;
using ::testing::HasSubstr;

TEST(SharedMemoryTest, TwoMappingsAreOneMemory) {
  const Fd memory = make_shared_memory("test", 5000);
  const Mapping first(memory, 5000);
  const Mapping second(memory, 5000);
  EXPECT_EQ(first.data()[4999], std::byte{0});
  first.data()[4999] = std::byte{42};
  EXPECT_EQ(second.data()[4999], std::byte{42});
}

TEST(SharedMemoryTest, SizeIsSealed) {
  const Fd memory = make_shared_memory("test", 8192);
  EXPECT_EQ(ftruncate(memory.get(), 4096), -1);
  EXPECT_EQ(ftruncate(memory.get(), 16384), -1);
  EXPECT_EQ(errno, EPERM);
  check_shared_memory(memory, 8192);
}

TEST(SharedMemoryTest, EmptyMemoryIsUsable) {
  const Fd memory = make_shared_memory("test", 0);
  check_shared_memory(memory, 0);
  EXPECT_NE(Mapping(memory, 0).data(), nullptr);
}

TEST(SharedMemoryTest, UnsealedOrOtherSizeIsRefused) {
  const Fd sealed = make_shared_memory("test", 8192);
  EXPECT_THAT(error_of([&] { check_shared_memory(sealed, 4096); }).what(),
              HasSubstr("8192 bytes came from a peer, must be 4096"));
  const Fd open(memfd_create("test", MFD_CLOEXEC));
  ASSERT_EQ(ftruncate(open.get(), 4096), 0);
  expect_error(Errc::kSystem, "not sealed", [&] { check_shared_memory(open, 4096); });
}

TEST(MappingTest, MovesItsMemory) {
  const Fd memory = make_shared_memory("test", 4096);
  Mapping first(memory, 4096);
  std::byte* data = first.data();
  Mapping second(std::move(first));
  EXPECT_EQ(second.data(), data);
  EXPECT_EQ(second.size_bytes(), 4096u);
  second = Mapping(memory, 4096);
  EXPECT_NE(second.data(), nullptr);
}

}  // namespace
}  // namespace switchyard

// SPDX-License-Identifier: Apache-2.0
//
// A store in a file, and the caller's functions, when something is wrong with them. What they do
// when all is well is in store_test.cpp.

#include "transport/file_store.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>

#include <gtest/gtest.h>

#include "support/errors.h"
#include "support/observe.h"
#include "support/temp_folder.h"
#include "transport/function_store.h"

namespace switchyard {
namespace {

using namespace test;

constexpr std::int64_t kTimeoutMs = 10'000;

Deadline now() { return Deadline::after_ms(0); }

TEST(FileStoreTest, FileHasTheFormatOfItsHeader) {
  const TempFolder folder;
  FileStore store(folder.file("store"), kTimeoutMs);
  store.set("ab", "xyz");
  EXPECT_EQ(read_file(folder.file("store")),
            "switchyard store file 1\n" + std::string("\2\0\0\0\3\0\0\0abxyz", 13));
  EXPECT_EQ(std::filesystem::status(folder.file("store")).permissions(),
            std::filesystem::perms(0600));
}

TEST(FileStoreTest, OtherFilesAreRefusedAndLeftAlone) {
  const TempFolder folder;
  const std::string path = folder.write("notes", "my notes");
  expect_invalid("is a file of another kind", [&] { FileStore(path, kTimeoutMs); });
  EXPECT_EQ(read_file(path), "my notes");
  expect_error(Errc::kSystem, "open: ", [&] { FileStore(folder.path(), kTimeoutMs); });
  expect_error(Errc::kSystem, "No such file",
               [&] { FileStore(folder.file("none/store"), kTimeoutMs); });
  expect_invalid("not a regular file", [] { FileStore("/dev/null", kTimeoutMs); });
}

// A writer that was killed leaves the begin of a record, or of the whole file.
TEST(FileStoreTest, UnfinishedRecordsAreOverwritten) {
  const TempFolder folder;
  const std::string path = folder.write("store", "switchyard st");
  FileStore reader(path, kTimeoutMs);
  reader.set("first", "1");
  std::ofstream(path, std::ios::app | std::ios::binary) << std::string("\5\0\0\0\7\0\0\0othe", 12);
  EXPECT_EQ(reader.get("other", now()), std::nullopt);
  FileStore writer(path, kTimeoutMs);
  EXPECT_EQ(writer.get("first", now()), "1");
  writer.set("second", "2");
  EXPECT_EQ(reader.get("second", now()), "2");
  EXPECT_EQ(FileStore(path, kTimeoutMs).get("first", now()), "1");
}

TEST(FileStoreTest, HostileLengthsAreAnError) {
  const TempFolder folder;
  const std::string path =
      folder.write("store", "switchyard store file 1\n" + std::string(8, '\xff') + "x");
  FileStore store(path, kTimeoutMs);
  expect_error(Errc::kSystem, "is damaged at byte 24", [&] { (void)store.get("key", now()); });
  expect_invalid("at most 1048576 each", [&] {
    FileStore(folder.file("new"), kTimeoutMs).set("key", std::string((1u << 20) + 1, 'x'));
  });
}

TEST(FileStoreTest, LockThatIsNeverGivenBackEndsWithTheDeadline) {
  const TempFolder folder;
  FileStore store(folder.file("store"), 100);
  const Fd other(open(folder.file("store").c_str(), O_RDWR | O_CLOEXEC));
  ASSERT_EQ(flock(other.get(), LOCK_EX), 0);
  expect_error(Errc::kTimeout, "is locked for 0.1 s", [&] { store.set("key", "value"); });
  expect_error(Errc::kTimeout, "is locked for 0.1 s",
               [&] { FileStore(folder.file("store"), 100); });
  EXPECT_EQ(store.get("key", Deadline::after_ms(50)), std::nullopt);
}

TEST(FunctionStoreTest, WhatTheFunctionsThrowIsInTheMessage) {
  const auto lost = [] { throw std::runtime_error("connection reset"); };
  FunctionStore store({[&](const std::string&, const std::string&) { lost(); },
                       [&](const std::string&, std::int64_t) {
                         lost();
                         return std::optional<std::string>();
                       }});
  expect_error(Errc::kSystem, "store: the caller's set(\"key\") threw: connection reset",
               [&] { store.set("key", "value"); });
  expect_error(Errc::kSystem, "store: the caller's get(\"key\") threw: connection reset",
               [&] { (void)store.get("key", now()); });
  expect_invalid("StoreFunctions has no get, must have both", [] {
    FunctionStore({[](const std::string&, const std::string&) {}, nullptr});
  });
}

}  // namespace
}  // namespace switchyard

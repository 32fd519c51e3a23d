// SPDX-License-Identifier: Apache-2.0

#include "io/output_file.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <filesystem>
#include <iterator>
#include <signal.h>
#include <string>

#include <gtest/gtest.h>

#include "support/errors.h"
#include "support/observe.h"
#include "support/temp_folder.h"

namespace switchyard {
namespace {

namespace fs = std::filesystem;
using namespace test;

std::ptrdiff_t num_files(const TempFolder& folder) {
  return std::distance(fs::directory_iterator(folder.path()), fs::directory_iterator());
}

TEST(OutputFileTest, AppearsAtTheEndOrNotAtAll) {
  const TempFolder folder;
  const std::string path = folder.file("x");
  for (const char* text : {"first", "second"}) {
    const std::string before = read_file(path);
    OutputFile file(path);
    file.write(text);
    EXPECT_EQ(read_file(path), before);
    file.commit();
    EXPECT_EQ(read_file(path), text);
    EXPECT_EQ(num_files(folder), 1);
  }
  { OutputFile(path).write("third"); }
  EXPECT_EQ(read_file(path), "second");
  EXPECT_EQ(num_files(folder), 1);
}

TEST(OutputFileTest, LinksAreFollowed) {
  const TempFolder folder;
  fs::create_directory(folder.file("inner"));
  fs::create_symlink("inner/x", folder.file("link"));
  for (const char* text : {"to nothing yet", "to a file"}) {
    write_file(folder.file("link"), text);
    EXPECT_TRUE(fs::is_symlink(folder.file("link")));
    EXPECT_EQ(read_file(folder.file("inner/x")), text);
  }
}

TEST(OutputFileTest, DevicesAndPipesAreWrittenToNotReplaced) {
  const TempFolder folder;
  fs::create_symlink("/dev/null", folder.file("null"));
  write_file(folder.file("null"), "text");
  EXPECT_TRUE(fs::is_character_file("/dev/null"));
  EXPECT_TRUE(fs::is_symlink(folder.file("null")));

  const std::string pipe = folder.file("pipe");
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  expect_error(Errc::kSystem, "No such device", [&] { write_file(pipe, "text"); });
  const int reader = open(pipe.c_str(), O_RDONLY | O_NONBLOCK);
  write_file(pipe, "text");
  std::array<char, 8> bytes{};
  EXPECT_EQ(read(reader, bytes.data(), bytes.size()), 4);
  close(reader);
  EXPECT_TRUE(fs::is_fifo(pipe));
}

// What the shell opened for `>>` stays that file, with its text; so does a link to it.
TEST(OutputFileTest, OwnDescriptorsAreSharedNotReplaced) {
  const TempFolder folder;
  const std::string log = folder.file("log");
  for (const int flags : {O_APPEND, O_TRUNC}) {
    const int descriptor = open(log.c_str(), O_WRONLY | O_CREAT | flags, 0600);
    ASSERT_EQ(write(descriptor, "before ", 7), 7);
    const std::string name = std::to_string(descriptor);
    fs::remove(folder.file("link"));
    fs::create_symlink("/dev/fd/" + name, folder.file("link"));
    write_file("/dev/fd/" + name, "one ");
    write_file(folder.file("link"), "two ");
    write_file("/proc/" + std::to_string(getpid()) + "/fd/" + name, "three ");
    ASSERT_EQ(write(descriptor, "after ", 6), 6);
    close(descriptor);
    EXPECT_EQ(read_file(log), "before one two three after ");
    EXPECT_EQ(num_files(folder), 2);
    fs::resize_file(log, 0);
  }
}

TEST(OutputFileTest, SocketsAreWrittenTo) {
  std::array<int, 2> sockets{};
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, sockets.data()), 0);
  write_file("/dev/fd/" + std::to_string(sockets[0]), "text");
  std::array<char, 8> bytes{};
  EXPECT_EQ(read(sockets[1], bytes.data(), bytes.size()), 4);
  for (const int socket : sockets) close(socket);
  expect_invalid("is not open for writing",
                 [&] { check_output_path("x", "/dev/fd/" + std::to_string(sockets[0])); });
}

TEST(OutputFileTest, AFileKeepsItsMode) {
  const TempFolder folder;
  folder.write("x", "old");
  fs::permissions(folder.file("x"), fs::perms::owner_read | fs::perms::owner_write);
  write_file(folder.file("x"), "new");
  EXPECT_EQ(read_file(folder.file("x")), "new");
  EXPECT_EQ(fs::status(folder.file("x")).permissions(),
            fs::perms::owner_read | fs::perms::owner_write);
}

// In a child that is no superuser, who may write everywhere.
TEST(OutputFileTest, AFileInAFolderThatMayNotBeWrittenIsWrittenThrough) {
  const TempFolder folder;
  const std::string path = folder.write("x", "a longer old text");
  fs::permissions(path, fs::perms::all);
  fs::permissions(folder.path(), static_cast<fs::perms>(0555));
  const pid_t child = fork();
  if (child == 0) {
    if (getuid() == 0 && setuid(65534) != 0) _exit(2);
    try {
      write_file(path, "new");
      _exit(0);
    } catch (const Error& error) {
      std::fprintf(stderr, "%s\n", error.what());
      _exit(1);
    }
  }
  int status = 0;
  waitpid(child, &status, 0);
  fs::permissions(folder.path(), static_cast<fs::perms>(0755));
  EXPECT_EQ(status, 0);
  EXPECT_EQ(read_file(path), "new");
  EXPECT_EQ(num_files(folder), 1);
}

// A file that is mounted over another, as containers do, cannot be renamed over.
TEST(OutputFileTest, AMountedFileIsWrittenThrough) {
  const TempFolder folder;
  const std::string path = folder.write("x", "below");
  const std::string above = folder.write("above", "a longer old text");
  const pid_t child = fork();
  if (child == 0) {
    if (unshare(CLONE_NEWNS) != 0) _exit(2);
    mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr);
    if (mount(above.c_str(), path.c_str(), nullptr, MS_BIND, nullptr) != 0) _exit(2);
    try {
      write_file(path, "new");
      _exit(0);
    } catch (const Error& error) {
      std::fprintf(stderr, "%s\n", error.what());
      _exit(1);
    }
  }
  int status = 0;
  waitpid(child, &status, 0);
  if (WIFEXITED(status) && WEXITSTATUS(status) == 2) GTEST_SKIP() << "mounts need a superuser";
  EXPECT_EQ(status, 0);
  EXPECT_EQ(read_file(above), "new");
  EXPECT_EQ(read_file(path), "below");
  EXPECT_EQ(num_files(folder), 2);
}

TEST(OutputFileTest, PlacesThatCannotBeWrittenAreNamed) {
  const TempFolder folder;
  const auto expect_refusal = [](const std::string& path, const char* phrase) {
    expect_invalid(phrase, [&] { check_output_path("run: --output", path); });
    expect_invalid(phrase, [&] { OutputFile file(path); });
  };
  expect_refusal("", "is empty, must be a file");
  expect_refusal("-", "is -, must be a file; /dev/stdout is one");
  expect_refusal(folder.path(), "which is a folder, must be a file");
  expect_refusal(folder.file("none/x"), "but there is no folder");
  check_output_path("run: --output", "x");
}

// The folder must hold nameless files; tmpfs, ext4, xfs and btrfs do.
TEST(OutputFileTest, NothingIsLeftAfterASignal) {
  const TempFolder folder;
  const int nameless = open(folder.path().c_str(), O_TMPFILE | O_WRONLY, 0600);
  if (nameless < 0) GTEST_SKIP() << "this file system has no nameless files";
  close(nameless);
  const pid_t child = fork();
  if (child == 0) {
    OutputFile file(folder.file("x"));
    file.write("text");
    raise(SIGKILL);
  }
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_TRUE(WIFSIGNALED(status));
  EXPECT_EQ(num_files(folder), 0);
}

}  // namespace
}  // namespace switchyard

// SPDX-License-Identifier: Apache-2.0
//
// mpi_communicators.cpp: a program of MPI's, started under mpirun, that makes groups of its
// communicators. Two ranks a host.

#include <cstdio>
#include <mpi.h>
#include <optional>
#include <stdexcept>
#include <string>

#include <fmt/format.h>

#include "switchyard/c/group.h"
#include "switchyard/mpi.h"

#include "conformance/exchange_suite.h"
#include "core/clock.h"
#include "core/settings.h"
#include "support/few_descriptors.h"

namespace switchyard {
namespace {

void expect(bool is_so, const char* what) {
  if (!is_so) throw std::runtime_error(std::string("must be so: ") + what);
}

class Part {
 public:
  Part(int color, int key) { MPI_Comm_split(MPI_COMM_WORLD, color, key, &communicator_); }
  Part(const Part&) = delete;
  Part& operator=(const Part&) = delete;
  ~Part() { MPI_Comm_free(&communicator_); }
  MPI_Comm get() const { return communicator_; }

 private:
  MPI_Comm communicator_ = MPI_COMM_NULL;
};

// Each exchange takes a channel of the communicator, so a group with few of them would not do.
void exchange(const Group& group) {
  int num_cases = 0;
  for (const auto& test : conformance::exchange_cases({group.size()})) {
    if (++num_cases > 5) break;
    const std::string skipped = conformance::check_exchange(group, test).skipped;
    expect(skipped.empty(), skipped.c_str());
  }
  expect(num_cases > 5, "there are many cases");
}

// A message names the rank that says it once at most.
int count_own_ranks(const std::string& message) {
  int count = 0;
  for (std::size_t at = message.find("(rank "); at != message.npos;
       at = message.find("(rank ", at + 1)) {
    ++count;
  }
  return count;
}

// What one rank alone finds wrong, all ranks say, at once.
void pass_on_reasons(int rank) {
  const auto expect_on_all = [&](const GroupOptions& options, const std::string& words) {
    const std::int64_t start = now_ns();
    try {
      group_from_mpi(MPI_COMM_WORLD, options);
      expect(false, "a rank cannot join");
    } catch (const Error& error) {
      expect(error.code() == Errc::kInvalidArgument, error.what());
      expect(std::string(error.what()).find(words) != std::string::npos, error.what());
      const bool is_told = words.find("cannot join") != words.npos;
      expect(count_own_ranks(error.what()) <= 1, error.what());
      expect(!is_told || count_own_ranks(error.what()) == 1, error.what());
    }
    expect(now_ns() - start < std::int64_t{5'000'000'000}, "nobody waits for the timeout");
  };
  for (const int culprit : {0, 2}) {
    const std::string opening = fmt::format("group: rank {} ", culprit);
    const bool is_it = rank == culprit;
    GroupOptions options{.timeout_ms = 20'000};
    if (is_it) options.engine = "carrier";
    expect_on_all(options, (is_it ? "group: " : opening + "cannot join: ") +
                               "engine \"carrier\" is not in this build");
    options = {.timeout_ms = is_it ? -5 : 20'000};
    expect_on_all(options, is_it ? "timeout_ms is -5" : opening + "cannot join: ");
    const std::string host = setting("SWITCHYARD_HOST_ID").text;
    if (is_it) set_setting("SWITCHYARD_HOST_ID", std::string(200, 'x'));
    expect_on_all({.timeout_ms = 20'000}, (is_it ? "" : opening + "gave up: ") +
                                              "setting SWITCHYARD_HOST_ID has 200 characters");
    set_setting("SWITCHYARD_HOST_ID", host);
  }
  const Group again = group_from_mpi(MPI_COMM_WORLD, {.timeout_ms = 20'000});
  again.barrier();
}

// Rank `culprit` can open `num_free` files. Whether the group was made, on all ranks alike.
bool make_with_few_descriptors(int rank, int size, int culprit, int num_free) {
  std::optional<Error> error;
  const std::int64_t start = now_ns();
  {
    std::optional<test::FewDescriptors> few;
    if (rank == culprit) few.emplace(num_free);
    try {
      const Group group = group_from_mpi(MPI_COMM_WORLD, {.timeout_ms = 20'000});
      group.barrier();
    } catch (const Error& failure) {
      error = failure;
    }
  }
  const bool is_slow = now_ns() - start > std::int64_t{8'000'000'000};
  int num_failed = error ? 1 : 0;
  MPI_Allreduce(MPI_IN_PLACE, &num_failed, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
  const std::string words =
      fmt::format("{} of {} ranks fail where rank {} has {} descriptors: {}{}", num_failed, size,
                  culprit, num_free, error ? error->what() : "no error", is_slow ? ", late" : "");
  expect(!is_slow && (num_failed == 0 || num_failed == size), words.c_str());
  if (!error) return true;
  const std::string message = error->what();
  expect(error->code() == Errc::kOutOfMemory, words.c_str());
  expect(message.find("Too many open files") != message.npos ||
             message.find("has no descriptor left") != message.npos,
         words.c_str());
  expect(count_own_ranks(message) <= 1, words.c_str());
  return false;
}

void tell_of_missing_descriptors(int rank, int size) {
  for (const int culprit : {0, 2}) {
    int num_free = 0;
    while (!make_with_few_descriptors(rank, size, culprit, num_free)) ++num_free;
    expect(num_free > 3, "a group takes descriptors");
  }
}

// A handle of what was freed, and numbers that are of nothing. Errors must not end the job, though
// the program leaves its errors to MPI.
void refuse_handles_of_nothing() {
  MPI_Comm freed = MPI_COMM_NULL;
  MPI_Comm_dup(MPI_COMM_WORLD, &freed);
  const int stale = MPI_Comm_c2f(freed);
  MPI_Comm_free(&freed);
  for (const int handle : {stale, 123456, -7}) {
    try {
      group_from_mpi_handle(handle);
      expect(false, "a handle of nothing is refused");
    } catch (const Error& error) {
      expect(error.code() == Errc::kInvalidArgument, error.what());
    }
  }
  MPI_Errhandler handler = MPI_ERRHANDLER_NULL;
  MPI_Comm_get_errhandler(MPI_COMM_WORLD, &handler);
  expect(handler == MPI_ERRORS_ARE_FATAL, "what errors do is as before");
  MPI_Errhandler_free(&handler);
}

void run(int rank, int size) {
  const GroupOptions options{.timeout_ms = 20'000};
  const Group all = group_from_mpi(MPI_COMM_WORLD, options);
  expect(all.engine_name() == std::string("mpi") && all.rank() == rank && all.size() == size,
         "the world is a group of engine mpi");
  exchange(all);
  {
    const Part reversed(0, -rank);
    const Group group = group_from_mpi(reversed.get(), options);
    expect(group.rank() == size - 1 - rank && group.host_size() == 2, "the order is MPI's");
    exchange(group);
  }
  {
    const Part half(rank % 2, rank);
    const Group group = group_from_mpi(half.get(), options);
    expect(group.size() == size / 2 && group.engine_name() == std::string("mpi"), "half a group");
    exchange(group);
  }
  {
    const Part host(rank / 2, rank);
    const Group group = group_from_mpi(host.get(), options);
    expect(group.engine_name() == std::string("shm"), "ranks of one host share memory");
    exchange(group);
  }
  expect(group_from_mpi(MPI_COMM_SELF).size() == 1, "one rank alone");
  try {
    group_from_mpi(MPI_COMM_NULL);
    expect(false, "no communicator, no group");
  } catch (const Error& error) {
    expect(error.code() == Errc::kInvalidArgument, "no communicator is an invalid argument");
  }
  refuse_handles_of_nothing();
  pass_on_reasons(rank);
  tell_of_missing_descriptors(rank, size);
  sy_group* group = nullptr;
  sy_group_info info = {};
  info.struct_size = sizeof(info);
  expect(sy_group_from_mpi(MPI_Comm_c2f(MPI_COMM_WORLD), nullptr, &group) == SY_OK, "C");
  expect(sy_group_describe(group, &info) == SY_OK && info.rank == rank && info.size == size, "C");
  expect(sy_group_destroy(group) == SY_OK, "C");
}

}  // namespace
}  // namespace switchyard

int main(int argc, char** argv) {
  int level = 0;
  int rank = 0;
  int size = 0;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_SERIALIZED, &level);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  switchyard::set_setting("SWITCHYARD_HOST_ID", "host " + std::to_string(rank / 2));
  int code = 0;
  try {
    switchyard::run(rank, size);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "rank %d: %s\n", rank, error.what());
    code = 7;
  }
  if (code == 0 && rank == 0) std::printf("communicators are well\n");
  MPI_Finalize();
  return code;
}

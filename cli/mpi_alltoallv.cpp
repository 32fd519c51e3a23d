// SPDX-License-Identifier: Apache-2.0
//
// switchyard-mpi-alltoallv FILE: the baseline of `switchyard bench --baseline mpi`. FILE says how
// many bytes each rank sends to each other rank (bench_mpi.cpp describes the format). Each
// iteration is a barrier followed by one MPI_Alltoallv per operation; it prints the microseconds of
// the slowest rank, one iteration per line. Counts are in units of 16 bytes, rounded up, so that
// they fit into an int.

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <mpi.h>
#include <vector>

namespace {

constexpr std::int64_t kUnit = 16;
constexpr std::int64_t kWarmUps = 3;

// What one rank sends and receives in one call.
struct Call {
  std::vector<int> send, send_at, receive, receive_at;
  std::int64_t sent = 0;
  std::int64_t received = 0;
};

Call make_call(const std::vector<std::int64_t>& bytes, int size, int rank) {
  Call call;
  for (int peer = 0; peer < size; ++peer) {
    const auto units = [&](int from, int to) {
      const std::int64_t count = bytes[static_cast<std::size_t>(from * size + to)];
      return static_cast<int>((count + kUnit - 1) / kUnit);
    };
    call.send_at.push_back(static_cast<int>(call.sent));
    call.receive_at.push_back(static_cast<int>(call.received));
    call.send.push_back(units(rank, peer));
    call.receive.push_back(units(peer, rank));
    call.sent += call.send.back();
    call.received += call.receive.back();
  }
  return call;
}

struct Job {
  std::int64_t num_iterations = 0;
  std::int64_t num_operations = 0;
  std::vector<Call> calls;  ///< [iterations * operations]
};

bool read_job(const char* path, int size, int rank, Job& job) {
  std::ifstream file(path);
  int num_ranks = 0;
  file >> num_ranks >> job.num_iterations >> job.num_operations;
  if (!file || num_ranks != size) return false;
  std::vector<std::int64_t> bytes(static_cast<std::size_t>(size) * static_cast<std::size_t>(size));
  for (std::int64_t i = 0; i < job.num_iterations * job.num_operations; ++i) {
    for (std::int64_t& count : bytes) file >> count;
    job.calls.push_back(make_call(bytes, size, rank));
  }
  return static_cast<bool>(file);
}

void run(const Job& job, int rank) {
  std::int64_t max_sent = 1;
  std::int64_t max_received = 1;
  for (const Call& call : job.calls) {
    max_sent = std::max(max_sent, call.sent);
    max_received = std::max(max_received, call.received);
  }
  const std::vector<char> send(static_cast<std::size_t>(max_sent * kUnit), 1);
  std::vector<char> receive(static_cast<std::size_t>(max_received * kUnit), 2);
  MPI_Datatype unit{};
  MPI_Type_contiguous(static_cast<int>(kUnit), MPI_BYTE, &unit);
  MPI_Type_commit(&unit);
  for (std::int64_t i = -kWarmUps; i < job.num_iterations; ++i) {
    const std::int64_t iteration = i < 0 ? 0 : i;
    MPI_Barrier(MPI_COMM_WORLD);
    const auto start = std::chrono::steady_clock::now();
    for (std::int64_t o = 0; o < job.num_operations; ++o) {
      const Call& call = job.calls[static_cast<std::size_t>(iteration * job.num_operations + o)];
      MPI_Alltoallv(send.data(), call.send.data(), call.send_at.data(), unit, receive.data(),
                    call.receive.data(), call.receive_at.data(), unit, MPI_COMM_WORLD);
    }
    const std::chrono::duration<double, std::micro> own = std::chrono::steady_clock::now() - start;
    const double us = own.count();
    double slowest = 0;
    MPI_Allreduce(&us, &slowest, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    if (rank == 0 && i >= 0) std::printf("%.3f\n", slowest);
  }
  MPI_Type_free(&unit);
}

}  // namespace

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int rank = 0;
  int size = 1;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  Job job;
  if (argc != 2 || !read_job(argv[1], size, rank, job)) {
    std::fprintf(stderr,
                 "switchyard-mpi-alltoallv: there must be one argument, a file for %d ranks; bench "
                 "starts this program\n",
                 size);
    MPI_Abort(MPI_COMM_WORLD, 2);
  }
  run(job, rank);
  MPI_Finalize();
  return 0;
}

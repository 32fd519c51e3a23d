// SPDX-License-Identifier: Apache-2.0
//
// Runs mpirun as a child process, one job per shape. A memory file of numbers says what to move:
//   ranks iterations operations, then for each iteration and operation [P, P] bytes.

#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <signal.h>
#include <sstream>

#include <fmt/format.h>

#include "bench_baseline.h"
#include "core/clock.h"
#include "core/fail.h"
#include "machine.h"
#include "measure/statistics.h"
#include "measure/traffic.h"
#include "memory_file.h"
#include "transport/child_process.h"

namespace switchyard::cli {
namespace {

constexpr const char* kProgram = "switchyard-mpi-alltoallv";
constexpr std::int64_t kLimitMs = 120'000;  // per job
constexpr std::size_t kShownError = 400;

std::string job_program() {
  namespace fs = std::filesystem;
  const fs::path path = fs::path(own_program()).parent_path() / kProgram;
  std::error_code ignored;
  require(
      fs::exists(path, ignored), Errc::kNotAvailable,
      "bench: --baseline mpi, but there is no {}; build where CMake finds an MPI, or give a file",
      path.string());
  return path.string();
}

std::string find_mpirun() {
  const std::string mpirun = describe_machine().mpirun;
  require(
      !mpirun.empty(), Errc::kNotAvailable,
      "bench: --baseline mpi, but there is no mpirun in PATH; install Open MPI, or give a file");
  return mpirun;
}

// Returns this process's environment plus the settings that let Open MPI 4 and 5 start more ranks
// than cores, also as root.
std::vector<std::string> environment() {
  std::vector<std::string> result;
  for (char** entry = environ; *entry != nullptr; ++entry) result.emplace_back(*entry);
  for (const char* more :
       {"OMPI_ALLOW_RUN_AS_ROOT=1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1",
        "OMPI_MCA_rmaps_base_oversubscribe=1", "OMPI_MCA_hwloc_base_binding_policy=none",
        "PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe",
        "PRTE_MCA_hwloc_default_binding_policy=none"}) {
    result.emplace_back(more);
  }
  return result;
}

std::string traffic_text(const measure::BenchShape& shape) {
  const bool dispatches = shape.operation != measure::Operation::kCombine;
  const bool combines = shape.operation != measure::Operation::kDispatch;
  std::string text = fmt::format("{} {} {}\n", shape.num_ranks, shape.num_runs,
                                 static_cast<int>(dispatches) + static_cast<int>(combines));
  const auto add = [&](const measure::Flow& flow) {
    for (const std::int64_t bytes : flow.wire) text += fmt::format("{} ", bytes);
    text += "\n";
  };
  for (std::int64_t i = 0; i < shape.num_runs; ++i) {
    const measure::Traffic traffic = measure::traffic_of(shape, i);
    if (dispatches) add(traffic.dispatch);
    if (combines) add(traffic.combine);
  }
  return text;
}

// Returns the exit code, or -1 when the job exceeded the deadline and was killed.
int wait_for(ChildProcess child, const Deadline& deadline) {
  int status = 0;
  while (waitpid(child.pid, &status, WNOHANG) == 0) {
    pollfd entry{child.handle.get(), POLLIN, 0};
    poll(&entry, child.handle.has_value() ? 1 : 0, 20);
    if (!deadline.expired()) continue;
    kill(child.pid, SIGTERM);  // lets mpirun end its ranks
    poll(&entry, child.handle.has_value() ? 1 : 0, 2000);
    kill(child.pid, SIGKILL);
    waitpid(child.pid, &status, 0);
    return -1;
  }
  check_started(child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

std::vector<double> run_job(const std::string& mpirun, const std::string& program,
                            const measure::BenchShape& shape) {
  const MemoryFile traffic("bench", traffic_text(shape));
  const MemoryFile output("bench");
  const MemoryFile errors("bench");
  ChildSpec spec;
  spec.command = {mpirun, "-n", std::to_string(shape.num_ranks), program, traffic.path()};
  spec.environment = environment();
  spec.output_fd = output.fd();
  spec.error_fd = errors.fd();
  sigemptyset(&spec.signal_mask);
  const int code = wait_for(start_process(spec), Deadline::after_ms(kLimitMs));
  require(code >= 0, Errc::kSystem,
          "bench: mpirun has not ended after {} s for {} tokens, must take less", kLimitMs / 1000,
          shape.num_tokens);
  std::vector<double> us;
  std::istringstream words(output.text());
  for (double value = 0; words >> value;) us.push_back(value);
  require(code == 0 && us.size() == static_cast<std::size_t>(shape.num_runs), Errc::kSystem,
          "bench: mpirun gave {} times and exit code {}, must be {} and 0; it says: {}", us.size(),
          code, shape.num_runs, errors.text().substr(0, kShownError));
  return us;
}

}  // namespace

Baseline measure_mpi(const std::vector<measure::BenchShape>& shapes) {
  const std::string program = job_program();
  const std::string mpirun = find_mpirun();
  const measure::BenchShape& first = shapes.front();
  Baseline baseline;
  baseline.machine = processor_text();
  baseline.source = "MPI_Alltoallv of the same bytes, measured before this run by " + mpirun;
  baseline.hidden = first.workload.hidden;
  baseline.num_experts = first.workload.num_experts;
  baseline.num_topk = first.workload.num_topk;
  baseline.num_ranks = first.num_ranks;
  for (const measure::BenchShape& shape : shapes) {
    const double us = measure::median(run_job(mpirun, program, shape));
    baseline.rows.push_back({"MPI_Alltoallv", "bytes only", shape.operation, shape.num_tokens, us});
  }
  return baseline;
}

}  // namespace switchyard::cli

// SPDX-License-Identifier: Apache-2.0

#include "start_ranks.h"

#include <sys/auxv.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <system_error>

#include "core/fail.h"
#include "core/settings.h"
#include "core/text.h"
#include "engine/control.h"
#include "transport/env.h"
#include "transport/launcher.h"

namespace switchyard::cli {
namespace {

int run_as_threads(const RankStart& start, int num_ranks) {
  int exit_code = 0;
  run_local_ranks(num_ranks,
                  [&](const Group& group) {
                    const int code = start.body(group);
                    if (group.rank() == 0) exit_code = code;
                  },
                  {.engine = "local", .timeout_ms = start.timeout_ms});
  return exit_code;
}

// A rank that ended by itself has said why. Rank 0 exits with 1 after it printed its result.
void report_failure(const char* verb, int num_ranks, const LaunchResult& result) {
  const bool has_result = !result.cause && result.exit_code == 1 && result.culprit == 0;
  if (result.culprit < 0 || has_result) return;
  const std::string name = result.cause ? std::string(name_of(*result.cause)) + ": " : "";
  std::fprintf(stderr, "switchyard: %s%s: rank %d of %d: %s\n", name.c_str(), verb, result.culprit,
               num_ranks, result.reason.c_str());
}

int run_as_processes(const char* verb, int num_ranks, char** argv,
                     const std::vector<std::string>& more) {
  LaunchOptions options;
  options.num_ranks = num_ranks;
  options.command = own_command(argv);
  options.command.insert(options.command.end(), more.begin(), more.end());
  const LaunchResult result = launch(options);
  report_failure(verb, num_ranks, result);
  return result.exit_code;
}

}  // namespace

std::string own_program() {
  std::error_code error;
  const std::string path = std::filesystem::read_symlink("/proc/self/exe", error).string();
  // Without /proc: the path that this process was started with.
  if (!error) return path;
  const char* const started = reinterpret_cast<const char*>(getauxval(AT_EXECFN));
  return started != nullptr ? started : program_invocation_name;
}

std::vector<std::string> own_command(char** argv) {
  std::vector<std::string> command{own_program()};
  for (char** argument = argv + 1; *argument != nullptr; ++argument)
    command.emplace_back(*argument);
  return command;
}

int start_ranks(const RankStart& start, char** argv) {
  const RankInfo info = discover_ranks();
  if (info.source != "none") {
    require(start.num_ranks == 0 || start.num_ranks == info.size, Errc::kInvalidArgument,
            "{}: --ranks is {}, but {} started {} ranks; leave --ranks out", start.verb,
            start.num_ranks, info.source, info.size);
    if (!info.is_ours) start.check(info.size);
    const Group group = Group::from_environment({start.engine, start.timeout_ms});
    if (!info.is_ours) {
      require_agreement(group.control(), {Phase::kSetup, "options"}, start.verb, start.shared);
    }
    return start.body(group);
  }
  const int num_ranks = start.num_ranks > 0 ? start.num_ranks : start.default_ranks;
  const std::string engine =
      start.engine.empty() ? setting("SWITCHYARD_ENGINE").text : start.engine;
  require(engine == "auto" || engine == "local" || engine == "shm", Errc::kInvalidArgument,
          "{}: engine {}, must be auto, local or shm for ranks that this command starts; mpirun "
          "starts those of mpi{}",
          start.verb, engine,
          nearest_names(engine, std::array<std::string_view, 3>{"auto", "local", "shm"}));
  start.check(num_ranks);
  std::vector<std::string> more;
  if (start.before) more = start.before(num_ranks);
  const bool threads = engine == "local" || (engine == "auto" && num_ranks == 1);
  return threads ? run_as_threads(start, num_ranks)
                 : run_as_processes(start.verb, num_ranks, argv, more);
}

}  // namespace switchyard::cli

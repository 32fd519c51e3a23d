// SPDX-License-Identifier: Apache-2.0

#include "engine/registry.h"

#include <array>
#include <vector>

#include "core/fail.h"
#include "engine/join.h"
#include "engine/local_engine.h"

namespace switchyard {
namespace {

std::shared_ptr<Engine> join_local(const JoinRequest& request) {
  require(request.ranks.size == 1, Errc::kInvalidArgument,
          "group: engine \"local\" has its ranks in one process, but {} started {}; use engine "
          "\"shm\"",
          request.ranks.source, request.ranks.size);
  return make_local_engines(1, request.timeout_ms)[0];
}

template <const char* kName>
std::shared_ptr<Engine> join(const JoinRequest& request) {
  return join_processes(kName, request);
}

constexpr char kAuto[] = "auto";
constexpr char kShm[] = "shm";
constexpr char kMpi[] = "mpi";

constexpr std::array<EngineInfo, 3> kEngines{{
    {"local", "ranks are threads of one process", &join_local},
    {kShm, "ranks are processes of one host, over shared memory", &join<kShm>},
    {kMpi, "ranks are processes of any hosts; rows travel over MPI", &join<kMpi>},
}};

}  // namespace

std::span<const EngineInfo> all_engines() { return kEngines; }

std::shared_ptr<Engine> join_engine(const std::string& name, const JoinRequest& request) {
  if (name == kAuto && request.ranks.size > 1) return join<kAuto>(request);
  std::vector<const char*> names;
  for (const EngineInfo& engine : kEngines) {
    if (name == engine.name || name == kAuto) return engine.join(request);
    names.push_back(engine.name);
  }
  fail(Errc::kInvalidArgument, "group: engine \"{}\" is not in this build; built with: {}", name,
       fmt::join(names, ", "));
}

}  // namespace switchyard

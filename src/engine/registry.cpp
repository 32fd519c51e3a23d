// SPDX-License-Identifier: Apache-2.0

#include "engine/registry.h"

#include <algorithm>
#include <array>
#include <vector>

#include "core/fail.h"
#include "core/text.h"
#include "engine/join.h"
#include "engine/local_engine.h"

namespace switchyard {
namespace {

std::shared_ptr<Engine> join_local(const JoinRequest& request) {
  return make_local_engines(1, request.timeout_ms)[0];
}

template <const char* kName>
std::shared_ptr<Engine> join(const JoinRequest& request) {
  return join_processes(kName, request);
}

constexpr char kAuto[] = "auto";
constexpr char kLocal[] = "local";
constexpr char kShm[] = "shm";
constexpr char kMpi[] = "mpi";

constexpr std::array<EngineInfo, 3> kEngines{{
    {kLocal, "ranks are threads of one process", &join_local},
    {kShm, "ranks are processes of one host, over shared memory", &join<kShm>},
    {kMpi, "ranks are processes of any hosts; rows travel over MPI", &join<kMpi>},
}};

}  // namespace

std::span<const EngineInfo> all_engines() { return kEngines; }

std::vector<std::string_view> engine_names() {
  std::vector<std::string_view> names{kAuto};
  for (const EngineInfo& engine : kEngines) names.emplace_back(engine.name);
  return names;
}

void require_engine(const std::string& name, const JoinRequest& request) {
  const std::vector<std::string_view> names = engine_names();
  if (std::ranges::find(names, name) == names.end())
    fail(Errc::kInvalidArgument, "group: engine {} is not in this build; built with: {}{}",
         quote(name), fmt::join(names.begin() + 1, names.end(), ", "), nearest_names(name, names));
  require(name != kLocal || request.ranks.size == 1, Errc::kInvalidArgument,
          "group: engine \"local\" has its ranks in one process, but {} started {}; use engine "
          "\"shm\"",
          request.ranks.source, request.ranks.size);
}

std::shared_ptr<Engine> join_engine(const std::string& name, const JoinRequest& request) {
  require_engine(name, request);
  if (name == kAuto && request.ranks.size > 1) return join<kAuto>(request);
  const auto chosen = std::ranges::find_if(
      kEngines, [&](const EngineInfo& engine) { return name == engine.name || name == kAuto; });
  return chosen->join(request);
}

}  // namespace switchyard

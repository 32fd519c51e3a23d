// SPDX-License-Identifier: Apache-2.0

#include "engine/registry.h"

#include <array>
#include <vector>

#include "core/fail.h"
#include "engine/local_engine.h"
#include "engine/shm_engine.h"

namespace switchyard {
namespace {

std::shared_ptr<Engine> join_local(const JoinRequest& request) {
  require(request.ranks.size == 1, Errc::kInvalidArgument,
          "group: engine \"local\" has its ranks in one process, but {} started {}; use engine "
          "\"shm\"",
          request.ranks.source, request.ranks.size);
  return make_local_engines(1, request.timeout_ms)[0];
}

constexpr std::array<EngineInfo, 2> kEngines{{
    {"local", "ranks are threads of one process", &join_local},
    {"shm", "ranks are processes of one host, over shared memory", &join_shm},
}};

}  // namespace

std::span<const EngineInfo> all_engines() { return kEngines; }

std::shared_ptr<Engine> join_engine(const std::string& name, const JoinRequest& request) {
  const std::string chosen = name != "auto" ? name : request.ranks.size == 1 ? "local" : "shm";
  std::vector<const char*> names;
  for (const EngineInfo& engine : kEngines) {
    if (chosen == engine.name) return engine.join(request);
    names.push_back(engine.name);
  }
  fail(Errc::kInvalidArgument, "group: engine \"{}\" is not in this build; built with: {}", name,
       fmt::join(names, ", "));
}

}  // namespace switchyard

// SPDX-License-Identifier: Apache-2.0

#include "switchyard/group.h"

#include "core/fail.h"
#include "core/log.h"
#include "core/settings.h"
#include "engine/describe_group.h"
#include "engine/engine.h"
#include "engine/group_options.h"
#include "engine/registry.h"

namespace switchyard {
namespace {

Engine& checked(const std::shared_ptr<Engine>& engine) {
  require(engine != nullptr, Errc::kInvalidArgument,
          "group: it is empty; make it with Group::from_environment or run_local_ranks");
  return *engine;
}

}  // namespace

Group Group::from_environment(const GroupOptions& options) {
  JoinRequest request;
  request.ranks = discover_ranks();
  request.timeout_ms = timeout_of(options);
  request.store = setting("SWITCHYARD_STORE").text;
  request.secret = secret_of(options);
  if (!setting("SWITCHYARD_CONTROL_FD").text.empty()) {
    constexpr std::int64_t kMaxFd = 1 << 30;
    request.control_fd = static_cast<int>(setting_integer("SWITCHYARD_CONTROL_FD", 0, kMaxFd));
  }
  request.claims_ranks = request.control_fd < 0;  // our launcher numbers ranks itself
  set_log_rank(request.ranks.rank);
  Group group(join_engine(engine_of(options), request));
  log_group(group.engine(), request.ranks.source == "none" ? "one process" : request.ranks.source);
  return group;
}

Group Group::split(int color, int key) const {
  std::shared_ptr<Engine> part = checked(engine_).split(color, key);
  if (part != nullptr) log_group(*part, "a split");
  return Group(std::move(part));
}

Control& Group::control() const { return checked(engine_).control(); }
int Group::rank() const { return control().rank(); }
int Group::size() const { return control().size(); }
int Group::host_rank() const { return control().host_rank(); }
int Group::host_size() const { return control().host_size(); }
const char* Group::engine_name() const { return checked(engine_).name(); }
std::int64_t Group::timeout_ms() const { return control().timeout_ms(); }
void Group::barrier() const { control().barrier(); }
std::optional<Error> Group::error() const { return control().error(); }

void Group::abort(const std::string& reason) const {
  control().abort(Errc::kAborted, rank(), reason);
}

}  // namespace switchyard

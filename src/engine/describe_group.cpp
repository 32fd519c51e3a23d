// SPDX-License-Identifier: Apache-2.0

#include "engine/describe_group.h"

#include <sched.h>

#include <set>
#include <string>
#include <vector>

#include "core/log.h"
#include "core/settings.h"
#include "core/topology.h"

namespace switchyard {
namespace {

std::string count_text(int count, const char* what) {
  return fmt::format("{} {}{}", count, what, count == 1 ? "" : "s");
}

// Where the caller may run.
std::string cores_text() {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  if (sched_getaffinity(0, sizeof(cores), &cores) != 0) return "unknown cores";
  std::string nodes;
  for (const NumaNode& node : numa_nodes()) {
    nodes += (nodes.empty() ? "" : ", ") + std::to_string(node.number);
  }
  return fmt::format("{}{}", count_text(CPU_COUNT(&cores), "core"),
                     nodes.empty() ? "" : fmt::format(" (NUMA nodes {})", nodes));
}

}  // namespace

void log_group(Engine& engine, const std::string& from) {
  Control& control = engine.control();
  if (control.rank() != 0 || !log_enabled(LogLevel::kInfo)) return;
  std::set<int> hosts;
  for (int rank = 0; rank < control.size(); ++rank) hosts.insert(control.host_of(rank));
  log(LogLevel::kInfo, "group",
      "engine {}, {} from {} on {}, which {}; timeout {} ms; rank 0 may run on {}, binding {}",
      engine.name(), count_text(control.size(), "rank"), from,
      count_text(static_cast<int>(hosts.size()), "host"),
      engine.has_windows() ? "share windows" : "send messages", control.timeout_ms(), cores_text(),
      setting("SWITCHYARD_BIND").text);
}

}  // namespace switchyard

// SPDX-License-Identifier: Apache-2.0

#include <hwloc.h>

#include <fmt/format.h>

#include "core/topology.h"

namespace switchyard {
namespace {

class Bitmap {
 public:
  Bitmap() : bits_(hwloc_bitmap_alloc()) {}
  Bitmap(const Bitmap&) = delete;
  Bitmap& operator=(const Bitmap&) = delete;
  ~Bitmap() { hwloc_bitmap_free(bits_); }
  hwloc_bitmap_t get() const { return bits_; }

 private:
  hwloc_bitmap_t bits_;  // null when there is no memory, which hwloc's functions refuse
};

class Topology {
 public:
  Topology() {
    if (hwloc_topology_init(&topology_) != 0) return;
    is_loaded_ = hwloc_topology_load(topology_) == 0;
    if (!is_loaded_) hwloc_topology_destroy(topology_);
  }
  Topology(const Topology&) = delete;
  Topology& operator=(const Topology&) = delete;
  ~Topology() {
    if (is_loaded_) hwloc_topology_destroy(topology_);
  }

  bool is_loaded() const { return is_loaded_; }
  hwloc_topology_t get() const { return topology_; }

  // The nodes with processors. Where several share them (fast and large memory), the first, which
  // the system prefers.
  std::vector<hwloc_obj_t> nodes() const {
    std::vector<hwloc_obj_t> found;
    const Bitmap seen;
    const int count = is_loaded_ ? hwloc_get_nbobjs_by_type(topology_, HWLOC_OBJ_NUMANODE) : 0;
    for (int i = 0; i < count; ++i) {
      hwloc_obj_t node =
          hwloc_get_obj_by_type(topology_, HWLOC_OBJ_NUMANODE, static_cast<unsigned>(i));
      if (hwloc_bitmap_iszero(node->cpuset) != 0) continue;
      if (hwloc_bitmap_intersects(node->cpuset, seen.get()) != 0) continue;
      hwloc_bitmap_or(seen.get(), seen.get(), node->cpuset);
      found.push_back(node);
    }
    return found;
  }

  // The processors that the calling thread may run on.
  bool get_own_cores(const Bitmap& cores) const {
    return is_loaded_ && hwloc_get_cpubind(topology_, cores.get(), HWLOC_CPUBIND_THREAD) == 0;
  }

 private:
  hwloc_topology_t topology_ = nullptr;
  bool is_loaded_ = false;
};

}  // namespace

std::vector<NumaNode> numa_nodes() {
  const Topology machine;
  const Bitmap own;
  if (!machine.get_own_cores(own)) return {};
  std::vector<NumaNode> nodes;
  for (const hwloc_obj_t object : machine.nodes()) {
    const Bitmap usable;
    hwloc_bitmap_and(usable.get(), object->cpuset, own.get());
    NumaNode node{static_cast<int>(object->os_index)};
    for (int core = hwloc_bitmap_first(usable.get()); core >= 0;
         core = hwloc_bitmap_next(usable.get(), core)) {
      node.cores.push_back(core);
    }
    if (!node.cores.empty()) nodes.push_back(std::move(node));
  }
  return nodes;
}

void place_near_caller(void* data, std::size_t bytes) noexcept {
  static const Topology machine;
  const std::vector<hwloc_obj_t> nodes = machine.nodes();
  const Bitmap own;
  if (bytes == 0 || nodes.size() < 2 || !machine.get_own_cores(own)) return;
  hwloc_obj_t home = nullptr;
  for (const hwloc_obj_t node : nodes) {
    if (hwloc_bitmap_intersects(node->cpuset, own.get()) == 0) continue;
    if (home != nullptr) return;
    home = node;
  }
  if (home == nullptr) return;
  // Not strict: where the node is full, pages come from others.
  hwloc_set_area_membind(machine.get(), data, bytes, home->nodeset, HWLOC_MEMBIND_BIND,
                         HWLOC_MEMBIND_BYNODESET);
}

std::string hwloc_version() {
  const unsigned version = hwloc_get_api_version();
  return fmt::format("{}.{}.{}", version >> 16, version >> 8 & 0xFF, version & 0xFF);
}

}  // namespace switchyard

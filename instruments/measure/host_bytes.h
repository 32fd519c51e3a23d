// SPDX-License-Identifier: Apache-2.0
//
// host_bytes.h: counts the bytes that a rank sends to ranks of other hosts in timed iterations.
#pragma once

#include <cstdint>

#include "switchyard/group.h"

#include "engine/engine.h"
#include "measure/bench_shape.h"

namespace switchyard::measure {

class HostBytes {
 public:
  HostBytes(const Group& group, const BenchShape& shape) : group_(group), shape_(shape) {}

  /// Between them lies what is timed of an iteration.
  void begin() { before_ = sent(); }
  void end(std::int64_t iteration) {
    if (iteration < shape_.num_runs) bytes_ += sent() - before_;
  }

  std::int64_t per_iteration() const { return bytes_ / shape_.num_runs; }

 private:
  std::int64_t sent() const {
    const Engine& engine = group_.engine();
    return engine.has_messages() ? engine.messages().bytes_to_other_hosts() : 0;
  }

  Group group_;
  const BenchShape& shape_;
  std::int64_t before_ = 0;
  std::int64_t bytes_ = 0;
};

}  // namespace switchyard::measure

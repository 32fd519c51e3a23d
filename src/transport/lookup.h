// SPDX-License-Identifier: Apache-2.0
//
// lookup.h: what a host's name stands for. The system's look-up has no deadline, so it runs on a
// thread of its own, which is left to itself when the deadline of the caller has passed.
#pragma once

#include <string>
#include <vector>

#include "core/clock.h"
#include "transport/raw_socket.h"

namespace switchyard {

struct HostAddresses {
  std::vector<RawAddress> found{};
  std::string why_none{};  ///< when nothing was found
};

/// Empty, without a reason, when `host` is no number.
HostAddresses read_number(const std::string& host, int port);

/// Of a number or a name. Returns when the deadline passes, too. Errors: kAborted (interrupted),
/// kOutOfMemory (no descriptor or no memory to look it up), kSystem (no thread).
HostAddresses look_up(const std::string& host, int port, const Deadline& deadline);

}  // namespace switchyard

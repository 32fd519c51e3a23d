// SPDX-License-Identifier: Apache-2.0
//
// group.h: the ranks that exchange.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "switchyard/export.h"

namespace switchyard {

class Control;
class Engine;

struct GroupOptions {
  /// "auto", "local" (threads of this process) or "shm" (processes of this host). Empty: the
  /// setting SWITCHYARD_ENGINE.
  std::string engine{};
  /// Longest wait for a peer. 0: the setting SWITCHYARD_TIMEOUT_MS (30000).
  std::int64_t timeout_ms = 0;
};

/// The ranks that exchange. Copying shares the group; its memory is released with the last copy and
/// the last object made from it.
///
/// One thread of each rank calls collective functions, in the same order on every rank. `abort` may
/// be called from any thread.
class SWITCHYARD_API Group {
 public:
  Group() = default;

  /// Joins the ranks that a launcher started: torchrun, mpirun, srun or ours. Without any of them
  /// the group has one rank.
  ///
  /// Collective. Returns when every rank has arrived. Errors: kInvalidArgument (two sources of rank
  /// or size that disagree, an unknown engine), kTimeout (names the ranks that did not arrive),
  /// kSystem.
  static Group from_environment(const GroupOptions& options = {});

  int rank() const;
  int size() const;
  /// "local" or "shm".
  const char* engine_name() const;
  std::int64_t timeout_ms() const;

  /// Collective. Returns when every rank has called it. Errors: kTimeout, kPeerLost, kAborted.
  void barrier() const;

  /// Makes every rank's current and later calls end with kAborted, within milliseconds. Not
  /// collective, any thread.
  void abort(const std::string& reason) const;

  /// For code of the library.
  explicit Group(std::shared_ptr<Engine> engine) : engine_(std::move(engine)) {}
  Engine& engine() const { return *engine_; }
  Control& control() const;

 private:
  std::shared_ptr<Engine> engine_;
};

/// Runs `body` once per rank, each rank a thread of this process, over engine "local". The first
/// exception of a rank aborts the others and is thrown again here, once all threads have ended.
SWITCHYARD_API void run_local_ranks(int num_ranks, const std::function<void(const Group&)>& body,
                                    const GroupOptions& options = {});

}  // namespace switchyard

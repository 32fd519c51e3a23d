// SPDX-License-Identifier: Apache-2.0
//
// group.h: the ranks that exchange.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "switchyard/device.h"
#include "switchyard/error.h"
#include "switchyard/export.h"

namespace switchyard {

class Control;
class Engine;

/// How a rank joins a group.
struct GroupOptions {
  /// "auto", "local" (threads of this process), "shm" (processes of one host) or "mpi" (processes
  /// of any hosts). "auto" takes local for one rank, shm for ranks of one host, else mpi. Empty:
  /// the setting SWITCHYARD_ENGINE.
  std::string engine{};
  /// Longest wait for a peer. 0: the setting SWITCHYARD_TIMEOUT_MS (30000).
  std::int64_t timeout_ms = 0;
  /// Shared secret of a store over TCP; the same text on every rank. Empty: the setting
  /// SWITCHYARD_SECRET.
  std::string secret{};
};

/// The caller's own key-value store (torch's c10d Store, etcd, Redis), through which the ranks of
/// one group meet. Only Group::from calls these functions, on the calling thread; they may throw.
///
/// Keys and values are short texts. Each group needs a store of its own, for example by a prefix
/// that the functions put before each key.
struct StoreFunctions {
  /// Stores `value` for all ranks, in place of an older value.
  std::function<void(const std::string& key, const std::string& value)> set;
  /// The value of `key` once a rank has set it; nothing after `timeout_ms` (from 0 to 50), or
  /// earlier, and is then called again.
  std::function<std::optional<std::string>(const std::string& key, std::int64_t timeout_ms)> get;
};

/// The ranks that exchange. Copying shares the group; its memory is released with the last copy and
/// the last object made from it, subgroups included.
///
/// One thread of each rank calls collective functions, in the same order on every rank. `abort` and
/// `error` may be called from any thread.
class SWITCHYARD_API Group {
 public:
  /// Empty: it can be assigned to and nothing else.
  Group() = default;
  bool is_empty() const { return engine_ == nullptr; }  ///< it was neither made nor assigned

  /// Joins the ranks that a launcher started: torchrun, mpirun, srun or ours. Without any of them
  /// the group has one rank.
  ///
  /// Collective. Returns when every rank has arrived. Errors: kInvalidArgument (two sources of rank
  /// or size that disagree, an unknown engine), kTimeout (names the ranks that did not arrive),
  /// kSystem.
  static Group from_environment(const GroupOptions& options = {});

  /// Joins `size` ranks, of which this process is `rank`, from 0. All ranks pass the same `store`:
  ///
  ///   "host:port"   rank 0 serves there while the group lives; needs a secret
  ///   "unix:@name"  the same over an abstract Unix socket, for ranks of one host
  ///   "/path/file"  any path with a slash, on a file system that all ranks share; created when
  ///                 there is none. The caller deletes it, once all ranks have returned
  ///
  /// The same address or path may serve one group after another if every process makes all of them.
  /// Delete a file that an earlier job left.
  ///
  /// Collective. Returns when every rank has arrived. Errors: kInvalidArgument (rank outside of
  /// size; sizes that differ or two processes with one number, which it names; no secret; an
  /// unknown engine), kTimeout (names the ranks that did not arrive), kPeerLost, kNotSupported
  /// (engine "shm" for ranks on several hosts), kSystem.
  static Group from(int rank, int size, const std::string& store, const GroupOptions& options = {});
  /// The same over the caller's own store. Errors: also kSystem with what the functions throw.
  static Group from(int rank, int size, const StoreFunctions& store,
                    const GroupOptions& options = {});

  /// Splits the group: ranks that pass the same `color` get a group of their own, ordered by
  /// (`key`, rank here). A negative color gets an empty Group.
  ///
  /// Windows, handles and aborts of a subgroup are its own. What ends this group (a lost rank, a
  /// timeout, an abort) ends its subgroups within about 50 ms, but not the other way round.
  ///
  /// Collective: every rank of this group calls. Returns when all subgroups are complete.
  /// Errors: kTimeout, kPeerLost, kAborted; kSystem or kOutOfMemory, on every rank, when a subgroup
  /// could not be made.
  Group split(int color, int key = 0) const;

  int rank() const;       ///< this one, from 0
  int size() const;       ///< how many ranks there are
  int host_rank() const;  ///< this rank's place among those that share its host, from 0
  int host_size() const;  ///< how many ranks share its host
  /// "local", "shm" or "mpi".
  const char* engine_name() const;
  std::int64_t timeout_ms() const;  ///< longest wait for a peer

  /// Collective. Returns when every rank has called it. Errors: kTimeout, kPeerLost, kAborted.
  void barrier() const;

  /// Makes every rank's current and later calls end with kAborted, within milliseconds. Not
  /// collective, any thread.
  void abort(const std::string& reason) const;

  /// Why the group ended (kPeerLost, kTimeout or kAborted); nothing while all is well. Looks for
  /// ranks that died, does not wait. Not collective, any thread.
  std::optional<Error> error() const;

  /// @{ For code of the library.
  explicit Group(std::shared_ptr<Engine> engine) : engine_(std::move(engine)) {}
  Engine& engine() const { return *engine_; }
  Control& control() const;
  /// @}

 private:
  std::shared_ptr<Engine> engine_;
};

/// The default GPU of a rank: host_rank() modulo the number of GPUs that its process can use. Pass
/// the group of all ranks, because host_rank() of a subgroup counts from 0 again. Not collective.
/// Errors: kNotAvailable (no GPU, no CUDA module).
SWITCHYARD_API Device default_gpu(const Group& group);

/// Runs `body` once per rank, each rank a thread of this process, over engine "local". The first
/// exception of a rank aborts the others and is thrown again here, once all threads have ended.
SWITCHYARD_API void run_local_ranks(int num_ranks, const std::function<void(const Group&)>& body,
                                    const GroupOptions& options = {});

}  // namespace switchyard

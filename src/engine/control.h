// SPDX-License-Identifier: Apache-2.0
//
// control.h: how the ranks of a group agree, wait and end together: a store for small texts, a
// barrier, a wait that has a deadline, and one cause that ends them all. Nothing here needs shared
// memory; what an implementation does supply is at the end of the class.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <typeindex>
#include <utility>
#include <vector>

#include "switchyard/error.h"

#include "core/clock.h"
#include "core/fence.h"
#include "core/waiting.h"
#include "transport/store.h"

namespace switchyard {

/// Where a rank is in an operation; for messages.
enum class Phase : std::uint32_t {
  kIdle,
  kSetup,
  kBarrier,
  kDispatchSend,
  kDispatchReceive,
  kCombineSend,
  kCombineReceive,
  kSplit,
  kExchange,
};

const char* name_of(Phase phase) noexcept;

/// What ranks tell each other in a gather: a call of the program and its step. Equal for ranks that
/// make the same call, and for no others. A barrier publishes none.
struct Step {
  Phase phase = Phase::kSetup;
  const char* name = "";
};

/// What a rank waits for; the words of the error when it does not come.
struct WaitSite {
  Phase phase = Phase::kIdle;
  std::uint64_t call = 0;  ///< number of the operation on its slot
  int peer = -1;           ///< the rank that must act; -1: any
};

/// True for the errors after which a group does nothing more.
inline bool ends_the_group(Errc code) noexcept {
  return code == Errc::kTimeout || code == Errc::kPeerLost || code == Errc::kAborted;
}

/// Why a group ended.
struct AbortCause {
  Errc code = Errc::kAborted;
  int culprit = -1;  ///< the rank to blame, or -1
  std::string reason{};
};

class Control;

/// The group that a subgroup was split from: null for one that was not.
struct ParentGroup {
  std::shared_ptr<Control> control{};
  std::vector<int> ranks{};  ///< in the parent, by rank in the subgroup
};

/// What a Control is made from.
struct GroupSpec {
  int rank = 0;
  int size = 1;
  std::int64_t timeout_ms = 0;
  std::shared_ptr<Store> store{};
  std::vector<int> hosts{};  ///< number of each rank's host; empty: all ranks share one
  ParentGroup parent{};
};

class Control {
 public:
  Control(const Control&) = delete;
  Control& operator=(const Control&) = delete;
  virtual ~Control() = default;

  int rank() const { return spec_.rank; }
  int size() const { return spec_.size; }
  std::int64_t timeout_ms() const { return spec_.timeout_ms; }

  /// By rank; equal for ranks that share a host.
  const std::vector<int>& hosts() const { return spec_.hosts; }
  int host_of(int rank) const;
  /// This rank's place among the ranks of its host, and how many those are.
  int host_rank() const;
  int host_size() const;

  /// Small texts that ranks agree through at set-up; never on the hot path.
  Store& store() { return *spec_.store; }
  std::shared_ptr<Store> store_part(const std::string& prefix) const;

  /// Collective. Publishes `text` and returns every rank's, by rank. Set-up only.
  /// Errors: kInvalidArgument on every rank when one is at another gather, and the group goes on;
  /// kTimeout, which ends it, when one is elsewhere, for example in a barrier.
  std::vector<std::string> all_gather_text(const Step& step, const std::string& text);

  /// The group's `T`, made when it is first asked for; it ends with the group. For what is slow to
  /// make and outlives who uses it. Any thread.
  template <typename T>
  T& part() {
    const std::lock_guard lock(parts_mutex_);
    std::shared_ptr<void>& found = parts_[typeid(T)];
    if (found == nullptr) found = std::make_shared<T>();
    return *static_cast<T*>(found.get());
  }

  /// How many gathers have begun: equal on all ranks between two of them.
  std::uint64_t num_gathers() const { return num_gathers_; }

  /// Collective. Errors: kTimeout, kPeerLost, kAborted.
  void barrier();

  /// Records where this rank is, for the messages of its peers.
  virtual void enter(Phase /*phase*/, std::uint64_t /*call*/) noexcept {}

  /// Returns when `ready()` is true. `ready` only loads (acquire) and compares. Spins first when
  /// each rank can have a core of its own, else gives its core away a few times; then sleeps.
  ///
  /// Errors: kTimeout, kPeerLost, kAborted: the message names this rank, the phase, the call and
  /// the peer; kTimeout also aborts the group, so that the others learn of it at once.
  template <typename Ready>
  void wait(const WaitSite& site, Ready&& ready);

  /// For set-up, where nothing wakes a sleeper: calls `attempt` with short deadlines until it is
  /// true. Errors as wait.
  void wait_in_slices(const WaitSite& site, const std::function<bool(const Deadline&)>& attempt);

  /// Ends every wait of every rank. The first caller's cause is kept; true for that caller. Any
  /// thread.
  virtual bool abort(Errc code, int culprit, const std::string& reason) noexcept = 0;

  /// For waits that are not the host's: kernels that wait for a peer. Any thread. What ends a group
  /// ends its subgroups.
  bool is_aborted() const noexcept {
    return has_cause() || (spec_.parent.control && spec_.parent.control->is_aborted());
  }
  /// Aborts the group when a rank, also one of the parent, has died. Any thread.
  void look_for_dead_ranks() noexcept;
  /// For a rank that needs every peer: the same, and when one has left. Any thread.
  void look_for_lost_peers() noexcept;

  /// Why the group ended, or nothing; looks for ranks that died first. Does not wait. Any thread.
  std::optional<Error> error();

  /// Throws when the group was aborted; the cheap check at the start of each operation.
  void check_alive(const WaitSite& site) {
    if (is_aborted()) [[unlikely]]
      fail_aborted(site);
  }

  /// True once this rank threw an error whose cause another rank, or the launcher, had published,
  /// also in a subgroup.
  bool has_seen_abort() const { return has_seen_abort_; }

 protected:
  explicit Control(GroupSpec spec);
  const ParentGroup& parent() const { return spec_.parent; }
  /// When set-up moves to another store.
  void set_store(std::shared_ptr<Store> store) { spec_.store = std::move(store); }

 private:
  // What an implementation supplies, besides abort.

  /// Moves whenever something that this rank may wait for has changed.
  virtual std::uint32_t bell() noexcept { return 0; }
  /// Returns once every rank has called it with this number. Over the store, unless overridden.
  virtual void meet_all(std::uint64_t number);
  /// The step of a long wait: sleeps, or makes progress, until the bell moves from `seen`, the
  /// group is aborted, or `ns` have passed. May return early for no reason.
  virtual void rest(std::uint32_t seen, std::int64_t ns) = 0;
  /// True once abort was called, here or on a peer; abort_cause() is valid then.
  virtual bool has_cause() const noexcept = 0;
  virtual AbortCause abort_cause() const = 0;
  /// A peer that died without leaving, or -1. Called between two slices of a wait, and by any
  /// thread.
  virtual int find_lost_peer() noexcept { return -1; }
  /// True when `peer` has left the group and so answers nobody any more.
  virtual bool has_left(int /*peer*/) const noexcept { return false; }
  /// A rank that a wait for all ranks (`site.peer` is -1) still lacks, or -1.
  virtual int missing_peer(const WaitSite& /*site*/) { return -1; }
  /// What `peer` said last of where it is: "is idle", "last reached barrier, call 3".
  virtual std::string place_of(int /*peer*/) const { return "has not said where it is"; }
  /// The rank that serves the store, or -1.
  virtual int store_rank() const { return -1; }

  static constexpr int kSpinsPerYield = 64;
  static constexpr int kYields = 16;

  /// One wait that has begun to sleep.
  struct WaitState {
    explicit WaitState(std::int64_t timeout_ms);
    Deadline deadline;
    std::int64_t next_look_ns;  ///< when to look for lost peers again
    bool is_last_look = false;  ///< an error is due unless ready() turns true once more
  };

  /// Sleeps until the bell moves from `seen`, a slice of the deadline passes, or the group is
  /// aborted; throws when it was, when a peer is lost, or when the deadline is over.
  void sleep(const WaitSite& site, std::uint32_t seen, WaitState& state);
  void look_for_trouble(const WaitSite& site, WaitState& state);
  int absent_peer(const WaitSite& site);
  AbortCause cause_from_parent() const;
  AbortCause cause();
  [[noreturn]] void fail_aborted(const WaitSite& site);
  [[noreturn]] void fail_lost(const WaitSite& site, int peer, const char* reason);
  [[noreturn]] void fail_timeout(const WaitSite& site);
  std::string get_from_peer(const WaitSite& site, const std::string& key);
  void put_to_store(const WaitSite& site, const std::string& key, const std::string& text);

  GroupSpec spec_;
  int num_spins_;  ///< 0 when there are more ranks than cores
  std::atomic<bool> has_seen_abort_ = false;
  std::uint64_t num_gathers_ = 0;
  std::uint64_t num_barriers_ = 0;
  std::mutex parts_mutex_;  // guards the one below
  std::map<std::type_index, std::shared_ptr<void>> parts_;
};

template <typename Ready>
void Control::wait(const WaitSite& site, Ready&& ready) {
  if (ready()) return;
  const Waiting waiting;
  for (int spin = 0; spin < num_spins_; ++spin) {
    spin_pause();
    if (ready()) return;
    // The peer may be queued for this very core, when other programs use the rest.
    if (spin % kSpinsPerYield == kSpinsPerYield - 1) std::this_thread::yield();
  }
  // Ranks that share cores: the peer may only need this core for a moment.
  for (int turn = 0; num_spins_ == 0 && turn < kYields; ++turn) {
    std::this_thread::yield();
    if (ready()) return;
  }
  WaitState state(spec_.timeout_ms);
  for (;;) {
    const std::uint32_t seen = bell();
    if (ready()) return;
    sleep(site, seen, state);
  }
}

}  // namespace switchyard

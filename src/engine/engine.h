// SPDX-License-Identifier: Apache-2.0
//
// engine.h: how ranks reach each other's memory. An engine gives symmetric windows, a store to
// agree through, and a wait that has a deadline and ends when the group is aborted or a peer is
// lost.
//
// Every engine keeps one ControlBlock that all ranks (and our launcher) map: an abort line and two
// lines a rank. A rank sleeps on its own doorbell (an event count: read the doorbell,
// look again, sleep unless it moved); a peer that changed something the rank may wait for rings it.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "switchyard/error.h"

#include "core/clock.h"
#include "core/fence.h"
#include "transport/control_block.h"
#include "transport/socket.h"
#include "transport/store.h"

namespace switchyard {

/// One region of equal size on each rank, mapped on every rank, zero-filled. Offsets in it come
/// from the layout structs of plan.
class Window {
 public:
  Window() = default;
  Window(const Window&) = delete;
  Window& operator=(const Window&) = delete;
  virtual ~Window() = default;

  std::byte* base(int rank) const { return bases_[static_cast<std::size_t>(rank)]; }
  std::size_t size_bytes() const { return size_bytes_; }

 protected:
  std::vector<std::byte*> bases_;
  std::size_t size_bytes_ = 0;
};

/// What a rank waits for; the words of the error when it does not come.
struct WaitSite {
  Phase phase = Phase::kIdle;
  std::uint64_t call = 0;  ///< number of the operation on its slot
  int peer = -1;           ///< the rank that must act; -1: any
};

class Engine {
 public:
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;
  virtual ~Engine() = default;

  virtual const char* name() const = 0;
  int rank() const { return rank_; }
  int size() const { return size_; }
  std::int64_t timeout_ms() const { return timeout_ms_; }

  /// Collective: every rank passes the same size. Errors: kOutOfMemory, kTimeout, kPeerLost.
  virtual std::unique_ptr<Window> make_window(std::size_t bytes) = 0;

  /// True when ranks are processes that can hand descriptors to each other.
  virtual bool can_swap_descriptors() const { return false; }

  /// Collective, set-up only: each rank gives every peer a descriptor of `own` and gets theirs, by
  /// rank (its own place is empty). `bytes`, equal on all ranks, is compared with what comes.
  /// Errors: kNotSupported (see can_swap_descriptors), kTimeout, kPeerLost, kSystem.
  virtual std::vector<Fd> swap_descriptors(const Fd& own, std::size_t bytes);

  /// Small texts that ranks agree through at set-up; never on the hot path.
  Store& store() { return *store_; }

  /// Collective. Publishes `text` and returns every rank's, by rank. Set-up only.
  std::vector<std::string> all_gather_text(const std::string& text);

  /// Collective, by the doorbells. Errors: kTimeout, kPeerLost, kAborted.
  void barrier();

  /// Tells `peer` that something it may wait for has changed. Call after the release store.
  void notify(int peer) noexcept;
  void notify_all() noexcept;

  /// Records where this rank is, for the messages of its peers.
  void enter(Phase phase, std::uint64_t call) noexcept;

  /// Returns when `ready()` is true. `ready` only loads (acquire) and compares. Spins first when
  /// each rank can have a core of its own, else gives its core away a few times; then sleeps.
  ///
  /// Errors: kTimeout, kPeerLost, kAborted: the message names this rank, the phase, the call and
  /// the peer; kTimeout also aborts the group, so that the others learn of it at once.
  template <typename Ready>
  void wait(const WaitSite& site, Ready&& ready);

  /// Ends every wait of every rank. The first caller's cause is kept; true for that caller. Any
  /// thread.
  bool abort(Errc code, int culprit, const std::string& reason) noexcept;

  /// For waits that are not the host's: kernels that wait for a peer. Any thread.
  bool is_aborted() const noexcept;
  /// For a rank that needs every peer: aborts the group when one has died or left. Any thread.
  void look_for_lost_peers() noexcept;

  /// Throws when the group was aborted; the cheap check at the start of each operation.
  void check_alive(const WaitSite& site);

  /// True once this rank threw an error whose cause another rank, or the launcher, had published.
  bool has_seen_abort() const { return has_seen_abort_; }

 protected:
  Engine(int rank, int size, std::int64_t timeout_ms, std::shared_ptr<Store> store);
  /// Takes part from here on; `leave` tells the peers that this rank waits for nobody any more.
  void attach(ControlBlock control);
  void leave() noexcept;
  bool has_left(int peer) const noexcept;

  /// For make_window: throws on every rank, naming the first, when sizes differ or a rank could not
  /// get its memory (`own_error`: why this one could not, else empty).
  void agree_on_window(std::size_t bytes, const std::string& own_error);

  /// For set-up, where what is awaited rings no doorbell: calls `attempt` with short deadlines
  /// until it is true. Errors as wait.
  void wait_in_slices(const WaitSite& site, const std::function<bool(const Deadline&)>& attempt);

  /// A peer that died without leaving, or -1. Called every slice of a sleep, and by any thread.
  virtual int find_lost_peer() { return -1; }

  /// The rank that serves the store, or -1.
  virtual int store_rank() const { return -1; }

 private:
  static constexpr int kSpinsPerYield = 64;
  static constexpr int kYields = 16;

  /// One wait that has begun to sleep.
  struct WaitState {
    explicit WaitState(std::int64_t timeout_ms);
    Deadline deadline;
    std::int64_t next_look_ns;  ///< when to look for lost peers again
    bool is_last_look = false;  ///< an error is due unless ready() turns true once more
  };

  /// Sleeps until the doorbell moves from `seen`, a slice of the deadline passes, or the group is
  /// aborted; throws when it was, when a peer is lost, or when the deadline is over.
  void sleep(const WaitSite& site, std::uint32_t seen, WaitState& state);
  void look_for_trouble(const WaitSite& site, WaitState& state);
  [[noreturn]] void fail_lost(const WaitSite& site, int peer, const char* reason);
  [[noreturn]] void fail_timeout(const WaitSite& site);
  std::string get_from_peer(const WaitSite& site, const std::string& key);
  void put_to_store(const WaitSite& site, const std::string& key, const std::string& text);

  int rank_;
  int size_;
  std::int64_t timeout_ms_;
  int num_spins_;  ///< 0 when there are more ranks than cores
  std::shared_ptr<Store> store_;
  ControlBlock control_;
  std::atomic<bool> has_seen_abort_ = false;
  std::uint64_t num_gathers_ = 0;
  std::uint64_t num_barriers_ = 0;
};

template <typename Ready>
void Engine::wait(const WaitSite& site, Ready&& ready) {
  if (ready()) return;
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
  WaitState state(timeout_ms_);
  RankLines& lines = control_.lines(rank_);
  for (;;) {
    const std::uint32_t seen = lines.doorbell.load(std::memory_order_seq_cst);
    if (ready()) return;
    sleep(site, seen, state);
  }
}

}  // namespace switchyard

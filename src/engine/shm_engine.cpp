// SPDX-License-Identifier: Apache-2.0
//
// shm_engine.cpp: how processes become a group. Through the store each rank says where it listens;
// each two ranks then connect a Unix packet socket; over it travel the descriptors of the control
// block (unless our launcher made it) and later of windows. P ranks cost P * (P - 1) / 2 sockets.

#include "engine/shm_engine.h"

#include <fcntl.h>
#include <poll.h>

#include <atomic>
#include <optional>
#include <utility>

#include "core/fail.h"
#include "engine/mesh.h"
#include "engine/rendezvous.h"
#include "transport/shared_memory.h"

namespace switchyard {
namespace {

constexpr std::int64_t kLauncherGraceNs = 250'000'000;  // the launcher knows why a rank died

constexpr int kWithdrawnPollMs = 10;
constexpr char kFailed = '!';  // in place of an introduction: why the group will not be

std::string introduction_key(int rank) { return fmt::format("join/{}", rank); }

// With a descriptor, over a link.
struct Parcel {
  std::uint64_t number = 0;  // 0: the control block; else which swap it belongs to
  std::uint64_t bytes = 0;
};

class ShmWindow final : public Window {
 public:
  ShmWindow(std::vector<Mapping> regions, std::size_t bytes) : regions_(std::move(regions)) {
    for (const Mapping& region : regions_) bases_.push_back(region.data());
    size_bytes_ = bytes;
  }

 private:
  std::vector<Mapping> regions_;
};

// Groups that this process has joined. Collective calls come in one order, so ranks agree on it.
std::atomic<int> num_groups = 0;

class ShmEngine final : public Engine {
 public:
  ShmEngine(const JoinRequest& request, StoreAccess access)
      : Engine(request.ranks.rank, request.ranks.size, request.timeout_ms, access.store),
        server_(std::move(access.server)),
        deadline_(Deadline::after_ms(request.timeout_ms)),
        is_served_by_rank_0_(request.control_fd < 0) {}
  ~ShmEngine() override {
    if (control_memory_.data() != nullptr) leave();
  }

  const char* name() const override { return "shm"; }
  std::unique_ptr<Window> make_window(std::size_t bytes) override;
  bool can_swap_descriptors() const override { return true; }
  std::vector<Fd> swap_descriptors(const Fd& own, std::size_t bytes) override;

  void join(int launcher_fd);

 private:
  int find_lost_peer() override;
  int store_rank() const override { return is_served_by_rank_0_ ? 0 : -1; }
  void map_control(const Fd& memory);
  std::vector<Introduction> meet(const std::string& socket);
  template <typename Action>
  auto with_store(Action&& action) {
    return is_served_by_rank_0_ ? with_peer(rank(), 0, action) : action();
  }
  std::optional<std::string> look_up(const std::string& key, int within_ms);
  void tell_in_place_of(const std::vector<int>& missing, const std::string& message);
  [[noreturn]] void fail_unmet(const std::string& message) {
    fail(Errc::kTimeout, "group: {} (rank {} of {}); did they start?", message, rank(), size());
  }
  [[noreturn]] void fail_missing(const std::vector<int>& missing);
  void share_control();
  Fd receive_parcel(const WaitSite& site, const Parcel& wanted);

  std::shared_ptr<StoreServer> server_;
  Deadline deadline_;  // of the set-up
  Mapping control_memory_;
  std::vector<PeerLink> links_;
  bool has_launcher_ = false;
  bool is_served_by_rank_0_ = false;
  std::atomic<std::int64_t> lost_since_ns_ = 0;
  std::uint64_t num_swaps_ = 0;
};

void ShmEngine::map_control(const Fd& memory) {
  const std::size_t bytes = ControlBlock::size_bytes(size());
  check_shared_memory(memory, bytes);
  control_memory_ = Mapping(memory, bytes);
  attach(ControlBlock(control_memory_.data(), size()));
  enter(Phase::kSetup, 0);
}

// With our launcher the control block is there first: a rank that dies meanwhile ends the set-up.
void ShmEngine::join(int launcher_fd) {
  if (launcher_fd >= 0) {
    const Fd memory(fcntl(launcher_fd, F_DUPFD_CLOEXEC, 3));
    if (!memory.has_value()) fail_errno("SWITCHYARD_CONTROL_FD", std::to_string(launcher_fd));
    fcntl(launcher_fd, F_SETFD, FD_CLOEXEC);  // it is for this process, not for its children
    map_control(memory);
    has_launcher_ = true;
  }
  auto [listener, socket] = listen_for_packets();
  const std::vector<Introduction> ranks = meet(socket);
  require_one_job(ranks);
  const auto check = [&] {
    if (has_launcher_) check_alive({Phase::kSetup, 0, -1});
  };
  links_ = connect_mesh(rank(), ranks, listener, deadline_, check);
  if (!has_launcher_) share_control();
  barrier();
  enter(Phase::kIdle, 0);
}

std::optional<std::string> ShmEngine::look_up(const std::string& key, int within_ms) {
  return with_store([&] { return store().get(key, Deadline::after_ms(within_ms)); });
}

// Each rank's introduction; or the error that names who is missing.
std::vector<Introduction> ShmEngine::meet(const std::string& socket) {
  const std::string own = Introduction::of_this_process(size(), socket).text();
  with_store([&] { store().set(introduction_key(rank()), own); });
  std::vector<Introduction> ranks;
  for (int peer = 0; peer < size(); ++peer) {
    std::optional<std::string> text;
    while (!text) {
      if (has_launcher_) check_alive({Phase::kSetup, 0, peer});
      const int slice_ms = std::min(kSliceMs, deadline_.remaining_ms());
      text = look_up(introduction_key(peer), slice_ms);
      if (text && text->empty()) {  // withdrawn
        text.reset();
        poll(nullptr, 0, std::min(kWithdrawnPollMs, slice_ms));
      }
      if (text && text->front() == kFailed) fail_unmet(text->substr(1));
      if (text || !deadline_.expired()) continue;
      std::vector<int> missing;
      for (int other = peer; other < size(); ++other) {
        if (look_up(introduction_key(other), 0).value_or("").empty()) missing.push_back(other);
      }
      if (!missing.empty()) fail_missing(missing);
    }
    ranks.push_back(Introduction::parse(*text));
  }
  return ranks;
}

// The store goes with rank 0: who still waits should learn whom it missed, not that it is gone.
void ShmEngine::tell_in_place_of(const std::vector<int>& missing, const std::string& message) {
  for (const int peer : missing) store().set(introduction_key(peer), kFailed + message);
  poll(nullptr, 0, 2 * kSliceMs);  // each asks at least once a slice
  for (const int peer : missing) store().set(introduction_key(peer), "");
  store().set(introduction_key(rank()), "");
}

void ShmEngine::fail_missing(const std::vector<int>& missing) {
  const std::string message =
      fmt::format("no sign of rank{} {} within {:.1f} s", missing.size() == 1 ? "" : "s",
                  fmt::join(missing, ", "), static_cast<double>(timeout_ms()) * 1e-3);
  if (has_launcher_) abort(Errc::kTimeout, missing[0], message);
  if (server_) tell_in_place_of(missing, message);
  fail_unmet(message);
}

// Rank 0 makes the block and hands it out.
void ShmEngine::share_control() {
  const Parcel parcel{0, ControlBlock::size_bytes(size())};
  if (rank() == 0) {
    const Fd memory = make_shared_memory("switchyard control", parcel.bytes);
    map_control(memory);
    for (int peer = 1; peer < size(); ++peer) {
      with_peer(rank(), peer, [&] {
        send_packet(links_[static_cast<std::size_t>(peer)].socket,
                    std::as_bytes(std::span(&parcel, 1)), memory.get(), deadline_);
      });
    }
    return;
  }
  Parcel got;
  const std::optional<Fd> memory = with_peer(rank(), 0, [&] {
    return receive_packet(links_[0].socket, std::as_writable_bytes(std::span(&got, 1)), deadline_);
  });
  require(memory.has_value(), Errc::kTimeout,
          "group: no control block from rank 0 within {:.1f} s (rank {} of {})",
          static_cast<double>(timeout_ms()) * 1e-3, rank(), size());
  map_control(*memory);
}

int ShmEngine::find_lost_peer() {
  for (int peer = 0; peer < size(); ++peer) {
    if (peer == rank() || links_.empty()) continue;
    if (!links_[static_cast<std::size_t>(peer)].is_dead() || has_left(peer)) continue;
    if (!has_launcher_) return peer;
    std::int64_t since = 0;
    if (lost_since_ns_.compare_exchange_strong(since, now_ns())) return -1;
    return now_ns() - since > kLauncherGraceNs ? peer : -1;
  }
  return -1;
}

std::unique_ptr<Window> ShmEngine::make_window(std::size_t bytes) {
  Fd own;
  std::string error;
  try {
    require_memory(bytes, size());
    own = make_shared_memory("switchyard window", bytes);
  } catch (const Error& failure) {
    error = failure.what();
  }
  agree_on_window(bytes, error);
  const std::vector<Fd> memories = swap_descriptors(own, bytes);
  std::vector<Mapping> regions;
  try {
    for (int peer = 0; peer < size(); ++peer) {
      const Fd& memory = peer == rank() ? own : memories[static_cast<std::size_t>(peer)];
      check_shared_memory(memory, bytes);
      regions.emplace_back(memory, bytes);
    }
  } catch (const Error& failure) {
    error = failure.what();
  }
  agree_on_window(bytes, error);
  return std::make_unique<ShmWindow>(std::move(regions), bytes);
}

// In rounds of one parcel each way, so that few descriptors are in flight: the kernel limits them.
std::vector<Fd> ShmEngine::swap_descriptors(const Fd& own, std::size_t bytes) {
  const std::uint64_t number = ++num_swaps_;
  const Parcel parcel{number, bytes};
  std::vector<Fd> memories(static_cast<std::size_t>(size()));
  for (int round = 1; round < size(); ++round) {
    const int to = (rank() + round) % size();
    const int from = (rank() - round + size()) % size();
    wait_in_slices({Phase::kSetup, number, to}, [&](const Deadline& slice) {
      try {
        send_packet(links_[static_cast<std::size_t>(to)].socket,
                    std::as_bytes(std::span(&parcel, 1)), own.get(), slice);
        return true;
      } catch (const Error& error) {
        if (error.code() != Errc::kTimeout && error.code() != Errc::kPeerLost) throw;
        poll(nullptr, 0, 5);
        return false;  // the look at the links between slices says who is lost
      }
    });
    memories[static_cast<std::size_t>(from)] =
        receive_parcel({Phase::kSetup, number, from}, parcel);
  }
  return memories;
}

Fd ShmEngine::receive_parcel(const WaitSite& site, const Parcel& wanted) {
  Parcel got;
  Fd memory;
  wait_in_slices(site, [&](const Deadline& slice) {
    try {
      std::optional<Fd> came = receive_packet(links_[static_cast<std::size_t>(site.peer)].socket,
                                              std::as_writable_bytes(std::span(&got, 1)), slice);
      if (came) memory = *std::move(came);
      return came.has_value();
    } catch (const Error& error) {
      if (error.code() != Errc::kPeerLost) throw;
      poll(nullptr, 0, 5);
      return false;
    }
  });
  require(got.number == wanted.number && got.bytes == wanted.bytes, Errc::kInternal,
          "window: rank {} sent number {} of {} bytes, want number {} of {}", site.peer, got.number,
          got.bytes, wanted.number, wanted.bytes);
  require(memory.has_value(), Errc::kSystem,
          "window: no descriptor came from rank {}, the system kept it; raise ulimit -n, or the "
          "sandbox does not pass it on",
          site.peer);
  return memory;
}

}  // namespace

std::shared_ptr<Engine> join_shm(const JoinRequest& request) {
  try {
    auto engine = std::make_shared<ShmEngine>(request, open_store(request, num_groups));
    // The launcher's block serves one group; a later one of the same processes makes its own.
    engine->join(num_groups == 0 ? request.control_fd : -1);
    ++num_groups;
    return engine;
  } catch (...) {
    close_store(request);
    throw;
  }
}

}  // namespace switchyard

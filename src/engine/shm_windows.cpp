// SPDX-License-Identifier: Apache-2.0

#include "engine/shm_windows.h"

#include <poll.h>

#include <optional>
#include <utility>

#include "core/fail.h"
#include "core/topology.h"
#include "transport/shared_memory.h"

namespace switchyard {
namespace {

class ShmWindow final : public Window {
 public:
  ShmWindow(std::vector<Mapping> regions, std::size_t bytes) : regions_(std::move(regions)) {
    for (const Mapping& region : regions_) bases_.push_back(region.data());
    size_bytes_ = bytes;
  }

 private:
  std::vector<Mapping> regions_;
};

}  // namespace

std::unique_ptr<Window> ShmWindows::make_window(std::size_t bytes) {
  Fd own;
  std::string error;
  try {
    require_window_memory(control_, bytes);
    own = make_shared_memory("switchyard window", bytes);
  } catch (const Error& failure) {
    error = failure.what();
  }
  agree_on_window(control_, bytes, error);
  const std::vector<Fd> memories = swap_descriptors(own, bytes);
  std::vector<Mapping> regions;
  try {
    for (int peer = 0; peer < control_.size(); ++peer) {
      const Fd& memory = peer == control_.rank() ? own : memories[static_cast<std::size_t>(peer)];
      check_shared_memory(memory, bytes);
      regions.emplace_back(memory, bytes);
      if (peer == control_.rank()) place_near_caller(regions.back().data(), bytes);
    }
  } catch (const Error& failure) {
    error = failure.what();
  }
  agree_on_window(control_, bytes, error);
  return std::make_unique<ShmWindow>(std::move(regions), bytes);
}

// In rounds of one parcel each way, so that few descriptors are in flight: the kernel limits them.
std::vector<Fd> ShmWindows::swap_descriptors(const Fd& own, std::size_t bytes) {
  const std::uint64_t number = ++num_swaps_;
  const Parcel parcel{number, bytes};
  std::vector<Fd> memories(static_cast<std::size_t>(control_.size()));
  for (int round = 1; round < control_.size(); ++round) {
    const int to = (control_.rank() + round) % control_.size();
    const int from = (control_.rank() - round + control_.size()) % control_.size();
    control_.wait_in_slices({Phase::kSetup, number, to}, [&](const Deadline& slice) {
      try {
        send_packet(control_.socket_to(to), std::as_bytes(std::span(&parcel, 1)), own.get(), slice);
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

Fd ShmWindows::receive_parcel(const WaitSite& site, const Parcel& wanted) {
  Parcel got;
  Fd memory;
  control_.wait_in_slices(site, [&](const Deadline& slice) {
    try {
      std::optional<Fd> came = receive_packet(control_.socket_to(site.peer),
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

}  // namespace switchyard

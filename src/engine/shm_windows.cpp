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
  agree_on_window(control_, "window", bytes, error);
  std::vector<Mapping> regions;
  try {
    const std::vector<Fd> memories = swap_descriptors(own, bytes);
    for (int peer = 0; peer < control_.size(); ++peer) {
      const Fd& memory = peer == control_.rank() ? own : memories[static_cast<std::size_t>(peer)];
      check_shared_memory(memory, bytes);
      regions.emplace_back(memory, bytes);
      if (peer == control_.rank()) place_near_caller(regions.back().data(), bytes);
    }
  } catch (const Error& failure) {
    if (ends_the_group(failure.code())) throw;
    error = failure.what();
  }
  agree_on_window(control_, "mapped window", bytes, error);
  return std::make_unique<ShmWindow>(std::move(regions), bytes);
}

// In rounds of one parcel each way, so that few descriptors are in flight: the kernel limits them.
// A parcel that this rank has no room for is consumed all the same, and one that it cannot send
// goes without its descriptor.
std::vector<Fd> ShmWindows::swap_descriptors(const Fd& own, std::size_t bytes) {
  const Parcel parcel{++num_swaps_, bytes};
  std::vector<Fd> memories(static_cast<std::size_t>(control_.size()));
  std::optional<Error> failure;
  const auto attempt = [&](const auto& action) {
    try {
      action();
      return true;
    } catch (const Error& error) {
      if (ends_the_group(error.code())) throw;
      if (!failure) failure = error;
      return false;
    }
  };
  for (int round = 1; round < control_.size(); ++round) {
    const int to = (control_.rank() + round) % control_.size();
    const int from = (control_.rank() - round + control_.size()) % control_.size();
    if (!attempt([&] { send_parcel(to, parcel, own.get()); })) send_parcel(to, parcel, -1);
    attempt([&] { memories[static_cast<std::size_t>(from)] = receive_parcel(from, parcel); });
  }
  if (failure) throw Error(*failure);
  return memories;
}

void ShmWindows::send_parcel(int to, const Parcel& parcel, int fd) {
  control_.wait_in_slices({Phase::kExchange, parcel.number, to}, [&](const Deadline& slice) {
    try {
      send_packet(control_.socket_to(to), std::as_bytes(std::span(&parcel, 1)), fd, slice);
      return true;
    } catch (const Error& error) {
      if (error.code() != Errc::kTimeout && error.code() != Errc::kPeerLost) throw;
      poll(nullptr, 0, 5);
      return false;  // the look at the links between slices says who is lost
    }
  });
}

Fd ShmWindows::receive_parcel(int from, const Parcel& wanted) {
  Parcel got;
  Fd memory;
  control_.wait_in_slices({Phase::kExchange, wanted.number, from}, [&](const Deadline& slice) {
    try {
      std::optional<Fd> came = receive_packet(control_.socket_to(from),
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
          "window: rank {} sent number {} of {} bytes, must be number {} of {}", from, got.number,
          got.bytes, wanted.number, wanted.bytes);
  require(memory.has_value(), Errc::kSystem,
          "window: no descriptor came from rank {}, the system kept it; raise ulimit -n, or the "
          "sandbox does not pass it on",
          from);
  return memory;
}

}  // namespace switchyard

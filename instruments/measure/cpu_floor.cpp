// SPDX-License-Identifier: Apache-2.0
//
// Two constants. Hop: rank 0 writes a word and notifies rank 1, which answers in the same way; half
// of the round trip, 10th percentile. Between ranks that share no memory it is a message of 64
// bytes, to a rank of another host where there is one. Copy: all ranks run memcpy at
// once, each in its own memory; the slowest rank, 10th percentile, for sizes that fit into caches
// and sizes that do not.

#include <atomic>
#include <cstring>

#include <fmt/format.h>

#include "core/aligned_buffer.h"
#include "core/clock.h"
#include "engine/engine.h"
#include "measure/cpu_target.h"
#include "measure/gather.h"
#include "measure/statistics.h"

namespace switchyard::measure {
namespace {

constexpr int kNumTrips = 400;
constexpr int kNumSamples = 30;
constexpr double kFast = 0.1;
constexpr std::size_t kMaxCopied = std::size_t{1} << 30;  // over all ranks

double us_since(std::int64_t start_ns) { return static_cast<double>(now_ns() - start_ns) * 1e-3; }

std::atomic<std::uint64_t>& word_of(const Window& window, int rank) {
  return *reinterpret_cast<std::atomic<std::uint64_t>*>(window.base(rank));
}

double fast_trip(const Group& group, const std::vector<double>& trips) {
  group.barrier();
  return max_over_ranks(group, {group.rank() == 0 ? percentile(trips, kFast) / 2 : 0}).front();
}

double window_hop_us(const Group& group) {
  Control& control = group.control();
  WindowSource& windows = group.engine().windows("bench");
  const std::unique_ptr<Window> window = windows.make_window(128);
  std::vector<double> trips(static_cast<std::size_t>(kNumTrips), 0.0);
  const int rank = group.rank();
  for (std::uint64_t call = 1; rank < 2 && call <= trips.size(); ++call) {
    const int peer = 1 - rank;
    const std::int64_t start = now_ns();
    const auto tell = [&] {
      word_of(*window, rank).store(call, std::memory_order_release);
      windows.notify(peer);
    };
    const auto await = [&] {
      control.wait({Phase::kSetup, call, peer},
                   [&] { return word_of(*window, peer).load(std::memory_order_acquire) >= call; });
    };
    if (rank == 0) tell();
    await();
    if (rank == 1) tell();
    trips[static_cast<std::size_t>(call - 1)] = us_since(start);
  }
  return fast_trip(group, trips);
}

double message_hop_us(const Group& group) {
  constexpr std::size_t kBytes = 64;
  Control& control = group.control();
  int partner = 1;
  while (partner + 1 < group.size() && control.host_of(partner) == control.host_of(0)) ++partner;
  const std::unique_ptr<MessageChannel> channel = group.engine().messages("bench").make_channel();
  const auto memory = std::make_shared<AlignedBuffer>(kBytes);
  const MessageBuffer buffer{memory, memory->data(), kBytes};
  const auto await = [&](std::uint64_t call, int peer, MessageId message) {
    control.wait({Phase::kSetup, call, peer}, [&] { return channel->is_done(message); });
  };
  std::vector<double> trips(static_cast<std::size_t>(kNumTrips), 0.0);
  for (std::uint64_t call = 1; call <= trips.size(); ++call) {
    const std::int64_t start = now_ns();
    if (group.rank() == 0) {
      await(call, partner, channel->send(partner, 0, buffer));
      await(call, partner, channel->receive(partner, 0, buffer));
    } else if (group.rank() == partner) {
      await(call, 0, channel->receive(0, 0, buffer));
      await(call, 0, channel->send(0, 0, buffer));
    }
    trips[static_cast<std::size_t>(call - 1)] = us_since(start);
  }
  return fast_trip(group, trips);
}

double hop_us(const Group& group) {
  if (group.size() == 1) return 0;
  return group.engine().has_windows() ? window_hop_us(group) : message_hop_us(group);
}

// GB/s per rank.
double copy_rate(const Group& group, std::size_t bytes) {
  constexpr std::size_t kMin = std::size_t{1} << 20;  // makes a sample long enough for the clock
  const std::size_t times = std::max<std::size_t>(1, kMin / bytes);
  AlignedBuffer from(bytes);
  AlignedBuffer to(bytes);
  std::memset(from.data(), 1, bytes);
  std::memset(to.data(), 2, bytes);
  std::vector<double> us;
  for (int sample = -1; sample < kNumSamples; ++sample) {
    group.barrier();
    const std::int64_t start = now_ns();
    for (std::size_t i = 0; i < times; ++i) {
      std::memcpy(to.data(), from.data(), bytes);
      asm volatile("" : : "r"(to.data()) : "memory");  // keeps every copy from being optimized away
    }
    if (sample >= 0) us.push_back(us_since(start));
  }
  const double slowest = percentile(max_over_ranks(group, us), kFast);
  return static_cast<double>(bytes * times) / slowest * 1e-3;
}

std::string size_text(std::size_t bytes) {
  return bytes >= (1u << 20) ? fmt::format("{} MiB", bytes >> 20)
                             : fmt::format("{} KiB", bytes >> 10);
}

}  // namespace

FloorModel measure_cpu_floor(const Group& group) {
  FloorModel floor;
  floor.bytes = FloorBytes::kCopied;
  floor.start_us = hop_us(group);
  floor.constants.push_back({"hop", floor.start_us, "us"});
  for (const std::size_t bytes : {std::size_t{16} << 10, std::size_t{256} << 10,
                                  std::size_t{4} << 20, std::size_t{32} << 20}) {
    // Measure the smallest size always, the others while they fit into any machine with this many
    // ranks.
    const std::size_t all = 2 * bytes * static_cast<std::size_t>(group.size());
    if (!floor.rate.empty() && all > kMaxCopied) break;
    const double rate = copy_rate(group, bytes);
    floor.rate.push_back({static_cast<double>(bytes), rate});
    floor.constants.push_back({"copy of " + size_text(bytes), rate, "GB/s"});
  }
  return floor;
}

}  // namespace switchyard::measure

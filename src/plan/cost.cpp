// SPDX-License-Identifier: Apache-2.0
//
// Instructions per chunk are counted along the common path of the machine code of
// cuda/exchange/dispatch_fp8_block.cu for sm_90 (docs/lab/gpus.md, few SMs): a warp that takes
// chunk after chunk executes 420 to quantize 512 elements and store them to two ranks, of which 190
// quantize, and 120 to put 512 elements at four rows. A warp that takes all chunks of a row finds
// addresses once; 305 and 80 are left.

#include "plan/cost.h"

#include <algorithm>
#include <cmath>

#include "core/fail.h"
#include "core/round_up.h"

namespace switchyard {
namespace {

// Of an item, and of each of its chunks: 420 = kSendItem + 305 - kSendItem / 14, and so on.
constexpr double kSendItem = 124;
constexpr double kQuantizeChunk = 190;
constexpr double kStoreChunk = 53;  // per rank: (420 - 124 - 190) / 2
constexpr double kReceiveItem = 43;
constexpr double kReadChunk = 37;
constexpr double kPlaceChunk = 10;  // per row
constexpr double kCodedChunkBytes = 512;

double bytes_us(double bytes, double gb_per_second) { return bytes * 1e-3 / gb_per_second; }

/// Items of a role that its warps take one after another.
double rounds(double items, int ctas, int warps) {
  return std::ceil(items / (static_cast<double>(ctas) * warps));
}

void finish(CallTime& time, double overlap) {
  const auto times = {time.rounds_us, time.sm_us, time.wire_us, time.memory_us, time.network_us};
  const double most = std::max(times);
  time.total_us = time.start_us;
  if (most == 0) return;
  double sum = 0;  // of powers of numbers up to 1, so that a large exponent does not overflow
  for (const double us : times) sum += std::pow(us / most, overlap);
  time.total_us += most * std::pow(sum, 1 / overlap);
}

double start_of(const PushCosts& costs, const NetworkCosts& network, const PushWork& work,
                bool is_programmatic) {
  return costs.start_us - (is_programmatic ? costs.saved_us : 0) +
         (work.network_bytes > 0 ? network.start_us : 0);
}

void add_links(CallTime& time, const PushCosts& costs, const NetworkCosts& network,
               const PushWork& work, int sending_ctas) {
  // Fewer CTAs than were measured store in proportion.
  const double fewest = costs.wire.front().at;
  const double part = std::min(1.0, sending_ctas / fewest);
  time.wire_us = bytes_us(work.wire_bytes, part * rate_at(costs.wire, sending_ctas));
  if (work.network_bytes > 0) {
    time.network_us = bytes_us(work.network_bytes, network.gb_per_second);
  }
}

double ratio(double part, double whole) { return whole > 0 ? part / whole : 0; }

}  // namespace

double rate_at(const std::vector<RateAt>& rates, double at) {
  require(!rates.empty(), Errc::kInternal, "rate_at: no measured rate, must be at least one");
  if (at <= rates.front().at) return rates.front().gb_per_second;
  for (std::size_t i = 1; i < rates.size(); ++i) {
    if (at > rates[i].at) continue;
    const double share = std::log(at / rates[i - 1].at) / std::log(rates[i].at / rates[i - 1].at);
    return rates[i - 1].gb_per_second +
           share * (rates[i].gb_per_second - rates[i - 1].gb_per_second);
  }
  return rates.back().gb_per_second;
}

const char* CallTime::bound() const {
  const double most = std::max({start_us, rounds_us, sm_us, wire_us, memory_us, network_us});
  if (most == network_us) return "network";
  if (most == wire_us) return "wire";
  if (most == memory_us) return "memory";
  if (most == sm_us) return "instructions";
  return most == rounds_us ? "rounds" : "start";
}

CallTime dispatch_time(const PushCosts& costs, const NetworkCosts& network,
                       const PushLayout& layout, const DispatchCtas& grid, const PushWork& work,
                       bool is_programmatic) {
  CallTime time;
  const double chunks = grid.chunks_per_item;
  const double ranks = ratio(work.stored, work.tokens);  // per row that is sent
  const double rows = ratio(work.placed, work.arrivals);
  const double length = layout.chunk_bytes / kCodedChunkBytes;
  const double send_item =
      kSendItem + chunks * ((work.quantizes ? kQuantizeChunk : 0) + length * kStoreChunk * ranks);
  const double receive_item = kReceiveItem + chunks * length * (kReadChunk + kPlaceChunk * rows);
  const double items = work.tokens * grid.items(layout);
  const double received = work.arrivals * grid.received_items(layout);
  time.start_us = start_of(costs, network, work, is_programmatic) + costs.dispatch_start_us +
                  (grid.shares_work ? costs.shared_start_us : 0);
  const bool all_do_all = grid.shares_work && grid.num_senders == grid.num_receivers;
  const int ctas = grid.num_ctas(true, true);
  const double instructions = items * send_item + received * receive_item;
  time.sm_us = instructions * costs.instruction_us / (static_cast<double>(ctas) * grid.num_warps);
  if (all_do_all) {
    time.sm_us = costs.instruction_us *
                 (rounds(items, grid.num_senders, grid.num_warps) * send_item +
                  rounds(received, grid.num_receivers, grid.num_warps) * receive_item);
  } else if (!grid.shares_work) {
    // The first round of either role is part of the start.
    time.rounds_us = std::max(
        (rounds(items, grid.num_senders, grid.num_warps) - 1) * costs.send_chunk_us,
        (rounds(received, grid.num_receivers, grid.num_warps) - 1) * costs.receive_chunk_us);
    time.rounds_us = std::max(0.0, time.rounds_us);
  }
  add_links(time, costs, network, work, grid.shares_work ? ctas : grid.num_senders);
  // A slot is written, read and emptied.
  const double bytes = work.tokens * work.token_bytes + 3 * work.arrivals * layout.row_stride +
                       work.placed * work.placed_bytes;
  time.memory_us = bytes_us(bytes, costs.copy_gb_per_second * costs.dispatch_memory);
  finish(time, costs.overlap);
  return time;
}

CallTime combine_time(const PushCosts& costs, const NetworkCosts& network, const PushLayout& layout,
                      const CombineCtas& grid, const PushWork& work, bool is_programmatic) {
  CallTime time;
  const double chunks = grid.chunks_per_item;
  const double rows = ratio(work.placed, work.returned);     // summed before they return
  const double returns = ratio(work.partials, work.tokens);  // summed by the owner
  const double items = work.returned * grid.items(layout);
  const double sums = work.tokens * grid.items(layout);
  time.start_us = start_of(costs, network, work, is_programmatic) + costs.combine_start_us +
                  (grid.streams ? costs.stream_start_us : 0);
  const double sent = rounds(items, grid.num_senders, grid.num_warps);
  const double summed = rounds(sums, grid.num_receivers, grid.num_warps);
  if (grid.streams) {
    const auto item_us = [&](double added) {
      return costs.stream_item_us + chunks * (costs.stream_chunk_us + costs.stream_row_us * added);
    };
    time.sm_us = sent * item_us(rows) + summed * item_us(returns);
  } else {
    time.rounds_us =
        std::max({0.0, (sent - 1) * (costs.return_chunk_us + costs.return_row_us * rows),
                  (summed - 1) * (costs.sum_chunk_us + costs.sum_row_us * returns)});
  }
  add_links(time, costs, network, work, grid.num_senders);
  const double row_bytes = 2.0 * static_cast<double>(layout.shape.hidden);
  const double bytes = (work.placed + work.tokens) * row_bytes +
                       3 * work.returned * static_cast<double>(layout.return_stride);
  time.memory_us = bytes_us(bytes, costs.copy_gb_per_second * costs.combine_memory);
  finish(time, costs.overlap);
  return time;
}

namespace {

CallTime pull_time(const PullCosts& costs, const NetworkCosts& network, const PullWork& work,
                   double start_us, double part, double row_us) {
  CallTime time;
  time.start_us = start_us + (work.network_bytes > 0 ? network.start_us : 0);
  // A copy reads as much as it writes; its rate counts the bytes once.
  const double bytes = (work.bytes_read + work.bytes_written) / 2;
  if (bytes > 0) time.memory_us = bytes_us(bytes, part * rate_at(costs.copy, bytes * costs.reuse));
  time.sm_us = work.rows * row_us;
  if (work.quantized_bytes > 0) {
    time.sm_us += bytes_us(work.quantized_bytes, costs.quantize_gb_per_second);
  }
  if (work.network_bytes > 0) {
    time.network_us = bytes_us(work.network_bytes, network.gb_per_second);
  }
  finish(time, costs.overlap);
  return time;
}

}  // namespace

CallTime pull_dispatch_time(const PullCosts& costs, const NetworkCosts& network,
                            const PullWork& work) {
  return pull_time(costs, network, work, costs.dispatch_start_us, costs.dispatch_copy,
                   costs.dispatch_row_us);
}

CallTime pull_combine_time(const PullCosts& costs, const NetworkCosts& network,
                           const PullWork& work) {
  return pull_time(costs, network, work, costs.combine_start_us, costs.combine_copy,
                   costs.combine_row_us);
}

}  // namespace switchyard

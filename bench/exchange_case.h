// SPDX-License-Identifier: Apache-2.0
//
// exchange_case.h: one measured shape, and the text in which jobs report it. The jobs run as
// separate processes (started by our launcher or by mpirun) and print lines "name value value ...".
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "switchyard/exchange.h"

#include "core/aligned_buffer.h"
#include "core/clock.h"
#include "core/fence.h"
#include "core/random.h"
#include "core/round_up.h"
#include "cpu/copy_rows.h"
#include "plan/routing.h"

namespace switchyard::bench {

struct ExchangeCase {
  std::string engine = "shm";  ///< shm, local; mpi for the baseline
  int num_ranks = 2;
  std::int64_t num_tokens = 128;  ///< per rank
  Layout layout = Layout::kExpanded;
  std::string scheme = "none";
  Reduce reduce = Reduce::kPerRank;
  std::int64_t hidden = 7168;
  int num_topk = 8;
  int num_experts = 256;
  int num_runs = 21;

  ExchangeConfig config() const {
    ExchangeConfig config;
    config.num_experts = num_experts;
    config.num_topk = num_topk;
    config.hidden = hidden;
    config.max_tokens_per_rank = num_tokens;
    config.layout = layout;
    config.scheme = *scheme_from_name(scheme);
    config.reduce = reduce;
    return config;
  }

  std::vector<std::string> arguments() const {
    return {engine,
            std::to_string(num_ranks),
            std::to_string(num_tokens),
            name_of(layout),
            scheme,
            name_of(reduce),
            std::to_string(hidden),
            std::to_string(num_topk),
            std::to_string(num_experts),
            std::to_string(num_runs)};
  }

  /// The inverse of arguments(), from argv[1] on.
  static ExchangeCase parse(char** argv) {
    ExchangeCase result;
    result.engine = argv[1];
    result.num_ranks = std::stoi(argv[2]);
    result.num_tokens = std::stoll(argv[3]);
    result.layout = *layout_from_name(argv[4]);
    result.scheme = argv[5];
    result.reduce = *reduce_from_name(argv[6]);
    result.hidden = std::stoll(argv[7]);
    result.num_topk = std::stoi(argv[8]);
    result.num_experts = std::stoi(argv[9]);
    result.num_runs = std::stoi(argv[10]);
    return result;
  }
};

/// Uniform random routing with distinct experts, the same for every engine.
inline std::vector<std::int32_t> random_ids(const ExchangeCase& test, int rank) {
  std::vector<std::int32_t> ids;
  std::uint64_t counter = 0;
  const auto seed = 100 + static_cast<std::uint64_t>(rank);
  for (std::int64_t t = 0; t < test.num_tokens; ++t) {
    const auto begin = static_cast<std::ptrdiff_t>(ids.size());
    while (static_cast<std::ptrdiff_t>(ids.size()) < begin + test.num_topk) {
      const auto id = static_cast<std::int32_t>(random_bits(seed, counter++) %
                                                static_cast<std::uint64_t>(test.num_experts));
      if (std::find(ids.begin() + begin, ids.end(), id) == ids.end()) ids.push_back(id);
    }
  }
  return ids;
}

/// bf16 values of either sign, with magnitudes from 2^-7 to 2; cheap to generate.
inline void fill_tokens(std::uint16_t* tokens, std::int64_t num_elements) {
  for (std::int64_t i = 0; i < num_elements; ++i) {
    const std::uint64_t bits = random_bits(7, static_cast<std::uint64_t>(i) % 65'521);
    tokens[i] = static_cast<std::uint16_t>(0x3C00 + (bits & 0x83FF));
  }
}

/// What one rank must read and write, whatever the method (measure/traffic.cpp says which).
struct MovedBytes {
  std::int64_t read = 0;
  std::int64_t written = 0;
};

struct PairBytes {
  MovedBytes dispatch;
  MovedBytes combine;
};

inline PairBytes moved_bytes(const ExchangeCase& test, int rank, std::int64_t wire_row_bytes) {
  std::vector<std::vector<std::uint16_t>> ids(static_cast<std::size_t>(test.num_ranks));
  std::vector<RankRouting> table;
  for (int r = 0; r < test.num_ranks; ++r) {
    const std::vector<std::int32_t> wide = random_ids(test, r);
    ids[static_cast<std::size_t>(r)].assign(wide.begin(), wide.end());
    table.push_back({test.num_tokens, ids[static_cast<std::size_t>(r)].data(), nullptr});
  }
  const ExpertOwnership ownership{test.num_experts, test.num_ranks};
  SendPlan send;
  send.build(ownership, test.num_topk, Layout::kExpanded, table[static_cast<std::size_t>(rank)]);
  ReceivePlan receive;
  receive.build(rank, ownership, test.num_topk, {}, table);
  const bool is_per_rank = test.reduce == Reduce::kPerRank;
  std::int64_t published = 0;
  std::int64_t arriving_home = 0;  // rows that return for this rank's tokens
  for (std::int64_t t = 0; t < test.num_tokens; ++t) {
    std::int64_t num_remote = 0;
    for (const TokenRank& r : send.ranks_of(t)) num_remote += r.rank != rank;
    published += num_remote > 0;
    if (is_per_rank) arriving_home += num_remote;
  }
  for (const std::uint16_t id : ids[static_cast<std::size_t>(rank)]) {
    if (!is_per_rank) arriving_home += ownership.owner(id) != rank;
  }
  std::int64_t arrived = 0;
  std::int64_t returned = 0;
  for (const Arrival& a : receive.arrivals) {
    if (a.source == rank) continue;
    ++arrived;
    returned += is_per_rank ? 1 : a.count;
  }
  const auto placed = static_cast<std::int64_t>(receive.placements.size());
  const std::int64_t wide_row = test.hidden * 2;
  return {{test.num_tokens * wide_row + arrived * wire_row_bytes,
           (published + placed) * wire_row_bytes},
          {(placed + arriving_home) * wide_row, (returned + test.num_tokens) * wide_row}};
}

/// Reads and writes as many bytes of its own memory as a call must: what this core can achieve. It
/// copies where both go together, and only reads or only writes the rest. Writes go through the
/// caches or past them; whichever is faster is the floor.
class MemoryFloor {
 public:
  explicit MemoryFloor(const MovedBytes& bytes)
      : from_(rounded(bytes.read)), to_(rounded(bytes.written)) {
    std::memset(from_.data(), 1, from_.size_bytes());
    std::memset(to_.data(), 2, to_.size_bytes());
  }

  void run(bool streaming) {
    const std::size_t copied = std::min(from_.size_bytes(), to_.size_bytes());
    for (std::size_t at = 0; at < copied; at += kPiece) write(from_.data() + at, at, streaming);
    read_from(copied);
    alignas(64) static constexpr std::byte kZeros[kPiece] = {};
    for (std::size_t at = copied; at < to_.size_bytes(); at += kPiece) write(kZeros, at, streaming);
    if (streaming) streaming_store_fence();
  }

 private:
  // A piece stays in the first-level cache.
  static constexpr std::size_t kPiece = 16384;

  static std::size_t rounded(std::int64_t bytes) {
    return align_up(static_cast<std::size_t>(bytes), kPiece);
  }

  void read_from(std::size_t begin) {
    const auto* words = from_.as<std::uint64_t>();
    const std::size_t end = from_.size_bytes() / sizeof(*words);
    std::uint64_t all = 0;
    for (std::size_t i = begin / sizeof(*words); i < end; ++i) all ^= words[i];
    volatile std::uint64_t sink = all;
    static_cast<void>(sink);
  }

  void write(const std::byte* from, std::size_t at, bool streaming) {
    if (streaming) {
      copy_row_streaming(from, to_.data() + at, kPiece);
    } else {
      std::memcpy(to_.data() + at, from, kPiece);
    }
  }

  AlignedBuffer from_;
  AlignedBuffer to_;
};

inline void print_times(const char* name, const std::vector<double>& us) {
  std::printf("%s", name);
  for (const double value : us) std::printf(" %.3f", value);
  std::printf("\n");
}

}  // namespace switchyard::bench

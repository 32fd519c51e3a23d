// SPDX-License-Identifier: Apache-2.0
//
// control_block.h: the few words that all ranks of a group share with their launcher. They live in
// ordinary memory (threads) or in a memfd (processes); zero-filled memory is a valid new block.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "switchyard/error.h"

namespace switchyard {

/// Encodes an Errc as AbortLine::code, where 0 means "not aborted".
inline std::uint32_t abort_code(Errc code) noexcept { return static_cast<std::uint32_t>(code) + 1; }
inline Errc errc_of(std::uint32_t code) noexcept { return static_cast<Errc>(code - 1); }

/// Why the group was aborted. Written once, by whoever wins `claimed`, then published by `code`.
struct alignas(128) AbortLine {
  std::atomic<std::uint32_t> claimed;
  std::atomic<std::uint32_t> code;  ///< 0: not aborted; else abort_code()
  std::int32_t culprit;             ///< the rank to blame, or -1
  char reason[244];                 ///< null-terminated
};

/// The two lines of one rank: one that peers write when they ring, and one that only the rank
/// itself writes, so that its own stores and its peers' rings never share a cache line.
struct alignas(128) RankLines {
  std::atomic<std::uint32_t> doorbell;            ///< futex word; incremented by every ring
  std::atomic<std::uint32_t> sleepers;            ///< threads asleep on the doorbell
  alignas(128) std::atomic<std::uint32_t> phase;  ///< a Phase, for messages
  std::atomic<std::uint32_t> joined;  ///< 1 after the rank mapped the block, 2 after it left
  std::atomic<std::uint64_t> call;
  std::atomic<std::uint64_t> barrier;  ///< barriers this rank has entered
};

static_assert(sizeof(AbortLine) == 256 && sizeof(RankLines) == 256,
              "other processes map these lines");

/// A view of the block: one AbortLine, then one RankLines per rank.
class ControlBlock {
 public:
  ControlBlock() = default;
  ControlBlock(std::byte* data, int num_ranks) : data_(data), num_ranks_(num_ranks) {}

  static std::size_t size_bytes(int num_ranks) {
    return sizeof(AbortLine) + static_cast<std::size_t>(num_ranks) * sizeof(RankLines);
  }
  AbortLine& abort_line() const { return *reinterpret_cast<AbortLine*>(data_); }
  RankLines& lines(int rank) const {
    return reinterpret_cast<RankLines*>(data_ + sizeof(AbortLine))[rank];
  }

  /// Increments the doorbell of `rank` and wakes the threads asleep on it.
  void ring(int rank) const noexcept;

  /// Publishes the cause, unless there is one already, and wakes every rank. True for the first
  /// caller. There is a cause when it returns, also when the first caller died while it wrote one,
  /// for which it is given a fifth of a second.
  bool abort(std::uint32_t code, int culprit, const char* reason) const noexcept;

 private:
  std::byte* data_ = nullptr;
  int num_ranks_ = 0;
};

}  // namespace switchyard

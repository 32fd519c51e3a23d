// SPDX-License-Identifier: Apache-2.0

#include "engine/shared_control.h"

#include "core/fail.h"
#include "transport/futex.h"

namespace switchyard {
namespace {

constexpr std::uint32_t kHere = 1;
constexpr std::uint32_t kLeft = 2;

}  // namespace

void SharedControl::attach(ControlBlock block) {
  block_ = block;
  block_.lines(rank()).joined.store(kHere, std::memory_order_release);
}

void SharedControl::leave() noexcept {
  block_.lines(rank()).joined.store(kLeft, std::memory_order_release);
}

bool SharedControl::has_left(int peer) const noexcept {
  return block_.lines(peer).joined.load(std::memory_order_acquire) == kLeft;
}

void SharedControl::notify_all() noexcept {
  for (int peer = 0; peer < size(); ++peer) {
    if (peer != rank()) block_.ring(peer);
  }
}

void SharedControl::enter(Phase phase, std::uint64_t call) noexcept {
  RankLines& lines = block_.lines(rank());
  lines.call.store(call, std::memory_order_relaxed);
  lines.phase.store(static_cast<std::uint32_t>(phase), std::memory_order_relaxed);
}

std::uint32_t SharedControl::bell() noexcept {
  return block_.lines(rank()).doorbell.load(std::memory_order_seq_cst);
}

void SharedControl::rest(std::uint32_t seen, std::int64_t ns) {
  RankLines& lines = block_.lines(rank());
  // Pairs with the load in ControlBlock::ring.
  lines.sleepers.fetch_add(1, std::memory_order_seq_cst);
  futex_wait(lines.doorbell, seen, ns);
  lines.sleepers.fetch_sub(1, std::memory_order_seq_cst);
}

void SharedControl::meet_all(std::uint64_t number) {
  block_.lines(rank()).barrier.store(number, std::memory_order_release);
  notify_all();
  for (int peer = 0; peer < size(); ++peer) {
    const RankLines& lines = block_.lines(peer);
    // Pairs with the release above.
    wait({Phase::kBarrier, number, peer},
         [&] { return lines.barrier.load(std::memory_order_acquire) >= number; });
  }
}

bool SharedControl::abort(Errc code, int culprit, const std::string& reason) noexcept {
  return block_.abort(abort_code(code), culprit, reason.c_str());
}

bool SharedControl::has_cause() const noexcept {
  return block_.abort_line().code.load(std::memory_order_acquire) != 0;
}

AbortCause SharedControl::abort_cause() const {
  const AbortLine& line = block_.abort_line();
  return {errc_of(line.code.load(std::memory_order_acquire)), line.culprit, line.reason};
}

std::string SharedControl::place_of(int peer) const {
  const RankLines& lines = block_.lines(peer);
  const auto phase = static_cast<Phase>(lines.phase.load(std::memory_order_relaxed));
  if (phase == Phase::kIdle) return "is idle";
  return fmt::format("last reached {}, call {}", name_of(phase),
                     lines.call.load(std::memory_order_relaxed));
}

}  // namespace switchyard

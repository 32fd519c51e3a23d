// SPDX-License-Identifier: Apache-2.0
//
// Messages between hosts that take too long or fail.
//
// Who is next to a rank that hangs should be the first to say so, because the others only know that
// something has not come: kernels of combine wait one timeout for ranks of their host, messages
// have a quarter more, or three eighths where the peer also waits for others, and kernels of
// dispatch, which wait for tokens that ranks of this host pass on, have a half more.

#include <algorithm>
#include <atomic>

#include "core/clock.h"
#include "core/format.h"
#include "core/format_ranks.h"
#include "exchange/push/push_hosts.h"
#include "exchange/push/wait_failure.h"

namespace switchyard {
namespace {

// NCCL may see that a rank is gone before control does, which can name it.
constexpr std::int64_t kGraceNs = 1000 * kNsPerMs;

}  // namespace

void PushHosts::leave(Control& control, bool have_all_ended) noexcept {
  if (have_all_ended) keep_rank_links(control, std::move(links_));
  links_.reset();
  host_.reset();
}

void PushHosts::abort() noexcept {
  if (links_ != nullptr) links_->abort();
}

int PushHosts::passed_on_by(int source) const noexcept {
  if (map_.host_of(source) == own_host()) return -1;
  const int forwarder = map_.forwarder(source, own_host());
  return forwarder == rank_ ? -1 : forwarder;
}

std::int64_t PushHosts::stay_timeout_ms() const {
  const auto waits_for_others = [&](int peer) { return map_.linked_with(peer).size() > 1; };
  const bool is_far = std::any_of(peers_.begin(), peers_.end(), waits_for_others);
  return timeout_ms_ + timeout_ms_ * (is_far ? 3 : 2) / 8;
}

std::uint64_t PushHosts::dispatch_timeout_ns() const {
  return static_cast<std::uint64_t>((timeout_ms_ + timeout_ms_ / 2) * kNsPerMs);
}

// Kernels have deadlines of their own; what NCCL runs on the GPU gets this one.
void PushHosts::look(Control& control) noexcept {
  try {
    const std::lock_guard lock(mutex_);
    const std::int64_t now = now_ns();
    const std::int64_t timeout_ms = stay_timeout_ms();
    const std::string failure = links_->failure();
    if (failure.empty()) failed_since_ns_ = 0;
    if (!failure.empty() && failed_since_ns_ == 0) failed_since_ns_ = now;
    if (failed_since_ns_ != 0 && now - failed_since_ns_ > kGraceNs) {
      control.abort(
          Errc::kSystem, rank_,
          fmt::format("rank {} exchanges messages with {}: {}; if no rank was lost, see that every "
                      "rank passes dispatch {} as it does",
                      rank_, format_ranks(peers_), failure, mode_text(last_mode_)));
    }
    for (std::size_t i = 0; i < stays_.size(); ++i) {
      cuda::StayWords& words = words_.as<cuda::StayWords>()[i];
      const std::uint32_t ended = std::atomic_ref(words.ended).load(std::memory_order_acquire);
      const std::uint32_t begun = std::atomic_ref(words.begun).load(std::memory_order_acquire);
      Stay& stay = stays_[i];
      if (begun == ended || begun != stay.number) {
        stay = {begun, Deadline::after_ms(timeout_ms)};
        continue;
      }
      if (!stay.deadline.expired()) continue;
      const bool is_dispatch = i % kNumOperations == kDispatch;
      const Phase phase = is_dispatch ? Phase::kDispatchReceive : Phase::kCombineReceive;
      control.abort(Errc::kTimeout, peers_.size() == 1 ? peers_[0] : -1,
                    fmt::format("rank {} exchanged no messages with {} within {:.1f} s in {}; its "
                                "dispatch passed {}",
                                rank_, format_ranks(peers_), static_cast<double>(timeout_ms) * 1e-3,
                                name_of(phase), mode_text(last_mode_)));
      stay.deadline = Deadline::after_ms(timeout_ms);
    }
  } catch (const std::exception&) {  // no memory for the text: at the next look
  }
}

}  // namespace switchyard

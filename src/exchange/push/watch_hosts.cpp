// SPDX-License-Identifier: Apache-2.0
//
// Messages between hosts that take too long or fail.

#include <algorithm>

#include "core/clock.h"
#include "core/format.h"
#include "core/text.h"
#include "exchange/push/push_hosts.h"

namespace switchyard {
namespace {

constexpr std::int64_t kNsPerMs = 1'000'000;
// NCCL may see that a rank is gone before control does, which can name it.
constexpr std::int64_t kGraceNs = 1000 * kNsPerMs;

}  // namespace

void PushHosts::close() noexcept {
  if (links_ != nullptr) links_->abort();  // after which look() finds nothing
  slots_.clear();
}

void PushHosts::abort() noexcept {
  if (links_ != nullptr) links_->abort();
}

std::string PushHosts::peers_text() const {
  std::vector<std::int32_t> peers(forwarded_.begin(), forwarded_.end());
  for (int host = 0; host < map_.num_hosts(); ++host) {
    if (host != own_host()) peers.push_back(map_.forwarder(rank_, host));
  }
  std::sort(peers.begin(), peers.end());
  peers.erase(std::unique(peers.begin(), peers.end()), peers.end());
  return fmt::format("rank{} {}", peers.size() == 1 ? "" : "s", format_ranges(peers));
}

// Kernels have deadlines of their own; what NCCL runs on the GPU gets this one.
void PushHosts::look(Control& control) noexcept {
  try {
    const std::lock_guard lock(mutex_);
    const std::int64_t now = now_ns();
    const std::string failure = links_->failure();
    if (failure.empty()) failed_since_ns_ = 0;
    if (!failure.empty() && failed_since_ns_ == 0) failed_since_ns_ = now;
    if (failed_since_ns_ != 0 && now - failed_since_ns_ > kGraceNs) {
      control.abort(
          Errc::kSystem, rank_,
          fmt::format("rank {} exchanges messages with {}: {}", rank_, peers_text(), failure));
    }
    for (std::size_t i = 0; i < stays_.size(); ++i) {
      cuda::StayWords& words = words_.as<cuda::StayWords>()[i];
      const std::uint32_t ended = std::atomic_ref(words.ended).load(std::memory_order_acquire);
      const std::uint32_t begun = std::atomic_ref(words.begun).load(std::memory_order_acquire);
      Stay& stay = stays_[i];
      if (begun == ended || begun != stay.number) {
        stay = {begun, now};
        continue;
      }
      if (now - stay.since_ns < timeout_ms_ * kNsPerMs) continue;
      const bool is_dispatch = i % kNumOperations == kDispatch;
      const Phase phase = is_dispatch ? Phase::kDispatchReceive : Phase::kCombineReceive;
      const int culprit =
          forwarded_.empty() ? map_.forwarder(rank_, own_host() == 0 ? 1 : 0) : forwarded_[0];
      control.abort(
          Errc::kTimeout, culprit,
          fmt::format("rank {} exchanged no messages with {} within {:.1f} s in {}", rank_,
                      peers_text(), static_cast<double>(timeout_ms_) * 1e-3, name_of(phase)));
      stay.since_ns = now;
    }
  } catch (const std::exception&) {  // no memory for the text: at the next look
  }
}

}  // namespace switchyard

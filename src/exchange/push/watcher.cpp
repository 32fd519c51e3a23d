// SPDX-License-Identifier: Apache-2.0

#include "exchange/push/watcher.h"

#include <chrono>
#include <signal.h>
#include <system_error>
#include <utility>

#include "core/fail.h"

namespace switchyard {
namespace {

constexpr std::chrono::milliseconds kLookEvery{5};
constexpr int kLooksPerPeerLook = 10;  // looking for lost peers takes system calls

}  // namespace

Watcher::Watcher(Control& control, WatchWords& words, std::int64_t num_experts, LinkWatch* links,
                 std::function<int()> abandoned_by)
    : control_(control),
      words_(words),
      num_experts_(num_experts),
      links_(links),
      abandoned_by_(std::move(abandoned_by)) {
  try {
    thread_ = std::jthread([this](const std::stop_token& stop) { run(stop); });
  } catch (const std::system_error& error) {
    fail(Errc::kSystem, "exchange: no thread to watch kernels: {}", error.what());
  }
}

Watcher::~Watcher() = default;

// An abort is permanent, so there is nothing left to look for.
void Watcher::run(const std::stop_token& stop) noexcept {
  sigset_t all;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, nullptr);  // leave signals to the program's threads
  for (int i = 1; !stop.stop_requested(); ++i) {
    if (look()) {
      if (links_ != nullptr) links_->abort();
      return;
    }
    if (i % kLooksPerPeerLook == 0) {
      control_.look_for_lost_peers();
      if (links_ != nullptr) links_->look(control_);
    }
    std::this_thread::sleep_for(kLookEvery);
  }
}

// The acquire pairs with the fence before the kernel writes `failure`, which it writes last.
bool Watcher::has_record() const noexcept {
  return std::atomic_ref(words_.record.failure).load(std::memory_order_acquire) != 0;
}

// Kernels that wait for a rank that unwound an exception stop; only then is the group lost.
bool Watcher::look() noexcept {
  if (has_record()) notify_peers();
  if (!control_.is_aborted() && abandoner() < 0) return false;
  std::atomic_ref(words_.abort_word).store(1, std::memory_order_release);
  return true;
}

WaitFailureText Watcher::describe_record() const {
  const int peer = words_.record.peer;
  const bool is_rank = peer >= 0 && peer < control_.size();
  const int between = links_ != nullptr && is_rank ? links_->passed_on_by(peer) : -1;
  return describe(words_.record, control_.rank(), num_experts_, between);
}

void Watcher::notify_peers() noexcept {
  const std::lock_guard lock(mutex_);
  if (has_notified_) return;
  has_notified_ = true;
  try {
    const WaitFailureText text = describe_record();
    if (const int rank = abandoner(); rank >= 0 && !text.is_own) {
      control_.abort(Errc::kAborted, rank, "it ended its exchange because of an exception");
      return;
    }
    if (text.code == Errc::kTimeout) control_.look_for_lost_peers();
    is_first_cause_ = control_.abort(text.peers_code, text.culprit, text.what);
  } catch (const std::exception&) {  // no memory for the text
    is_first_cause_ = control_.abort(Errc::kOutOfMemory, control_.rank(), {});
  }
}

void Watcher::check(const WaitSite& site) {
  if (!has_record() && !control_.is_aborted()) [[likely]]
    return;
  look();
  const std::lock_guard lock(mutex_);
  if (!cause_) cause_ = cause(site);
  throw Error(*cause_);
}

Error Watcher::cause(const WaitSite& site) {
  const WaitFailureText own = describe_record();
  if (!own.is_own && !is_first_cause_) {
    try {
      control_.check_alive(has_record() ? site_of(words_.record) : site);
    } catch (const Error& error) {
      return error;
    }
  }  // else, or while another rank still writes its cause: this rank's text
  return Error(own.code, fmt::format("{}: {} (rank {} of {}, call {})", own.function, own.what,
                                     control_.rank(), control_.size(), words_.record.call));
}

}  // namespace switchyard

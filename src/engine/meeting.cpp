// SPDX-License-Identifier: Apache-2.0

#include "engine/meeting.h"

#include <poll.h>

#include <algorithm>
#include <cstdlib>
#include <exception>
#include <utility>

#include "core/fail.h"
#include "core/interrupt.h"
#include "core/text.h"
#include "engine/reason.h"

namespace switchyard {
namespace {

constexpr int kWithdrawnPollMs = 10;
constexpr int kOwnWordsMs = 10 * kSliceMs;  // a busy machine may let a store answer late
constexpr int kTellMs = 4 * kSliceMs;       // each asks once a slice, if the machine lets it
constexpr int kDoneMs = 1000;               // what others take at most to learn of a failure
constexpr const char* kNoSign = "no sign of rank";
constexpr const char* kFailureKey = "failed";  // why the group will not be: a code and a message

std::string introduction_key(int rank) { return fmt::format("join/{}", rank); }
// Why a rank gave up after the ranks had met. Where they try again, rank 0 has another nonce.
std::string reason_key(const std::vector<Introduction>& ranks) {
  return "reason/" + ranks[0].nonce;
}

std::string done_key(int rank) { return fmt::format("done/{}", rank); }

std::string failure_text(Errc code, const std::string& message) {
  return fmt::format("{} {}", static_cast<int>(code), message);
}
Errc code_of(const std::string& failure) { return static_cast<Errc>(std::atoi(failure.c_str())); }
std::string message_of(const std::string& failure) { return failure.substr(failure.find(' ') + 1); }

// What befell other ranks, or what they have agreed on, is not this rank's to tell.
bool is_own_reason(Errc code) {
  return code != Errc::kPeerLost && code != Errc::kTimeout && code != Errc::kNotAvailable;
}

}  // namespace

Meeting::Meeting(const GroupSpec& spec, MeetingPlace place)
    : rank_(spec.rank),
      size_(spec.size),
      timeout_ms_(spec.timeout_ms),
      store_(spec.store),
      place_(std::move(place)),
      deadline_(Deadline::after_ms(spec.timeout_ms)) {
  try {
    auto [listener, socket] = listen_for_packets();
    listener_ = std::move(listener);
    socket_ = std::move(socket);
  } catch (...) {
    give_up();
  }
}

std::optional<std::string> Meeting::look_up(const std::string& key, int within_ms) const {
  return with_store([&] { return store_->get(key, Deadline::after_ms(within_ms)); });
}

const std::vector<Introduction>& Meeting::meet(const Owner& owner) {
  const std::string text = Introduction::of_this_process(size_, socket_).text();
  if (place_.claims_ranks) require_own_place();
  with_store([&] { store_->set(introduction_key(rank_), text); });
  own_text_ = text;
  std::vector<Introduction> ranks;
  for (int peer = 0; peer < size_; ++peer) ranks.push_back(await_introduction(peer, owner));
  if (place_.claims_ranks) require_own_place();
  require_one_job(ranks);
  ranks_ = std::move(ranks);
  return ranks_;
}

Introduction Meeting::await_introduction(int peer, const Owner& owner) {
  for (;;) {
    if (is_interrupted()) fail_unmet(Errc::kAborted, "interrupted before every rank was there");
    owner.check(peer);
    if (place_.claims_ranks) require_own_place();  // another may have come since
    const int slice_ms = std::min(kSliceMs, deadline_.remaining_ms());
    const std::string text = look_up(introduction_key(peer), slice_ms).value_or("");
    if (!text.empty()) {
      Introduction other = Introduction::parse(text);
      if (other.size == size_) return other;
      const auto [low, high] = std::minmax({std::pair(rank_, size_), std::pair(peer, other.size)});
      fail_for_all(Errc::kInvalidArgument,
                   fmt::format("rank {} says that there are {} ranks, but rank {} says {}",
                               low.first, low.second, high.first, high.second));
    }
    const std::string failure = look_up(kFailureKey, 0).value_or("");
    if (!failure.empty()) {
      if (place_.server) poll(nullptr, 0, kTellMs);  // others have still to see it
      fail_heard(failure);
    }
    if (deadline_.expired()) require_nobody_missing(peer, owner);
    poll(nullptr, 0, std::min(kWithdrawnPollMs, deadline_.remaining_ms()));  // it may be withdrawn
  }
}

// In this rank's place of the store there is nothing, or its own words.
void Meeting::require_own_place() {
  const std::string text = look_up(introduction_key(rank_), 0).value_or("");
  if (text.empty() || text == own_text_) return;
  own_text_.clear();  // what is there now is another's: not to be withdrawn
  fail_for_all(Errc::kInvalidArgument,
               fmt::format("two processes say that they are rank {}, or the store is of an earlier "
                           "group; give each process its own number and each group a new store",
                           rank_));
}

void Meeting::require_there(int peer) const {
  const auto text = look_up(introduction_key(peer), kOwnWordsMs);
  if (!text) return;  // it was there when the ranks met: the store is slow
  const std::string& nonce = ranks_[static_cast<std::size_t>(peer)].nonce;
  if (!text->empty() && Introduction::parse(*text).nonce == nonce) return;
  require_nobody_gave_up();
  fail_unmet(Errc::kPeerLost, fmt::format("rank {} gave up before the group was complete", peer));
}

void Meeting::withdraw() noexcept {
  if (!place_.claims_ranks || own_text_.empty()) return;
  try {
    store_->set_within(introduction_key(rank_), "", kOwnWordsMs);
  } catch (const std::exception&) {  // the store went with whoever served it, or is stuck
  }
}

void Meeting::give_up() {
  if (std::exchange(has_given_up_, true)) throw;
  const std::exception_ptr handled = std::current_exception();
  std::exception_ptr thrown = handled;
  try {
    std::rethrow_exception(handled);
  } catch (const Error& error) {
    if (is_own_reason(error.code())) tell_reason(error);
    if (error.code() == Errc::kPeerLost || error.code() == Errc::kTimeout) {
      try {
        require_nobody_gave_up();
      } catch (const Error&) {
        thrown = std::current_exception();
      }
    }
  } catch (...) {  // no words for others
  }
  withdraw();
  if (place_.is_of_one_group && place_.is_served_by_rank_0) await_others();
  std::rethrow_exception(thrown);
}

// The store ends with rank 0: first each should have read there what it needs.
void Meeting::await_others() noexcept try {
  store_->set_within(done_key(rank_), "done", kOwnWordsMs);
  const Deadline deadline = Deadline::after_ms(kDoneMs);
  for (int peer = 1; peer < size_ && rank_ == 0; ++peer) {
    if (!store_->get(done_key(peer), deadline)) return;
  }
} catch (const std::exception&) {  // as in withdraw()
}

void Meeting::tell_reason(const Error& error) noexcept {
  if (is_failure_known_) return;
  const std::string message =
      fmt::format("rank {} gave up: {}", rank_, reason_for_others(error.what()));
  try {
    if (has_met()) {
      store_->set_within(reason_key(ranks_), failure_text(error.code(), message), kOwnWordsMs);
    }
  } catch (const std::exception&) {  // as in withdraw()
    return;
  }
  tell_failure(error.code(), message);  // to those that have yet to see all introductions
}

// Empty: none has said why, or the store is gone.
std::string Meeting::find_reason() const noexcept try {
  if (!has_met()) return "";
  return store_->get(reason_key(ranks_), Deadline::after_ms(0)).value_or("");
} catch (const std::exception&) {
  return "";
}

void Meeting::require_nobody_gave_up() const {
  const std::string reason = find_reason();
  if (!reason.empty()) fail_heard(reason);
}

void Meeting::fail_heard(const std::string& failure) const {
  is_failure_known_ = true;
  throw HeardError(code_of(failure), message_of_this_rank(message_of(failure)));
}

// Who still waits should learn why at once; the store may go with this rank.
void Meeting::tell_failure(Errc code, const std::string& message) {
  if (!place_.server && !place_.claims_ranks && !place_.is_of_one_group) return;
  is_failure_known_ = true;
  try {
    store_->set_within(kFailureKey, failure_text(code, message), kOwnWordsMs);
    if (place_.is_of_one_group) return;
    poll(nullptr, 0, kTellMs);
    store_->set_within(kFailureKey, "", kOwnWordsMs);
    if (place_.server) store_->set(introduction_key(rank_), "");
  } catch (const Error& error) {  // what is wrong with the store is not the first cause
    if (error.code() == Errc::kTimeout) own_text_.clear();  // withdraw() would wait as long again
  }
}

std::string Meeting::message_of_this_rank(const std::string& message) const {
  return fmt::format("group: {} (rank {} of {}){}", message, rank_, size_,
                     message.starts_with(kNoSign) ? "; did they start?" : "");
}

void Meeting::fail_unmet(Errc code, const std::string& message) const {
  throw Error(code, message_of_this_rank(message));
}

void Meeting::fail_for_all(Errc code, const std::string& message) {
  tell_failure(code, message);
  fail_unmet(code, message);
}

void Meeting::require_nobody_missing(int first, const Owner& owner) {
  // What this rank wrote itself is there, unless who serves the store is stuck.
  if (look_up(introduction_key(rank_), kOwnWordsMs).value_or("").empty()) {
    own_text_.clear();  // who is silent is told nothing
    constexpr const char* kSilent = "the store of this group does not answer";
    owner.give_up(-1, kSilent);
    fail_unmet(Errc::kTimeout, kSilent);
  }
  std::vector<std::int32_t> missing;
  for (int peer = first; peer < size_; ++peer) {
    if (look_up(introduction_key(peer), 0).value_or("").empty()) missing.push_back(peer);
  }
  if (missing.empty()) return;
  const std::string message =
      fmt::format("{}{} {} within {:.1f} s", kNoSign, missing.size() == 1 ? "" : "s",
                  format_ranges(missing), static_cast<double>(timeout_ms_) * 1e-3);
  owner.give_up(missing[0], message);
  fail_for_all(Errc::kTimeout, message);
}

}  // namespace switchyard

// SPDX-License-Identifier: Apache-2.0

#include "engine/local_messages.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <deque>
#include <utility>
#include <vector>

#include "core/fail.h"

namespace switchyard {

struct LocalMail::Boxes {
  struct Letter {
    int source = 0;
    int tag = 0;
    MessageBuffer buffer;
    std::shared_ptr<std::atomic<bool>> is_taken;
  };
  struct Box {
    std::mutex mutex;
    std::deque<Letter> letters;  // in the order in which they were sent
  };
  explicit Boxes(int num_ranks) : of(static_cast<std::size_t>(num_ranks)) {}
  std::vector<Box> of;  // by receiver
};

namespace {

class LocalChannel final : public MessageChannel {
 public:
  LocalChannel(SharedControl& control, std::shared_ptr<LocalMail::Boxes> boxes,
               std::shared_ptr<std::atomic<std::int64_t>> bytes_to_other_hosts)
      : control_(control),
        boxes_(std::move(boxes)),
        bytes_to_other_hosts_(std::move(bytes_to_other_hosts)) {}

  MessageId send(int peer, int tag, const MessageBuffer& buffer) override;
  MessageId receive(int peer, int tag, const MessageBuffer& buffer) override;
  bool is_done(MessageId message) override;
  void progress() override {
    if (!expected_.empty()) take_letters();
  }

 private:
  struct Sent {
    MessageId id = 0;
    std::shared_ptr<std::atomic<bool>> is_taken;
  };
  struct Expected {
    MessageId id = 0;
    int source = 0;
    int tag = 0;
    MessageBuffer buffer;
  };

  LocalMail::Boxes::Box& box_of(int rank) { return boxes_->of[static_cast<std::size_t>(rank)]; }
  void require_peer(int peer, int tag) const;
  void take_letters();

  SharedControl& control_;
  std::shared_ptr<LocalMail::Boxes> boxes_;
  std::shared_ptr<std::atomic<std::int64_t>> bytes_to_other_hosts_;
  MessageId last_id_ = 0;
  std::vector<Sent> sent_;          // not known to be taken
  std::vector<Expected> expected_;  // in the order in which they were started
};

void LocalChannel::require_peer(int peer, int tag) const {
  require(
      peer >= 0 && peer < control_.size() && peer != control_.rank() && tag >= 0 && tag <= kMaxTag,
      Errc::kInternal, "message: rank {} of {} and tag {} from rank {}, must be a peer and 0 to {}",
      peer, control_.size(), tag, control_.rank(), kMaxTag);
}

MessageId LocalChannel::send(int peer, int tag, const MessageBuffer& buffer) {
  require_peer(peer, tag);
  if (buffer.size_bytes == 0) return 0;
  if (control_.host_of(peer) != control_.host_of(control_.rank())) {
    *bytes_to_other_hosts_ += static_cast<std::int64_t>(buffer.size_bytes);
  }
  sent_.push_back({++last_id_, std::make_shared<std::atomic<bool>>(false)});
  {
    const std::lock_guard lock(box_of(peer).mutex);
    box_of(peer).letters.push_back({control_.rank(), tag, buffer, sent_.back().is_taken});
  }
  control_.notify(peer);
  return last_id_;
}

MessageId LocalChannel::receive(int peer, int tag, const MessageBuffer& buffer) {
  require_peer(peer, tag);
  if (buffer.size_bytes == 0) return 0;
  expected_.push_back({++last_id_, peer, tag, buffer});
  return last_id_;
}

// Copies under the lock: a test engine need not be fast. A letter that came between two looks would
// be taken by the second message that waits for its tag.
void LocalChannel::take_letters() {
  auto& box = box_of(control_.rank());
  const std::lock_guard lock(box.mutex);
  std::erase_if(expected_, [&](const Expected& expected) {
    const auto letter = std::find_if(box.letters.begin(), box.letters.end(), [&](const auto& l) {
      return l.source == expected.source && l.tag == expected.tag;
    });
    if (letter == box.letters.end()) return false;
    require(letter->buffer.size_bytes == expected.buffer.size_bytes, Errc::kInternal,
            "message: rank {} sends {} bytes with tag {}, rank {} expects {}", expected.source,
            letter->buffer.size_bytes, expected.tag, control_.rank(), expected.buffer.size_bytes);
    std::memcpy(expected.buffer.data, letter->buffer.data, letter->buffer.size_bytes);
    // Pairs with the acquire in is_done().
    letter->is_taken->store(true, std::memory_order_release);
    box.letters.erase(letter);
    control_.notify(expected.source);
    return true;
  });
}

bool LocalChannel::is_done(MessageId message) {
  progress();
  // Pairs with the release in take_letters().
  std::erase_if(sent_, [](const Sent& s) { return s.is_taken->load(std::memory_order_acquire); });
  const auto has = [&](const auto& list) {
    return std::any_of(list.begin(), list.end(), [&](const auto& m) { return m.id == message; });
  };
  return !has(sent_) && !has(expected_);
}

}  // namespace

std::shared_ptr<LocalMail::Boxes> LocalMail::boxes(std::uint64_t number, int num_ranks) {
  const std::lock_guard lock(mutex_);
  Pending& pending = pending_[number];
  if (!pending.boxes) pending.boxes = std::make_shared<Boxes>(num_ranks);
  std::shared_ptr<Boxes> boxes = pending.boxes;
  if (++pending.num_taken == num_ranks) pending_.erase(number);
  return boxes;
}

std::unique_ptr<MessageChannel> LocalMessages::make_channel() {
  return std::make_unique<LocalChannel>(control_, mail_->boxes(++num_channels_, control_.size()),
                                        byte_count());
}

}  // namespace switchyard

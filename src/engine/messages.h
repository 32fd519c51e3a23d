// SPDX-License-Identifier: Apache-2.0
//
// messages.h: messages between ranks that need not address each other's memory. Nothing here
// blocks: a rank starts messages, and waits in Control::wait until they are done, so that every
// wait has a deadline and notices lost peers.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

namespace switchyard {

/// Where a message lies. A channel holds `owner`, which keeps `data` alive, until the message is
/// done.
struct MessageBuffer {
  std::shared_ptr<const void> owner{};
  std::byte* data = nullptr;  ///< a send only reads it
  std::size_t size_bytes = 0;
};

/// Names a message that a rank has started on a channel. 0: one that was done at once.
using MessageId = std::uint64_t;

/// Messages of one exchange; those of another channel never meet them. One thread at a time.
///
/// - A send meets the receive of its peer with the same tag; several with one tag meet in the order
///   in which they were started. Both state the same size, of any number of bytes. One of no bytes
///   is done at once on both sides and never travels.
/// - A send may need its receive to be started before it is done. Until then the buffer of a send
///   must not be written, and that of a receive neither read nor written.
/// - After an abort, pending messages may stay pending for ever. A channel may be destroyed at any
///   time, and then waits for nobody: it gives up what is pending and lets go of those buffers once
///   nothing can touch them any more, at the latest when the process ends. What it has sent may
///   then never arrive, so a rank whose group is well waits for its sends first.
///
/// Errors: kInternal when the sizes of a message differ.
class MessageChannel {
 public:
  static constexpr int kMaxTag = 32767;  ///< the largest that every MPI has

  MessageChannel() = default;
  MessageChannel(const MessageChannel&) = delete;
  MessageChannel& operator=(const MessageChannel&) = delete;
  virtual ~MessageChannel() = default;

  /// Starts a message to or from another rank; `tag` is from 0 to kMaxTag.
  virtual MessageId send(int peer, int tag, const MessageBuffer& buffer) = 0;
  virtual MessageId receive(int peer, int tag, const MessageBuffer& buffer) = 0;

  /// Makes progress with every message of this rank; true when `message` is done, also when asked
  /// again. What it read or wrote is then visible. For the `ready` of Control::wait, whose bell
  /// rings, or whose rest is short, when a message may have moved on.
  virtual bool is_done(MessageId message) = 0;

  /// Makes progress likewise; for a rank that waits for something other than a message, while peers
  /// wait for what it has sent.
  virtual void progress() = 0;
};

/// Where channels come from.
class MessageSource {
 public:
  MessageSource() = default;
  MessageSource(const MessageSource&) = delete;
  MessageSource& operator=(const MessageSource&) = delete;
  virtual ~MessageSource() = default;

  /// Collective. Errors: kTimeout, kPeerLost, kAborted, kOutOfMemory.
  virtual std::unique_ptr<MessageChannel> make_channel() = 0;

  /// What this rank's channels have sent to ranks of other hosts so far.
  std::int64_t bytes_to_other_hosts() const { return *bytes_to_other_hosts_; }

 protected:
  using ByteCount = std::atomic<std::int64_t>;
  /// For the channels, which may outlive the source.
  const std::shared_ptr<ByteCount>& byte_count() const { return bytes_to_other_hosts_; }

 private:
  std::shared_ptr<ByteCount> bytes_to_other_hosts_ = std::make_shared<ByteCount>(0);
};

}  // namespace switchyard

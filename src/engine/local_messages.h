// SPDX-License-Identifier: Apache-2.0
//
// local_messages.h: messages between threads. A send leaves a letter in the receiver's box, which
// says where the bytes lie; the receiver copies them. So a send is done only when its receive is,
// as with large messages of MPI: what would deadlock there deadlocks in a test here.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>

#include "engine/messages.h"
#include "engine/shared_control.h"

namespace switchyard {

/// The boxes of the channels of one group.
class LocalMail {
 public:
  struct Boxes;  ///< of one channel

  /// Every rank asks once for each number.
  std::shared_ptr<Boxes> boxes(std::uint64_t number, int num_ranks);

 private:
  struct Pending {
    std::shared_ptr<Boxes> boxes;
    int num_taken = 0;
  };
  std::mutex mutex_;
  std::map<std::uint64_t, Pending> pending_;  // by number, until every rank has taken them
};

class LocalMessages final : public MessageSource {
 public:
  LocalMessages(SharedControl& control, std::shared_ptr<LocalMail> mail)
      : control_(control), mail_(std::move(mail)) {}

  std::unique_ptr<MessageChannel> make_channel() override;

 private:
  SharedControl& control_;
  std::shared_ptr<LocalMail> mail_;
  std::uint64_t num_channels_ = 0;
};

}  // namespace switchyard

// SPDX-License-Identifier: Apache-2.0

#include "gather_records.h"

#include "engine/engine.h"

namespace switchyard::cli {
namespace {

using Record = std::vector<std::byte>;
using Fill = std::function<void(std::byte* record)>;
using Read = std::function<void(int rank, const std::byte* record)>;

void gather_in_window(const Group& group, std::size_t bytes, const Fill& fill, const Read& read) {
  const std::unique_ptr<Window> window = group.engine().windows().make_window(bytes);
  fill(window->base(group.rank()));
  group.barrier();
  for (int rank = 0; group.rank() == 0 && rank < group.size(); ++rank) {
    read(rank, window->base(rank));
  }
  group.barrier();  // the windows must live until rank 0 has read them
}

void gather_by_messages(const Group& group, std::size_t bytes, const Fill& fill, const Read& read) {
  const std::unique_ptr<MessageChannel> channel = group.engine().messages().make_channel();
  const auto own = std::make_shared<Record>(bytes);
  fill(own->data());
  const auto finish = [&](int peer, MessageId message) {
    group.control().wait({Phase::kSetup, 0, peer}, [&] { return channel->is_done(message); });
  };
  if (group.rank() != 0) {
    finish(0, channel->send(0, 0, {own, own->data(), bytes}));
  } else {
    read(0, own->data());
    for (int rank = 1; rank < group.size(); ++rank) {
      const auto record = std::make_shared<Record>(bytes);
      finish(rank, channel->receive(rank, 0, {record, record->data(), bytes}));
      read(rank, record->data());
    }
  }
  group.barrier();  // what was sent has arrived
}

}  // namespace

void gather_records(const Group& group, std::size_t bytes, const Fill& fill, const Read& read) {
  if (group.engine().has_windows()) return gather_in_window(group, bytes, fill, read);
  gather_by_messages(group, bytes, fill, read);
}

}  // namespace switchyard::cli

// SPDX-License-Identifier: Apache-2.0

#include "module/meter_hosts.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "core/fail.h"
#include "core/round_up.h"

namespace switchyard {
namespace {

constexpr std::size_t kWordBytes = 16;
constexpr std::size_t kAlignment = 256;

std::size_t total_bytes(const std::vector<LinkMessage>& messages) {
  std::size_t bytes = 0;
  for (const LinkMessage& message : messages) bytes += align_up(message.num_bytes, kAlignment);
  return bytes;
}

// By rank. The store accepts arbitrary bytes.
std::vector<std::size_t> gather(Control& control, std::size_t value) {
  std::string own(sizeof(value), '\0');
  std::memcpy(own.data(), &value, sizeof(value));
  std::vector<std::size_t> values;
  for (const std::string& text : control.all_gather_text({Phase::kSetup, "bytes"}, own)) {
    require(text.size() == sizeof(value), Errc::kSystem, "meter: {} bytes of a rank, must be {}",
            text.size(), sizeof(value));
    std::memcpy(&values.emplace_back(), text.data(), sizeof(value));
  }
  return values;
}

std::size_t part_of(std::int64_t bytes, std::size_t num_messages) {
  return num_messages == 0 ? 0 : static_cast<std::size_t>(bytes) / num_messages;
}

bool has_any(const std::vector<std::size_t>& bytes) {
  return std::any_of(bytes.begin(), bytes.end(), [](std::size_t each) { return each > 0; });
}

}  // namespace

MeterHosts::MeterHosts(Control& control, const HostMap& map)
    : control_(control),
      as_source_(messages_of_source(map, control.rank())),
      as_forwarder_(messages_of_forwarder(map, control.rank())),
      words_((as_source_.size() + as_forwarder_.size()) * kAlignment) {
  const std::vector<std::size_t> bytes(static_cast<std::size_t>(control.size()), kWordBytes);
  meeting_ = crossing(as_source_, as_forwarder_, bytes);
  place(meeting_, words_.data());
  links_ = make_rank_links(control, map);
}

// `bytes` is the size of a message by who sends it.
MeterHosts::Crossing MeterHosts::crossing(const std::vector<LinkMessage>& sent,
                                          const std::vector<LinkMessage>& received,
                                          const std::vector<std::size_t>& bytes) const {
  Crossing crossing{sent, received};
  for (LinkMessage& message : crossing.sent) {
    message.num_bytes = bytes[static_cast<std::size_t>(control_.rank())];
  }
  for (LinkMessage& message : crossing.received) {
    message.num_bytes = bytes[static_cast<std::size_t>(message.peer)];
  }
  return crossing;
}

void MeterHosts::place(Crossing& crossing, std::byte* next) {
  for (std::vector<LinkMessage>* messages : {&crossing.sent, &crossing.received}) {
    for (LinkMessage& message : *messages) {
      message.data = next;
      next += align_up(message.num_bytes, kAlignment);
    }
  }
}

void MeterHosts::meet(Stream stream) {
  links_->exchange(meeting_.sent, meeting_.received, {Phase::kSetup, 0, -1}, stream.get());
}

DeviceWork MeterHosts::messages(const WireBytes& sent, DeviceQueue& queue) {
  const std::vector<std::size_t> dispatched =
      gather(control_, part_of(sent.dispatch, as_source_.size()));
  const std::vector<std::size_t> returned =
      gather(control_, part_of(sent.combine, as_forwarder_.size()));
  std::vector<Crossing> crossings;
  if (has_any(dispatched)) crossings.push_back(crossing(as_source_, as_forwarder_, dispatched));
  if (has_any(returned)) crossings.push_back(crossing(as_forwarder_, as_source_, returned));
  std::vector<DeviceMemory> memory;
  for (Crossing& one : crossings) {
    memory.push_back(queue.allocate(total_bytes(one.sent) + total_bytes(one.received)));
    place(one, memory.back().get());
  }
  return [links = links_, crossings, memory](Stream stream) {
    for (const Crossing& one : crossings) {
      links->exchange(one.sent, one.received, {Phase::kSetup, 0, -1}, stream.get());
    }
  };
}

}  // namespace switchyard

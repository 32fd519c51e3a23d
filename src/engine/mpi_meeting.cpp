// SPDX-License-Identifier: Apache-2.0

#include "engine/mpi_meeting.h"

#include <poll.h>

#include <cstring>
#include <vector>

#include "core/fail.h"
#include "core/interrupt.h"
#include "engine/group_server.h"
#include "engine/mpi_messages.h"
#include "transport/secret.h"
#include "transport/socket_store.h"

namespace switchyard {
namespace {

constexpr std::size_t kTextBytes = 4096;
using Text = std::vector<std::byte>;

class Meet {
 public:
  explicit Meet(const JoinRequest& request)
      : request_(request), deadline_(Deadline::after_ms(request.timeout_ms)) {}

  MpiMeeting run() {
    const std::string why = why_no_mpi_in_this_process();
    require(
        why.empty(), Errc::kNotAvailable,
        "group: {} started ranks on several hosts; set SWITCHYARD_STORE to tcp://host:port of "
        "rank 0's host and SWITCHYARD_SECRET on every rank (without them MPI would say where to "
        "meet, but {})",
        request_.ranks.source, why);
    const MpiModule& module = mpi_module();
    const std::string why_no_init = module.start_init(request_.timeout_ms);
    require(why_no_init.empty(), Errc::kSystem, "group: {}", why_no_init);
    await("MPI_Init", [&] { return module.init_state() == MpiInit::kDone; });
    int rank = 0;
    int size = 0;
    module.place_in(handle(), rank, size);
    require(size == request_.ranks.size && rank == request_.ranks.rank, Errc::kInvalidArgument,
            "group: {} says rank {} of {}, but MPI says {} of {}", request_.ranks.source,
            request_.ranks.rank, request_.ranks.size, rank, size);
    std::string refusal;
    link_ = module.duplicate(handle(), refusal);
    require(link_ != nullptr, Errc::kSystem, "group: MPI_Comm_idup: {}", refusal);
    await("MPI_Comm_idup", [&] { return link_->is_ready(); });
    return rank == 0 ? serve() : visit();
  }

 private:
  template <typename Ready>
  void await(const char* call, Ready&& ready) {
    while (!ready()) {
      require(!is_interrupted(), Errc::kAborted, "group: interrupted before every rank was there");
      require(!deadline_.expired(), Errc::kTimeout,
              "group: {} has not ended within {:.1f} s (rank {} of {}); did every process of the "
              "job start?",
              call, static_cast<double>(request_.timeout_ms) * 1e-3, request_.ranks.rank,
              request_.ranks.size);
      poll(nullptr, 0, 1);
    }
  }
  void await_message(MessageId message) {
    await("the message of where to meet",
          [&] { return link_->look(message) != MpiLink::State::kPending; });
  }

  const int* handle() const { return request_.communicator ? &*request_.communicator : nullptr; }

  MpiMeeting serve() {
    ServerAddress address{make_secret(), {}};
    MpiMeeting meeting;
    meeting.secret = address.secret;
    meeting.server = serve_group(false, "", address);
    const auto text = std::make_shared<Text>(kTextBytes);
    const std::string words = address.text();
    require(words.size() < kTextBytes, Errc::kSystem,
            "group: the addresses of this host take {} bytes, at most {}", words.size(),
            kTextBytes - 1);
    std::memcpy(text->data(), words.data(), words.size());
    std::vector<MessageId> messages;
    for (int peer = 1; peer < request_.ranks.size; ++peer) {
      messages.push_back(link_->send(peer, 0, {text, text->data(), kTextBytes}));
    }
    for (const MessageId message : messages) await_message(message);
    meeting.store = connect(address);
    return meeting;
  }

  MpiMeeting visit() {
    const auto text = std::make_shared<Text>(kTextBytes);
    await_message(link_->receive(0, 0, {text, text->data(), kTextBytes}));
    const auto address = ServerAddress::parse(reinterpret_cast<const char*>(text->data()));
    return {nullptr, connect(address), address.secret};
  }

  std::shared_ptr<Store> connect(const ServerAddress& address) {
    const Address reached = connect_to_group(address, deadline_, [] {}).address();
    return std::make_shared<SocketStore>(reached, address.secret, request_.timeout_ms, true);
  }

  const JoinRequest& request_;
  Deadline deadline_;
  std::shared_ptr<MpiLink> link_;
};

}  // namespace

MpiMeeting meet_over_mpi(const JoinRequest& request) { return Meet(request).run(); }

}  // namespace switchyard

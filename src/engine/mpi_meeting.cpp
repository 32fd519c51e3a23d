// SPDX-License-Identifier: Apache-2.0

#include "engine/mpi_meeting.h"

#include <poll.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <new>
#include <optional>
#include <utility>
#include <vector>

#include "core/fail.h"
#include "core/interrupt.h"
#include "engine/group_server.h"
#include "engine/mpi_messages.h"
#include "engine/reason.h"
#include "engine/remote_exit.h"
#include "transport/secret.h"
#include "transport/socket_store.h"

namespace switchyard {
namespace {

constexpr std::size_t kTextBytes = 4096;
using Text = std::vector<std::byte>;

// Longer words are cut.
std::shared_ptr<Text> text_of(const std::string& words) {
  const auto text = std::make_shared<Text>(kTextBytes);
  std::memcpy(text->data(), words.data(), std::min(words.size(), kTextBytes - 1));
  return text;
}

std::string refusal_text(const Error& error) {
  return fmt::format("{} {}", static_cast<int>(error.code()), error.what());
}

// What rank 0 says: who does not join, and why (a code and a message); or, with -1, what it has to
// say when all do.
struct Answer {
  int refuser = -1;
  std::string text{};

  std::string whole() const { return fmt::format("{} {}", refuser, text); }
  static Answer parse(const std::string& whole) {
    return {std::atoi(whole.c_str()), whole.substr(whole.find(' ') + 1)};
  }
  [[noreturn]] void fail(const RankInfo& ranks) const {
    const auto code = static_cast<Errc>(std::atoi(text.c_str()));
    const std::string message = text.substr(text.find(' ') + 1);
    if (refuser == ranks.rank) throw Error(code, message);
    throw Error(code, fmt::format("group: rank {} cannot join: {} (rank {} of {})", refuser,
                                  reason_for_others(message), ranks.rank, ranks.size));
  }
};

class Meet {
 public:
  explicit Meet(const JoinRequest& request)
      : request_(request), deadline_(Deadline::after_ms(request.timeout_ms)) {}

  /// `refusal`: why this rank does not join; empty: it does.
  MpiMeeting run(const std::string& refusal = "") {
    const std::string why = why_no_mpi_in_this_process();
    require(
        why.empty(), Errc::kNotAvailable,
        "group: {} started ranks on several hosts; set SWITCHYARD_STORE to tcp://host:port of "
        "rank 0's host and SWITCHYARD_SECRET on every rank (without them MPI would say where to "
        "meet, but {})",
        request_.ranks.source, why);
    const MpiModule& module = mpi_module();
    const std::string why_no_init = module.start_init(request_.timeout_ms, remote_exit::finish);
    require(why_no_init.empty(), Errc::kSystem, "group: {}", why_no_init);
    await("MPI_Init", [&] { return module.init_state() == MpiInit::kDone; });
    int rank = 0;
    int size = 0;
    module.place_in(handle(), rank, size);
    require(size == request_.ranks.size && rank == request_.ranks.rank, Errc::kInvalidArgument,
            "group: {} says rank {} of {}, but MPI says {} of {}", request_.ranks.source,
            request_.ranks.rank, request_.ranks.size, rank, size);
    std::string why_no_duplicate;
    link_ = module.duplicate(handle(), why_no_duplicate);
    require(link_ != nullptr, Errc::kSystem, "group: MPI_Comm_idup: {}", why_no_duplicate);
    await("MPI_Comm_idup", [&] { return link_->is_ready(); });
    return meet(refusal);
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
    await("what ranks say of where to meet",
          [&] { return link_->look(message) != MpiLink::State::kPending; });
  }

  const int* handle() const { return request_.communicator ? &*request_.communicator : nullptr; }

  // Without the last addresses of a host that has very many.
  static std::string text_that_fits(ServerAddress address) {
    while (address.text().size() > kTextBytes / 2 && address.addresses.size() > 1) {
      address.addresses.pop_back();
    }
    return address.text();
  }

  // Over MPI alone a rank can tell why it does not join, until it is connected to rank 0's store.
  MpiMeeting meet(std::string refusal) {
    MpiMeeting meeting;
    ServerAddress address;
    if (refusal.empty() && request_.ranks.rank == 0) {
      refusal = refusal_of([&] {
        address.secret = make_secret();
        meeting.server = serve_group({}, address);
      });
    }
    const bool is_served = meeting.server != nullptr;
    address = ServerAddress::parse(agree(refusal, is_served ? text_that_fits(address) : ""));
    meeting.secret = address.secret;
    agree(refusal_of([&] { meeting.store = connect(address); }), "");
    return meeting;
  }

  template <typename Action>
  static std::string refusal_of(Action&& action) {
    try {
      action();
      return "";
    } catch (const Error& error) {
      return refusal_text(error);
    } catch (const std::bad_alloc&) {
      return refusal_text(Error(Errc::kOutOfMemory, "group: no memory to meet the other ranks"));
    } catch (const std::exception& error) {
      return refusal_text(Error(Errc::kSystem, fmt::format("group: {}", error.what())));
    }
  }

  // Collective. Throws, on all ranks, the refusal of the first that has one; else what rank 0 says.
  std::string agree(const std::string& refusal, const std::string& words) {
    Answer answer;
    if (request_.ranks.rank == 0) {
      answer = first_refusal(refusal).value_or(Answer{-1, words});
      send_to_all(answer.whole());
    } else {
      const auto own = text_of(refusal);
      await_message(link_->send(0, 0, {own, own->data(), kTextBytes}));
      const auto text = std::make_shared<Text>(kTextBytes);
      await_message(link_->receive(0, 0, {text, text->data(), kTextBytes}));
      answer = Answer::parse(reinterpret_cast<const char*>(text->data()));
    }
    if (answer.refuser >= 0) answer.fail(request_.ranks);
    return answer.text;
  }

  std::optional<Answer> first_refusal(const std::string& own) {
    std::vector<std::string> refusals{own};
    for (std::string& other : receive_from_all()) refusals.push_back(std::move(other));
    for (std::size_t rank = 0; rank < refusals.size(); ++rank) {
      if (!refusals[rank].empty()) return Answer{static_cast<int>(rank), refusals[rank]};
    }
    return std::nullopt;
  }

  std::vector<std::string> receive_from_all() {
    std::vector<std::shared_ptr<Text>> texts;
    std::vector<MessageId> messages;
    for (int peer = 1; peer < request_.ranks.size; ++peer) {
      texts.push_back(std::make_shared<Text>(kTextBytes));
      messages.push_back(link_->receive(peer, 0, {texts.back(), texts.back()->data(), kTextBytes}));
    }
    for (const MessageId message : messages) await_message(message);
    std::vector<std::string> words;
    for (const auto& text : texts) words.emplace_back(reinterpret_cast<const char*>(text->data()));
    return words;
  }

  void send_to_all(const std::string& words) {
    const auto text = text_of(words);
    std::vector<MessageId> messages;
    for (int peer = 1; peer < request_.ranks.size; ++peer) {
      messages.push_back(link_->send(peer, 0, {text, text->data(), kTextBytes}));
    }
    for (const MessageId message : messages) await_message(message);
  }

  // There must be time left to tell the others that this rank does not reach rank 0.
  std::shared_ptr<Store> connect(const ServerAddress& address) {
    const Deadline deadline = Deadline::after_ms(deadline_.remaining_ms() / 4 * 3);
    const auto check = [] {
      require(!is_interrupted(), Errc::kAborted, "group: interrupted before every rank was there");
    };
    const Address reached = connect_to_group(address, deadline, check).address();
    return std::make_shared<SocketStore>(reached, address.secret, request_.timeout_ms, true);
  }

  const JoinRequest& request_;
  Deadline deadline_;
  std::shared_ptr<MpiLink> link_;
};

}  // namespace

MpiMeeting meet_over_mpi(const JoinRequest& request) { return Meet(request).run(); }

void refuse_over_mpi(const JoinRequest& request, const Error& why) noexcept {
  try {
    Meet(request).run(refusal_text(why));
  } catch (const std::exception&) {  // `why` itself, or that others did not come
  }
}

}  // namespace switchyard

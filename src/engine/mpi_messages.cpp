// SPDX-License-Identifier: Apache-2.0

#include "engine/mpi_messages.h"

#include <poll.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdlib>
#include <set>
#include <utility>

#include "core/fail.h"
#include "core/waiting.h"
#include "engine/remote_exit.h"

namespace switchyard {
namespace {

class MpiChannel final : public MessageChannel {
 public:
  /// `ranks`: in the link; `is_far`: on another host.
  MpiChannel(std::shared_ptr<SharedLink> shared, std::vector<int> ranks, std::vector<bool> is_far,
             int rank, int number, std::shared_ptr<std::atomic<std::int64_t>> bytes_to_other_hosts)
      : shared_(std::move(shared)),
        ranks_(std::move(ranks)),
        is_far_(std::move(is_far)),
        rank_(rank),
        first_tag_(number * ChannelNumbers::kTagsPerChannel),
        bytes_to_other_hosts_(std::move(bytes_to_other_hosts)) {}
  ~MpiChannel() override {
    for (const MessageId message : pending_) shared_->link->give_up(message);
  }

  MessageId send(int peer, int tag, const MessageBuffer& buffer) override {
    require_peer(peer, tag);
    if (buffer.size_bytes == 0) return 0;
    const Waiting waiting;
    if (is_far_[static_cast<std::size_t>(peer)]) {
      *bytes_to_other_hosts_ += static_cast<std::int64_t>(buffer.size_bytes);
    }
    return remember(shared_->link->send(in_link(peer), first_tag_ + tag, buffer));
  }
  MessageId receive(int peer, int tag, const MessageBuffer& buffer) override {
    require_peer(peer, tag);
    if (buffer.size_bytes == 0) return 0;
    const Waiting waiting;
    return remember(shared_->link->receive(in_link(peer), first_tag_ + tag, buffer));
  }
  bool is_done(MessageId message) override;
  void progress() override {
    const Waiting waiting;
    shared_->link->progress();
  }

 private:
  int in_link(int peer) const { return ranks_[static_cast<std::size_t>(peer)]; }
  MessageId remember(MessageId message) {
    pending_.insert(message);
    return message;
  }
  void require_peer(int peer, int tag) const {
    const int size = static_cast<int>(ranks_.size());
    require(peer >= 0 && peer < size && peer != rank_ && tag >= 0 && tag <= kMaxTag,
            Errc::kInternal,
            "message: rank {} of {} and tag {} from rank {}, must be a peer and 0 to {}", peer,
            size, tag, rank_, kMaxTag);
  }

  std::shared_ptr<SharedLink> shared_;
  std::vector<int> ranks_;
  std::vector<bool> is_far_;
  int rank_;
  int first_tag_;
  std::shared_ptr<std::atomic<std::int64_t>> bytes_to_other_hosts_;
  std::set<MessageId> pending_;
};

bool MpiChannel::is_done(MessageId message) {
  if (!pending_.contains(message)) return true;
  const Waiting waiting;
  const MpiLink::State state = shared_->link->look(message);
  require(state != MpiLink::State::kWrongSize, Errc::kInternal,
          "message: rank {} received one of another size than it expects", rank_);
  if (state == MpiLink::State::kDone) pending_.erase(message);
  return state == MpiLink::State::kDone;
}

// What an MPI library looks at when it initializes. Without any of them a process would be alone;
// processes of a torchrun that MPI started have those of one process of MPI's.
bool is_started_by_mpi() {
  if (std::getenv("TORCHELASTIC_RUN_ID") != nullptr) return false;
  constexpr std::array<const char*, 3> kNames{"OMPI_COMM_WORLD_SIZE", "PMIX_RANK", "PMI_RANK"};
  return std::any_of(kNames.begin(), kNames.end(),
                     [](const char* name) { return std::getenv(name) != nullptr; });
}

// The first rank's reason, on all; empty: all are well.
std::string agree(RemoteControl& control, const char* step, const std::string& why_not_here) {
  const std::vector<std::string> reasons =
      control.all_gather_text({Phase::kSetup, step}, why_not_here);
  for (std::size_t rank = 0; rank < reasons.size(); ++rank) {
    if (!reasons[rank].empty()) return fmt::format("rank {}: {}", rank, reasons[rank]);
  }
  return "";
}

// MPI_Finalize would wait for a rank that is lost, also where this one has left the group before.
void guard_finalize(RemoteControl& control) {
  control.when_ended([] { forbid_mpi_finalize(); });
  if (mpi_module().will_finalize()) control.listen_after_leaving();
}

// MPI_Init waits for every process of the job, and cannot be ended. Why it was not called.
std::string initialize(RemoteControl& control) {
  const MpiModule& module = mpi_module();
  const std::string why =
      agree(control, "MPI_Init", module.start_init(control.timeout_ms(), remote_exit::finish));
  if (!why.empty()) return why;
  remote_exit::precede_mpi();
  const Deadline deadline = Deadline::after_ms(control.timeout_ms());
  while (module.init_state() != MpiInit::kDone) {
    control.check_alive({Phase::kSetup, 0, -1});
    if (deadline.expired()) {
      const std::string reason =
          fmt::format("MPI_Init has not ended within {:.1f} s; every process of the job calls it",
                      static_cast<double>(control.timeout_ms()) * 1e-3);
      control.abort(Errc::kTimeout, -1, reason);
      fail(Errc::kTimeout, "group: {} (rank {} of {})", reason, control.rank(), control.size());
    }
    poll(nullptr, 0, 1);
  }
  return "";
}

std::string why_not_this_world(const RemoteControl& control) {
  int rank = 0;
  int size = 0;
  mpi_module().place_in(nullptr, rank, size);
  if (size == control.size()) return "";
  return fmt::format(
      "MPI_COMM_WORLD has {} processes, the group {}; make the group from a communicator of its "
      "ranks",
      size, control.size());
}

int largest(const std::vector<std::string>& numbers) {
  int found = 0;
  for (const std::string& text : numbers) {
    int number = 0;
    std::from_chars(text.data(), text.data() + text.size(), number);
    found = std::max(found, number);
  }
  return found;
}

// Each rank's number in the communicator.
std::vector<int> ranks_in(RemoteControl& control, const MpiLink& link) {
  std::vector<int> ranks;
  for (const std::string& text :
       control.all_gather_text({Phase::kSetup, "ranks of MPI"}, std::to_string(link.rank()))) {
    int rank = -1;
    std::from_chars(text.data(), text.data() + text.size(), rank);
    require(rank >= 0 && rank < link.size(), Errc::kInternal,
            "group: a rank says that it is number \"{}\" of {} of a communicator", text,
            link.size());
    ranks.push_back(rank);
  }
  return ranks;
}

}  // namespace

std::string why_no_mpi_in_this_process() {
  if (std::string why = why_no_mpi(); !why.empty()) return why;
  const MpiModule& module = mpi_module();
  switch (module.init_state()) {
    case MpiInit::kFinalized: return "MPI_Finalize was called before";
    case MpiInit::kDone: return module.why_not_here();
    case MpiInit::kRunning: return "";
    case MpiInit::kNone: break;
  }
  if (is_started_by_mpi()) return "";
  return "the process was not started by mpirun or by srun --mpi, and MPI is not initialized";
}

std::string why_no_communicators_here() {
  if (std::string why = why_no_mpi_in_this_process(); !why.empty()) return why;
  const MpiModule& module = mpi_module();
  if (module.init_state() == MpiInit::kDone) return "";
  return fmt::format(
      "MPI is not initialized in {}, which the MPI module uses; call MPI_Init_thread first, of the "
      "same MPI",
      module.library());
}

MpiMessages::MpiMessages(RemoteControl& control, std::shared_ptr<SharedLink> link,
                         std::vector<int> ranks, std::string why_not)
    : control_(control),
      shared_(std::move(link)),
      ranks_(std::move(ranks)),
      why_not_(std::move(why_not)) {
  if (shared_) control_.expect_messages();
}

std::unique_ptr<MessageChannel> MpiMessages::make_channel() {
  require(shared_ != nullptr, Errc::kNotAvailable,
          "group: ranks of several hosts exchange rows over MPI, but {}", why_not_);
  const int max_channels = ChannelNumbers::max_channels(shared_->link->max_tag());
  for (;;) {
    const int claimed = shared_->channels.claim();
    const int number =
        largest(control_.all_gather_text({Phase::kSetup, "channel"}, std::to_string(claimed)));
    require(
        number < max_channels, Errc::kNotSupported,
        "group: it has made {} channels, as many as the tags of MPI suffice for; make a new group",
        number);
    const bool is_taken = !shared_->channels.take(claimed, number);
    if (largest(control_.all_gather_text({Phase::kSetup, "taken channel"}, is_taken ? "1" : "0")) !=
        0)
      continue;
    std::vector<bool> is_far;
    for (int peer = 0; peer < control_.size(); ++peer) {
      is_far.push_back(control_.host_of(peer) != control_.host_of(control_.rank()));
    }
    return std::make_unique<MpiChannel>(shared_, ranks_, std::move(is_far), control_.rank(), number,
                                        byte_count());
  }
}

std::unique_ptr<MpiMessages> MpiMessages::for_subgroup(RemoteControl& control,
                                                       const std::vector<int>& members) const {
  std::vector<int> ranks;
  if (shared_) {
    for (const int member : members) ranks.push_back(ranks_[static_cast<std::size_t>(member)]);
    guard_finalize(control);
  }
  return std::make_unique<MpiMessages>(control, shared_, std::move(ranks), why_not_);
}

std::unique_ptr<MpiMessages> connect_over_mpi(RemoteControl& control, const int* fortran_handle) {
  std::string why = agree(control, "MPI module", why_no_mpi_in_this_process());
  if (why.empty()) {
    control.when_ended([] { forbid_mpi_finalize(); });  // MPI_Init waits likewise
    why = initialize(control);
  }
  if (why.empty()) guard_finalize(control);
  if (why.empty() && fortran_handle == nullptr) {
    why = agree(control, "MPI_COMM_WORLD", why_not_this_world(control));
  }
  auto shared = std::make_shared<SharedLink>();
  if (why.empty()) {
    std::string own;
    shared->link = mpi_module().duplicate(fortran_handle, own);
    why = agree(control, "communicator", own);
  }
  if (!why.empty()) return std::make_unique<MpiMessages>(control, nullptr, std::vector<int>(), why);
  control.expect_messages();
  control.wait({Phase::kSetup, 0, -1}, [&] { return shared->link->is_ready(); });
  std::vector<int> ranks = ranks_in(control, *shared->link);
  return std::make_unique<MpiMessages>(control, std::move(shared), std::move(ranks), "");
}

}  // namespace switchyard

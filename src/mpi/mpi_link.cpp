// SPDX-License-Identifier: Apache-2.0

#include "mpi/mpi_link.h"

#include <algorithm>
#include <array>

#include "mpi/mpi_process.h"

namespace switchyard::mpi {
namespace {

constexpr std::size_t kMaxPartBytes = std::size_t{1} << 30;

std::string text_of(int error) {
  std::array<char, MPI_MAX_ERROR_STRING> text{};
  int size = 0;
  MPI_Error_string(error, text.data(), &size);
  return text.data();
}

bool is_finalized() {
  int flag = 0;
  MPI_Finalized(&flag);
  return flag != 0;
}

// Links with messages that MPI may still touch stay until the process ends.
std::vector<std::shared_ptr<void>>& abandoned() {
  static auto& links = *new std::vector<std::shared_ptr<void>>;
  return links;
}

}  // namespace

std::shared_ptr<MpiLink> Link::start(MPI_Comm original, std::string& why) {
  const std::lock_guard lock(call_mutex());
  std::shared_ptr<Link> link(new Link);
  const ReturnedErrors returned(original);
  const int error =
      MPI_Comm_idup(original, &link->duplicate_->communicator, &link->duplicate_->request);
  if (error == MPI_SUCCESS) return link;
  why = text_of(error);
  return nullptr;
}

// Frees the communicator only where nothing is under way: that needs no other rank then.
Link::~Link() {
  if (is_copy()) return;
  const std::lock_guard lock(call_mutex());
  if (is_finalized()) return;
  if (is_ready_ && messages_.empty() && may_finalize()) {
    MPI_Comm_free(&duplicate_->communicator);
    return;
  }
  abandoned().push_back(std::make_shared<decltype(messages_)>(std::move(messages_)));
  if (is_ready_) return;
  abandoned().push_back(duplicate_);
  forbid_finalize();
}

bool Link::is_ready() {
  if (is_ready_) return true;
  const std::lock_guard lock(call_mutex());
  int is_done = 0;
  MPI_Test(&duplicate_->request, &is_done, MPI_STATUS_IGNORE);
  if (is_done == 0) return false;
  MPI_Comm_set_errhandler(duplicate_->communicator, MPI_ERRORS_RETURN);
  MPI_Comm_rank(duplicate_->communicator, &rank_);
  MPI_Comm_size(duplicate_->communicator, &size_);
  void* value = nullptr;
  int has_value = 0;
  // A predefined attribute: Open MPI has it at MPI_COMM_WORLD, and at no part of it.
  MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, &value, &has_value);
  max_tag_ = has_value != 0 ? *static_cast<int*>(value) : MessageChannel::kMaxTag;
  is_ready_ = true;
  return true;
}

MessageId Link::send(int peer, int tag, const MessageBuffer& buffer) {
  return start(peer, tag, buffer, false);
}

MessageId Link::receive(int peer, int tag, const MessageBuffer& buffer) {
  return start(peer, tag, buffer, true);
}

// Both ends cut a message in the same way: they know its size.
MessageId Link::start(int peer, int tag, const MessageBuffer& buffer, bool is_receive) {
  const std::lock_guard lock(call_mutex());
  const MessageId id = ++last_id_;
  MPI_Comm const communicator = duplicate_->communicator;
  Message& message = messages_[id];
  message = {buffer, 0, is_receive, false, false};
  for (std::size_t at = 0; at < buffer.size_bytes; at += kMaxPartBytes) {
    const auto num_bytes = static_cast<int>(std::min(buffer.size_bytes - at, kMaxPartBytes));
    MPI_Request request = MPI_REQUEST_NULL;
    ++message.num_parts;
    const int error =
        is_receive
            ? MPI_Irecv(buffer.data + at, num_bytes, MPI_BYTE, peer, tag, communicator, &request)
            : MPI_Issend(buffer.data + at, num_bytes, MPI_BYTE, peer, tag, communicator, &request);
    if (error != MPI_SUCCESS) continue;  // never done: the group's own connection says who is lost
    requests_.push_back(request);
    parts_.push_back({id, num_bytes});
  }
  return id;
}

void Link::progress() {
  const std::lock_guard lock(call_mutex());
  make_progress();
}

MpiLink::State Link::look(MessageId id) {
  const std::lock_guard lock(call_mutex());
  make_progress();
  const auto found = messages_.find(id);
  if (found == messages_.end()) return State::kDone;
  return found->second.has_wrong_size ? State::kWrongSize : State::kPending;
}

void Link::make_progress() {
  if (requests_.empty() || is_finalized()) return;
  int num_done = 0;
  std::vector<int> indices(requests_.size());
  std::vector<MPI_Status> statuses(requests_.size());
  const int error = MPI_Testsome(static_cast<int>(requests_.size()), requests_.data(), &num_done,
                                 indices.data(), statuses.data());
  if (num_done == MPI_UNDEFINED || num_done <= 0) return;
  const auto count = static_cast<std::size_t>(num_done);
  for (std::size_t i = 0; i < count; ++i) {
    const auto at = static_cast<std::size_t>(indices[i]);
    const bool has_failed = error == MPI_ERR_IN_STATUS && statuses[i].MPI_ERROR != MPI_SUCCESS;
    end_part(parts_[at], statuses[i], has_failed);
    parts_[at].message = 0;
  }
  std::size_t kept = 0;
  for (std::size_t at = 0; at < parts_.size(); ++at) {
    if (parts_[at].message == 0) continue;
    parts_[kept] = parts_[at];
    requests_[kept++] = requests_[at];
  }
  parts_.resize(kept);
  requests_.resize(kept);
}

// A part that failed because its peer is gone counts as pending: the group's own connection says
// who that is.
void Link::end_part(const Part& part, const MPI_Status& status, bool has_failed) {
  const auto found = messages_.find(part.message);
  if (found == messages_.end()) return;
  Message& message = found->second;
  int error_class = MPI_SUCCESS;
  if (has_failed) MPI_Error_class(status.MPI_ERROR, &error_class);
  if (message.is_receive && !message.is_given_up) {
    int num_bytes = 0;
    MPI_Get_count(&status, MPI_BYTE, &num_bytes);
    const bool is_short = !has_failed && num_bytes != part.num_bytes;
    if (is_short || error_class == MPI_ERR_TRUNCATE) {
      message.has_wrong_size = true;
      return;
    }
  }
  if (has_failed && !message.is_given_up) return;
  if (--message.num_parts == 0) messages_.erase(found);
}

void Link::give_up(MessageId id) {
  if (is_copy()) return;
  const std::lock_guard lock(call_mutex());
  const auto found = messages_.find(id);
  if (found == messages_.end() || is_finalized()) return;
  found->second.is_given_up = true;
  if (!found->second.is_receive) return;
  for (std::size_t at = 0; at < parts_.size(); ++at) {
    if (parts_[at].message == id) MPI_Cancel(&requests_[at]);
  }
}

}  // namespace switchyard::mpi

// SPDX-License-Identifier: Apache-2.0
//
// mpi_link.h: messages over a duplicate of a communicator, by MPI_Issend, MPI_Irecv and
// MPI_Testsome alone: no call waits for another rank.
#pragma once

#include <mpi.h>
#include <unordered_map>
#include <vector>

#include "core/service_thread.h"
#include "engine/mpi_module.h"

namespace switchyard::mpi {

class Link final : public MpiLink {
 public:
  /// Starts the duplication. Null, with the reason in `why`, when MPI refuses.
  static std::shared_ptr<MpiLink> start(MPI_Comm original, std::string& why);
  ~Link() override;

  bool is_ready() override;
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  int max_tag() const override { return max_tag_; }
  MessageId send(int peer, int tag, const MessageBuffer& buffer) override;
  MessageId receive(int peer, int tag, const MessageBuffer& buffer) override;
  State look(MessageId message) override;
  void progress() override;
  void give_up(MessageId message) override;

 private:
  struct Message {
    MessageBuffer buffer;
    int num_parts = 0;  // not done
    bool is_receive = false;
    bool is_given_up = false;
    bool has_wrong_size = false;
  };
  // Of a message: MPI counts bytes in an int.
  struct Part {
    MessageId message = 0;
    int num_bytes = 0;
  };

  // MPI writes here until the duplication has ended, which may be after the link.
  struct Duplicate {
    MPI_Comm communicator = MPI_COMM_NULL;
    MPI_Request request = MPI_REQUEST_NULL;
  };

  Link() = default;
  /// True in a forked child, which must not call MPI: the parent may be inside a call, and peers
  /// could not tell the two apart.
  bool is_copy() const { return !process_.is_this_one(); }
  MessageId start(int peer, int tag, const MessageBuffer& buffer, bool is_receive);
  void make_progress();
  void end_part(const Part& part, const MPI_Status& status, bool has_failed);

  std::shared_ptr<Duplicate> duplicate_ = std::make_shared<Duplicate>();
  bool is_ready_ = false;
  int rank_ = 0;
  int size_ = 0;
  int max_tag_ = 0;
  MessageId last_id_ = 0;
  std::unordered_map<MessageId, Message> messages_;  // pending, or of the wrong size
  std::vector<MPI_Request> requests_;                // of the parts, at equal places
  std::vector<Part> parts_;
  OwnProcess process_;
};

}  // namespace switchyard::mpi

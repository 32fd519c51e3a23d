// SPDX-License-Identifier: Apache-2.0
//
// mpi_messages.h: messages between ranks of any hosts, over MPI. A group and its subgroups share
// one communicator of the library's own; their channels differ by ranges of tags.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "engine/channel_numbers.h"
#include "engine/messages.h"
#include "engine/mpi_module.h"
#include "engine/remote_control.h"

namespace switchyard {

/// A communicator, and which of its tags are in use in this process.
struct SharedLink {
  std::shared_ptr<MpiLink> link;
  ChannelNumbers channels;
};

class MpiMessages final : public MessageSource {
 public:
  /// `ranks`: each rank of the group in the communicator. Without a link, `why_not` says why.
  MpiMessages(RemoteControl& control, std::shared_ptr<SharedLink> link, std::vector<int> ranks,
              std::string why_not);

  /// Errors: also kNotAvailable when there is no MPI, kNotSupported when its tags are used up.
  std::unique_ptr<MessageChannel> make_channel() override;

  /// For the ranks `members` of the group.
  std::unique_ptr<MpiMessages> for_subgroup(RemoteControl& control,
                                            const std::vector<int>& members) const;
  const std::string& why_not() const { return why_not_; }

 private:
  RemoteControl& control_;
  std::shared_ptr<SharedLink> shared_;
  std::vector<int> ranks_;
  std::string why_not_;
};

/// Why this process cannot use MPI: no module, not started by an MPI launcher, finalized. Empty if
/// it can.
std::string why_no_mpi_in_this_process();

/// Why it cannot use a communicator of the program's. Empty if it can.
std::string why_no_communicators_here();

/// Collective: all ranks learn whether each of them has MPI, initialize it where the program has
/// not, and duplicate MPI_COMM_WORLD, which must consist of the group's ranks, or the communicator
/// with `fortran_handle`. Errors: kTimeout, kPeerLost, kAborted.
std::unique_ptr<MpiMessages> connect_over_mpi(RemoteControl& control, const int* fortran_handle);

}  // namespace switchyard

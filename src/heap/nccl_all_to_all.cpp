// SPDX-License-Identifier: Apache-2.0

#include "heap/nccl_all_to_all.h"

#include <cstring>

#include "core/fail.h"
#include "heap/gather_or_fail.h"
#include "heap/heap.h"
#include "heap/nccl_api.h"
#include "heap/nccl_call.h"

namespace switchyard {
namespace {

// Released by its last user, which may be a helper thread.
struct Communicator {
  Communicator() = default;
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;
  ~Communicator() {
    if (comm != nullptr) nccl_calls().comm_abort(comm);  // needs no peer, unlike ncclCommDestroy
  }
  ncclComm_t comm = nullptr;
};

// The id of rank 0 as bytes, which the store accepts. The leading "-" keeps the text from being
// empty and from looking like a failure.
std::string id_text(int rank) {
  const NcclCalls& api = nccl_calls();
  if (rank != 0) return "-";
  ncclUniqueId id{};
  check_nccl(api.get_unique_id(&id), "ncclGetUniqueId");
  return "-" + std::string(id.internal, sizeof(id.internal));
}

ncclUniqueId id_of(const std::string& text) {
  ncclUniqueId id{};
  require(text.size() == 1 + sizeof(id.internal), Errc::kSystem,
          "nccl: an id of {} bytes, must be {}", text.size(), 1 + sizeof(id.internal));
  std::memcpy(id.internal, text.data() + 1, sizeof(id.internal));
  return id;
}

class GroupedCalls final : public NcclAllToAll {
 public:
  explicit GroupedCalls(std::shared_ptr<Communicator> communicator)
      : communicator_(std::move(communicator)) {}

  void enqueue(const AllToAllBytes& bytes, const std::byte* from, std::byte* to,
               cudaStream_t stream) override {
    const NcclCalls& api = nccl_calls();
    ncclComm_t comm = communicator_->comm;
    check_nccl(api.group_start(), "ncclGroupStart");
    for (std::size_t peer = 0; peer < bytes.sent.size(); ++peer) {
      const auto sent = static_cast<std::size_t>(bytes.sent[peer]);
      const auto received = static_cast<std::size_t>(bytes.received[peer]);
      const int rank = static_cast<int>(peer);
      if (sent > 0) check_nccl(api.send(from, sent, ncclInt8, rank, comm, stream), "ncclSend");
      if (received > 0) {
        check_nccl(api.receive(to, received, ncclInt8, rank, comm, stream), "ncclRecv");
      }
      from += sent;
      to += received;
    }
    check_nccl(api.group_end(), "ncclGroupEnd");
  }

 private:
  std::shared_ptr<Communicator> communicator_;
};

}  // namespace

std::unique_ptr<NcclAllToAll> make_nccl_all_to_all(Control& control, int device) {
  turn_nvls_off();
  const std::vector<std::string> texts =
      gather_or_fail(control, {Phase::kSetup, "NCCL id"}, [&] { return id_text(control.rank()); });
  auto communicator = std::make_shared<Communicator>();
  const auto join = [communicator, id = id_of(texts[0]), rank = control.rank(),
                     size = control.size()] {
    check_nccl(nccl_calls().comm_init_rank(&communicator->comm, size, id, rank),
               "ncclCommInitRank");
  };
  gather_or_fail(control, {Phase::kSetup, "NCCL"},
                 [&] { return run_within_deadline(control, device, join), std::string(); });
  return std::make_unique<GroupedCalls>(std::move(communicator));
}

}  // namespace switchyard

// SPDX-License-Identifier: Apache-2.0

#include "heap/nccl_heap.h"

#include "core/fail.h"
#include "cuda/base/check.h"
#include "heap/hex.h"
#include "heap/nccl_api.h"
#include "heap/nccl_call.h"
#include "heap/nccl_peers.h"

namespace switchyard {
namespace {

// What NCCL allocated; released by the heap or the helper thread, whichever ends last.
struct NcclState {
  NcclState() = default;
  NcclState(const NcclState&) = delete;
  NcclState& operator=(const NcclState&) = delete;
  ~NcclState() {
    int previous = 0;
    cudaGetDevice(&previous);
    cudaSetDevice(device);
    if (window != nullptr) nccl_api().window_deregister(comm, window);
    if (comm != nullptr) nccl_api().comm_abort(comm);  // needs no peer, unlike ncclCommDestroy
    if (memory != nullptr) nccl_api().mem_free(memory);
    cudaSetDevice(previous);
    cudaGetLastError();
  }

  int device = 0;
  ncclComm_t comm = nullptr;
  void* memory = nullptr;
  ncclWindow_t window = nullptr;
  std::vector<std::byte*> bases;
};

class NcclHeap final : public Heap {
 public:
  explicit NcclHeap(const HeapRequest& request)
      : Heap(HeapKind::kNccl, request), state_(std::make_shared<NcclState>()) {
    state_->device = device_;
  }
  ~NcclHeap() override {
    release([&] { state_.reset(); });
  }

  std::string place() override;
  void swap(const std::vector<std::string>& texts) override;
  void map(const std::vector<std::string>& texts) override;

 private:
  std::shared_ptr<NcclState> state_;
};

// "<version> <id>", the id on rank 0 only
std::string NcclHeap::place() {
  const std::string version = fmt::format("{} ", nccl_api().version);
  if (rank_ != 0) return version;
  ncclUniqueId id{};
  check_nccl(nccl_api().get_unique_id(&id), "ncclGetUniqueId");
  return version + to_hex(id.internal);
}

void NcclHeap::swap(const std::vector<std::string>& texts) {
  const std::size_t digits = texts[0].find(' ') + 1;
  for (std::size_t peer = 1; peer < texts.size(); ++peer) {
    require(texts[peer] == texts[0].substr(0, digits), Errc::kNotAvailable,
            "rank {} loads NCCL {}, but rank 0 NCCL {}", peer, texts[peer],
            texts[0].substr(0, digits));
  }
  ncclUniqueId id{};
  from_hex("an id of NCCL with", texts[0].substr(digits), id.internal);
  turn_nvls_off();
  run_within_deadline(
      engine_->control(), device_,
      [state = state_, id, rank = rank_, size = num_ranks(), bytes = mapped_bytes()] {
        check_nccl(nccl_api().comm_init_rank(&state->comm, size, id, rank), "ncclCommInitRank");
        const ncclResult_t result = nccl_api().mem_alloc(&state->memory, bytes);
        require(result == ncclSuccess, Errc::kOutOfMemory, "ncclMemAlloc: {} bytes: {}", bytes,
                nccl_api().get_error_string(result));
      });
}

void NcclHeap::map(const std::vector<std::string>& /*texts*/) {
  run_within_deadline(
      engine_->control(), device_, [state = state_, size = num_ranks(), bytes = mapped_bytes()] {
        check_nccl(nccl_api().window_register(state->comm, state->memory, bytes, &state->window,
                                              NCCL_WIN_COLL_SYMMETRIC),
                   "ncclCommWindowRegister");
        state->bases = nccl_peer_pointers(state->comm, state->window, size);
      });
  bases_ = state_->bases;
}

}  // namespace

std::unique_ptr<Heap> make_nccl_heap(const HeapRequest& request) {
  return std::make_unique<NcclHeap>(request);
}

}  // namespace switchyard

// SPDX-License-Identifier: Apache-2.0

#include "heap/nccl_peers.h"

#include "core/fail.h"

#include <nccl_device/impl/comm__types.h>

namespace switchyard {
namespace {

std::vector<std::byte*> ask_the_host(ncclWindow_t window, int num_ranks) {
  std::vector<std::byte*> pointers;
  for (int peer = 0; peer < num_ranks; ++peer) {
    void* pointer = nullptr;
    check_nccl(nccl_api().get_peer_device_pointer(window, 0, peer, &pointer),
               "ncclGetPeerDevicePointer");
    require(pointer != nullptr, Errc::kNotAvailable,
            "NCCL's window has no pointer to rank {}; the GPUs are not of one NVLink domain", peer);
    pointers.push_back(static_cast<std::byte*>(pointer));
  }
  return pointers;
}

// Where windows do not work, NCCL refuses a device communicator but accepts the registration.
void require_device_communicator(ncclComm_t comm, int num_ranks) {
  ncclDevCommRequirements requirements{};
  requirements.lsaBarrierCount = 1;
  ncclDevComm device{};
  check_nccl(nccl_api().dev_comm_create(comm, &requirements, &device), "ncclDevCommCreate");
  const int reached = device.lsaSize;
  check_nccl(nccl_api().dev_comm_destroy(comm, &device), "ncclDevCommDestroy");
  require(reached == num_ranks, Errc::kNotAvailable,
          "NCCL's window reaches {} of {} ranks; the GPUs are not of one NVLink domain", reached,
          num_ranks);
}

}  // namespace

std::vector<std::byte*> nccl_peer_pointers(ncclComm_t comm, ncclWindow_t window, int num_ranks) {
  require(window != nullptr, Errc::kNotAvailable,
          "NCCL registered no window and does not say why; NCCL_DEBUG=INFO may");
  if (nccl_api().get_peer_device_pointer != nullptr) return ask_the_host(window, num_ranks);
  require_device_communicator(comm, num_ranks);
  return resolve_by_kernel(window, num_ranks);
}

}  // namespace switchyard

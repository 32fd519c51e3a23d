// SPDX-License-Identifier: Apache-2.0
//
// shm_windows.h: windows of processes of one host: memfds, passed over the sockets between ranks.
#pragma once

#include "engine/shm_control.h"

namespace switchyard {

class ShmWindows final : public SharedWindowSource {
 public:
  explicit ShmWindows(ShmControl& control) : SharedWindowSource(control), control_(control) {}

  std::unique_ptr<Window> make_window(std::size_t bytes) override;
  bool can_swap_descriptors() const override { return true; }
  std::vector<Fd> swap_descriptors(const Fd& own, std::size_t bytes) override;

 private:
  void send_parcel(int to, const Parcel& parcel, int fd);
  Fd receive_parcel(int from, const Parcel& wanted);

  ShmControl& control_;
  std::uint64_t num_swaps_ = 0;
};

}  // namespace switchyard

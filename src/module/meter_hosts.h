// SPDX-License-Identifier: Apache-2.0
//
// meter_hosts.h: a meter's messages between GPUs of several hosts: those of a common start, and
// those of an exchange without the rest of it.
#pragma once

#include <memory>
#include <vector>

#include "switchyard/exchange_types.h"

#include "cuda/base/memory.h"
#include "device/device_meter.h"
#include "engine/control.h"
#include "heap/rank_links.h"
#include "plan/host_map.h"

namespace switchyard {

class MeterHosts {
 public:
  /// Collective, with this rank's GPU current. `control` must outlive the object. Errors: as
  /// make_rank_links.
  MeterHosts(Control& control, const HostMap& map);

  /// Collective, in stream order: waits for the ranks of other hosts whose tokens this rank
  /// forwards. When all ranks of a host have passed, every rank of the group is there.
  void meet(Stream stream);

  /// See DeviceMeter::host_messages.
  DeviceWork messages(const WireBytes& sent, DeviceQueue& queue);

  /// Ends what NCCL runs on the GPU. No other call may follow.
  void abort() noexcept { links_->abort(); }
  /// Instead, when all work of all ranks has ended: keeps the links for the next of this group.
  void leave() noexcept { keep_rank_links(control_, std::move(links_)); }

 private:
  /// One operation of an exchange, of this rank.
  struct Crossing {
    std::vector<LinkMessage> sent;
    std::vector<LinkMessage> received;
  };
  Crossing crossing(const std::vector<LinkMessage>& sent, const std::vector<LinkMessage>& received,
                    const std::vector<std::size_t>& bytes) const;
  static void place(Crossing& crossing, std::byte* next);

  Control& control_;
  std::vector<LinkMessage> as_source_;     ///< to forwarders, or back from them
  std::vector<LinkMessage> as_forwarder_;  ///< from sources, or back to them
  cuda::DeviceBuffer words_;
  Crossing meeting_;
  std::shared_ptr<RankLinks> links_;  ///< last: it ends before memory does
};

}  // namespace switchyard

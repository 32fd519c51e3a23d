// SPDX-License-Identifier: Apache-2.0
//
// device_carrier.h: Exchange as a carrier: inputs go up, rows that its counts name come home.
// Rank r has GPU (r mod number of GPUs).
#pragma once

#include <memory>

#include "switchyard/exchange.h"

#include "conformance/carrier.h"
#include "conformance/device_arena.h"
#include "conformance/exchange_case.h"
#include "device/device_queue.h"

namespace switchyard::conformance {

class DeviceCarrier final : public Carrier {
 public:
  /// Collective. Errors: as Exchange.
  DeviceCarrier(const Group& group, const ExchangeCase& test);

  const char* heap() const { return exchange_.heap(); }
  bool is_shared_gpu() const { return exchange_.is_shared_gpu(); }

  int dispatch_send(const TensorView& tokens, const TensorView& topk_ids,
                    const TensorView& topk_weights, const DispatchOptions& options) override;
  int dispatch_again_send(int earlier, const TensorView& tokens, const TensorView& topk_weights,
                          const DispatchOptions& options) override;
  Received dispatch_receive(int handle) override;
  Received dispatch(const TensorView& tokens, const TensorView& topk_ids,
                    const TensorView& topk_weights, const DispatchOptions& options) override;
  Received dispatch_again(int earlier, const TensorView& tokens, const TensorView& topk_weights,
                          const DispatchOptions& options) override;
  int reopen(int earlier) override;
  void combine_send(int handle, const TensorView& rows, const TensorView& row_weights) override;
  void combine_receive(int handle, const TensorView& output,
                       const CombineOptions& options) override;
  void combine(int handle, const TensorView& rows, const TensorView& output,
               const CombineOptions& options, const TensorView& row_weights) override;

 private:
  struct Sent {
    DispatchHandle handle;
    TensorView tensor_scale;  ///< as given
  };
  struct Arrived;  ///< host memory of what came

  int keep(const DispatchHandle& handle, const DispatchOptions& options);
  const Sent& at(int handle) const { return sent_[static_cast<std::size_t>(handle)]; }
  void begin();
  DispatchOptions up(const DispatchOptions& options);
  CombineOptions up(const CombineOptions& options);
  Received copy_to_host(int handle, const Dispatched& got);
  void bring_counts(const Dispatched& got, Arrived& to);
  void find_extents(const Dispatched& got, Arrived& to);
  void bring_rows(const Dispatched& got, Arrived& to);
  void bring_scales(const Dispatched& got, Arrived& to);
  void bring_routing(const Dispatched& got, Arrived& to);
  template <typename Extents>
  void copy_rows(const Extents& extents, const TensorView& from, void* to, std::size_t row_bytes);
  void finish();

  ExchangeConfig config_;
  std::unique_ptr<DeviceQueue> queue_;
  DeviceArena arena_;
  std::vector<Sent> sent_;
  int num_alive_ = 0;  ///< handles, whose inputs are in the arena
  Exchange exchange_;  // last: it ends before its memory
};

}  // namespace switchyard::conformance

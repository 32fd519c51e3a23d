// SPDX-License-Identifier: Apache-2.0
//
// exchange_probe.h: an Exchange as suites call it: arguments and what comes are in host memory,
// whatever device carries the rows.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "switchyard/exchange.h"

#include "conformance/arena.h"
#include "conformance/exchange_case.h"

namespace switchyard::conformance {

/// What came, on the host. Views are valid until the combine of the handle.
struct Received {
  DispatchHandle handle;
  Dispatched rows;
  bool is_from_gpu = false;
  std::vector<RowOrigin> origins{};      ///< on CPUs
  std::shared_ptr<const void> memory{};  ///< of the views, where the exchange does not own it
};

/// Changes what came, to see that a suite finds it.
struct Tamper {
  std::function<void(Received& received)> received;
  std::function<void(const TensorView& output, const TensorView& returned)> combined;
};

class ExchangeProbe {
 public:
  /// Collective. Errors: those of Exchange.
  ExchangeProbe(const Group& group, const ExchangeCase& test, Device device, Tamper tamper = {});

  const char* heap() const { return exchange_.heap(); }
  bool is_shared_gpu() const { return exchange_.is_shared_gpu(); }

  // Members are those of Exchange.
  DispatchHandle dispatch_send(const TensorView& tokens, const TensorView& topk_ids,
                               const TensorView& topk_weights, const DispatchOptions& options);
  DispatchHandle dispatch_again_send(const DispatchHandle& earlier, const TensorView& tokens,
                                     const TensorView& topk_weights,
                                     const DispatchOptions& options);
  Received dispatch_receive(const DispatchHandle& handle);
  Received dispatch(const TensorView& tokens, const TensorView& topk_ids,
                    const TensorView& topk_weights, const DispatchOptions& options);
  Received dispatch_again(const DispatchHandle& earlier, const TensorView& tokens,
                          const TensorView& topk_weights, const DispatchOptions& options);
  DispatchHandle reopen(const DispatchHandle& earlier);
  void combine_send(const DispatchHandle& handle, const TensorView& rows,
                    const TensorView& row_weights);
  void combine_receive(const DispatchHandle& handle, const TensorView& output,
                       const CombineOptions& options);
  void combine(const DispatchHandle& handle, const TensorView& rows, const TensorView& output,
               const CombineOptions& options, const TensorView& row_weights);
  void release(const DispatchHandle& handle);

 private:
  struct Arrived;  ///< host memory of what came to a GPU

  void begin();
  TensorView lend(const TensorView& rows);
  void take_back();
  DispatchOptions in(const DispatchOptions& options);
  CombineOptions in(const CombineOptions& options);
  Received received(const Dispatched& got);
  void copy_to_host(const Dispatched& got, Received& to);
  void copy_counts(const Dispatched& got, Arrived& to);
  void find_extents(const Dispatched& got, Arrived& to);
  void copy_rows(const Dispatched& got, Arrived& to);
  void copy_scales(const Dispatched& got, Arrived& to);
  void copy_routing(const Dispatched& got, Arrived& to);
  template <typename Extents>
  void copy_extents(const Extents& extents, const TensorView& from, void* to,
                    std::size_t row_bytes) const;
  void finish(const TensorView& output, const TensorView& returned);

  ExchangeConfig config_;
  bool host_counts_;  ///< each dispatch asks for them
  Tamper tamper_;
  Arena arena_;
  int num_alive_ = 0;  ///< handles, whose inputs are in the arena
  /// CPUs: split calls are given memory that is overwritten once the send phase has returned.
  bool copies_inputs_;
  std::vector<std::vector<std::byte>> lent_;
  Exchange exchange_;  // last: it ends before its memory
};

}  // namespace switchyard::conformance

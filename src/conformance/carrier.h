// SPDX-License-Identifier: Apache-2.0
//
// carrier.h: an exchange as suites call it: everything in host memory, whatever carries the rows.
// One suite and one oracle judge the exchange between CPUs and that between GPUs.
#pragma once

#include <memory>
#include <vector>

#include "switchyard/exchange.h"

namespace switchyard::conformance {

/// What came. Views are valid until the combine of the handle.
struct Received {
  int handle = -1;  ///< of the carrier
  Dispatched rows;  ///< without its own handle
  /// Loads, rows of ranks, waits and origins are told; GPUs keep them to themselves.
  bool has_host_facts = true;
  std::vector<RowOrigin> origins{};
  std::shared_ptr<const void> memory{};  ///< of the views, where no exchange owns it
};

/// Members are those of Exchange; handles are numbers.
class Carrier {
 public:
  Carrier() = default;
  Carrier(const Carrier&) = delete;
  Carrier& operator=(const Carrier&) = delete;
  virtual ~Carrier() = default;

  virtual int dispatch_send(const TensorView& tokens, const TensorView& topk_ids,
                            const TensorView& topk_weights, const DispatchOptions& options) = 0;
  virtual int dispatch_again_send(int earlier, const TensorView& tokens,
                                  const TensorView& topk_weights,
                                  const DispatchOptions& options) = 0;
  virtual Received dispatch_receive(int handle) = 0;
  virtual Received dispatch(const TensorView& tokens, const TensorView& topk_ids,
                            const TensorView& topk_weights, const DispatchOptions& options) = 0;
  virtual Received dispatch_again(int earlier, const TensorView& tokens,
                                  const TensorView& topk_weights,
                                  const DispatchOptions& options) = 0;
  virtual int reopen(int earlier) = 0;
  virtual void combine_send(int handle, const TensorView& rows, const TensorView& row_weights) = 0;
  virtual void combine_receive(int handle, const TensorView& output,
                               const CombineOptions& options) = 0;
  virtual void combine(int handle, const TensorView& rows, const TensorView& output,
                       const CombineOptions& options, const TensorView& row_weights) = 0;
};

/// Exchange itself. Collective.
std::unique_ptr<Carrier> make_host_carrier(const Group& group, const ExchangeConfig& config);

}  // namespace switchyard::conformance

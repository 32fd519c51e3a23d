// SPDX-License-Identifier: Apache-2.0
//
// exchange.h: what bindings over Exchange share: it, and its counts, rows and origins as Python
// objects.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "switchyard/exchange.h"

#include "owned.h"
#include "tensors.h"

#include <nanobind/nanobind.h>

namespace switchyard::python {

/// switchyard.ExpertRows: memory of `owner`.
struct PyExpertRows {
  ExpertRows rows;
  std::shared_ptr<const void> owner;
  Stream stream = Stream::host();

  PyTensor tensor(const TensorView& view) const { return {view, owner, stream}; }
};

/// A tensor of memory that `owner` keeps, or None for an absent view.
nb::object tensor_or_none(const TensorView& view, const std::shared_ptr<const void>& owner,
                          Stream stream);

/// HostCounts, copied: {"num_rows": ..., "rows_per_expert": [...], ...}, or None.
nb::object counts_or_none(const std::optional<HostCounts>& counts);

struct PyHandle {
  DispatchHandle handle;
  std::int64_t num_tokens = 0;
  std::vector<nb::object> held{};  ///< inputs of a phase whose other half has not run
  DType sent = DType::kBF16;       ///< of the rows of combine_send
};

struct PyDispatched {
  Dispatched received;
  std::shared_ptr<PyHandle> handle;
  std::shared_ptr<const void> owner;
  Stream stream = Stream::host();

  PyExpertRows experts() const { return {received.experts, owner, stream}; }
  nb::object tensor(const TensorView& view) const { return tensor_or_none(view, owner, stream); }
};

struct PyExchange {
  Owned<Exchange> exchange;
  int num_ranks = 0;

  Exclusive call() const { return {exchange.busy(), "Exchange"}; }
  std::shared_ptr<Exchange> live() const { return exchange.live("Exchange"); }
};

/// What combine and its like take: a Handle, or the Dispatched that has one. Errors:
/// kInvalidArgument.
PyHandle& handle_of(nb::handle value);

void bind_exchange_calls(nb::class_<PyExchange>& type);
/// ExchangeConfig, ExchangeOptions, the keywords of dispatch.
void bind_exchange_configs(nb::module_& m);
/// ExpertRows, HostCounts, Handle, Dispatched.
void bind_received(nb::module_& m);

}  // namespace switchyard::python

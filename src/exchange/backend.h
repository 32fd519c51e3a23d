// SPDX-License-Identifier: Apache-2.0
//
// backend.h: what stands behind Exchange: one implementation per way that rows travel. See
// exchange.h for what the calls do. Exchange has checked where tensors and streams lie.
#pragma once

#include <vector>

#include "switchyard/exchange.h"

namespace switchyard {

/// The arguments of a dispatch. `earlier`: a dispatch_again; it has the ids, topk_ids is absent.
struct DispatchCall {
  const TensorView& tokens;
  const TensorView& topk_ids;
  const TensorView& topk_weights;
  Stream stream;
  const DispatchOptions& options;
  const DispatchHandle* earlier = nullptr;

  const char* name() const { return earlier == nullptr ? "dispatch" : "dispatch_again"; }
};

/// The arguments of a combine; of its send phase without output, of its receive phase without rows.
struct CombineCall {
  const DispatchHandle& handle;
  const TensorView& rows;
  const TensorView& output;
  Stream stream;
  const CombineOptions& options;
};

/// An implementation whose end is collective closes itself in its destructor, if nobody did.
class ExchangeBackend {
 public:
  ExchangeBackend() = default;
  ExchangeBackend(const ExchangeBackend&) = delete;
  ExchangeBackend& operator=(const ExchangeBackend&) = delete;
  virtual ~ExchangeBackend() = default;

  virtual const ExchangeConfig& config() const = 0;
  virtual Device device() const = 0;
  virtual std::int64_t max_buffer_rows() const = 0;
  virtual ExchangeMemory memory() const = 0;
  virtual const char* heap() const = 0;
  virtual bool is_shared_gpu() const = 0;

  virtual DispatchHandle dispatch_send(const DispatchCall& call) = 0;
  virtual Dispatched dispatch_receive(const DispatchHandle& handle, Stream stream) = 0;
  virtual Dispatched places(const DispatchHandle& handle) const = 0;
  virtual Dispatched dispatch(const DispatchCall& call) = 0;
  virtual DispatchHandle reopen(const DispatchHandle& earlier, Stream stream) = 0;
  virtual void check_output(const CombineCall& call) const = 0;
  virtual TensorView combine_input(const DispatchHandle& handle) = 0;
  virtual void combine_send(const CombineCall& call) = 0;
  virtual void combine_receive(const CombineCall& call) = 0;
  virtual void combine(const CombineCall& call) = 0;
  virtual void release(const DispatchHandle& handle) = 0;
  virtual std::vector<RowOrigin> row_origins(const DispatchHandle& handle) const = 0;
  virtual void write_row_sources(const DispatchHandle& handle, const RowSources& sources,
                                 Stream stream) const = 0;
  virtual WireBytes wire_bytes(const DispatchHandle& handle) const = 0;
  virtual void check() const = 0;

  void close(bool waits_for_peers) {
    if (is_closed_) return;
    is_closed_ = true;
    end(waits_for_peers);
  }
  bool is_closed() const { return is_closed_; }

 private:
  /// See Exchange::close; once.
  virtual void end(bool waits_for_peers) = 0;

  bool is_closed_ = false;
};

}  // namespace switchyard

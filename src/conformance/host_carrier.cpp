// SPDX-License-Identifier: Apache-2.0

#include "conformance/carrier.h"

namespace switchyard::conformance {
namespace {

class HostCarrier final : public Carrier {
 public:
  HostCarrier(const Group& group, const ExchangeConfig& config) : exchange_(group, config) {}

  int dispatch_send(const TensorView& tokens, const TensorView& topk_ids,
                    const TensorView& topk_weights, const DispatchOptions& options) override {
    return keep(exchange_.dispatch_send(tokens, topk_ids, topk_weights, options));
  }
  int dispatch_again_send(int earlier, const TensorView& tokens, const TensorView& topk_weights,
                          const DispatchOptions& options) override {
    return keep(exchange_.dispatch_again_send(at(earlier), tokens, topk_weights, options));
  }
  Received dispatch_receive(int handle) override {
    return received(handle, exchange_.dispatch_receive(at(handle)));
  }
  Received dispatch(const TensorView& tokens, const TensorView& topk_ids,
                    const TensorView& topk_weights, const DispatchOptions& options) override {
    Dispatched got = exchange_.dispatch(tokens, topk_ids, topk_weights, options);
    const int handle = keep(got.handle);
    return received(handle, std::move(got));
  }
  Received dispatch_again(int earlier, const TensorView& tokens, const TensorView& topk_weights,
                          const DispatchOptions& options) override {
    Dispatched got = exchange_.dispatch_again(at(earlier), tokens, topk_weights, options);
    const int handle = keep(got.handle);
    return received(handle, std::move(got));
  }
  int reopen(int earlier) override { return keep(exchange_.reopen(at(earlier))); }
  void combine_send(int handle, const TensorView& rows, const TensorView& row_weights) override {
    exchange_.combine_send(at(handle), rows, row_weights);
  }
  void combine_receive(int handle, const TensorView& output,
                       const CombineOptions& options) override {
    exchange_.combine_receive(at(handle), output, options);
  }
  void combine(int handle, const TensorView& rows, const TensorView& output,
               const CombineOptions& options, const TensorView& row_weights) override {
    exchange_.combine(at(handle), rows, output, options, row_weights);
  }

 private:
  int keep(const DispatchHandle& handle) {
    handles_.push_back(handle);
    return static_cast<int>(handles_.size()) - 1;
  }
  const DispatchHandle& at(int handle) const { return handles_[static_cast<std::size_t>(handle)]; }
  Received received(int handle, Dispatched got) const {
    Received result;
    result.handle = handle;
    result.origins = exchange_.row_origins(got.handle);
    result.rows = std::move(got);
    return result;
  }

  Exchange exchange_;
  std::vector<DispatchHandle> handles_;
};

}  // namespace

std::unique_ptr<Carrier> make_host_carrier(const Group& group, const ExchangeConfig& config) {
  return std::make_unique<HostCarrier>(group, config);
}

}  // namespace switchyard::conformance

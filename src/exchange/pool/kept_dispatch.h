// SPDX-License-Identifier: Apache-2.0
//
// kept_dispatch.h: for calls that take their options one by one, as the drop-ins and the
// collectives do: a pool keeps an Exchange per configuration, and a dispatch may be used again or
// dropped.
#pragma once

#include <initializer_list>
#include <memory>
#include <utility>
#include <vector>

#include "switchyard/exchange.h"

#include "core/require_device.h"
#include "exchange/pool/tensor_pool.h"

namespace switchyard {

class ExchangePool {
 public:
  explicit ExchangePool(const Group& group, const ExchangeOptions& options = {})
      : group_(group), options_(options), results_(options.device) {}

  const Group& group() const { return group_; }
  Device device() const { return options_.device; }
  bool is_on_gpu() const { return options_.device.is_cuda(); }
  /// Memory of what calls hand out.
  const TensorPool& results() const { return results_; }

  /// Errors: kInvalidArgument when the stream or a tensor is of another device, and after close().
  void check_call(const char* function, Stream stream,
                  std::initializer_list<Argument> tensors) const;

  /// Collective when the configuration is new.
  std::shared_ptr<Exchange> get(const ExchangeConfig& config);

  /// Closes every exchange, in the order in which they were made.
  void close(bool waits_for_peers);

 private:
  Group group_;
  ExchangeOptions options_;
  TensorPool results_;
  std::vector<std::shared_ptr<Exchange>> exchanges_;
  bool is_closed_ = false;
};

/// One dispatch, which is released when the last owner of this object is gone.
///
/// On CPUs its routing is kept for later dispatches and combines. On GPUs it lasts only until the
/// in-flight slot is used again, so there the ids are sent again, which moves as many bytes.
class KeptDispatch {
 public:
  explicit KeptDispatch(std::shared_ptr<Exchange> exchange) : exchange_(std::move(exchange)) {}
  KeptDispatch(const KeptDispatch&) = delete;
  KeptDispatch& operator=(const KeptDispatch&) = delete;
  ~KeptDispatch() { release(); }

  Exchange& exchange() const { return *exchange_; }
  const DispatchHandle& handle() const { return handle_; }
  /// True while a receive or a combine is outstanding.
  bool is_open() const { return stage_ != Stage::kClosed; }

  /// The phases of dispatch; the second one in the stream of the first. Both in one call are one
  /// kernel on a GPU.
  void send(const TensorView& tokens, const TensorView& topk_ids, const TensorView& topk_weights,
            Stream stream, const DispatchOptions& options);
  Dispatched receive();
  Dispatched dispatch(const TensorView& tokens, const TensorView& topk_ids,
                      const TensorView& topk_weights, Stream stream,
                      const DispatchOptions& options);

  /// Dispatches with the same routing over `exchange`. Where the routing is not kept, or not by
  /// that exchange, `topk_ids` are sent again; rows arrive in the same places.
  Dispatched dispatch_again(const std::shared_ptr<Exchange>& exchange, const TensorView& tokens,
                            const TensorView& topk_ids, const TensorView& topk_weights,
                            Stream stream, const DispatchOptions& options);

  /// Rows are summed as they are, unweighted. A dispatch that has already been combined is
  /// reopened, on GPUs with `topk_ids`.
  void combine_send(const TensorView& rows, const TensorView& row_weights,
                    const TensorView& topk_ids, const TensorView& output, Stream stream,
                    const CombineOptions& options);
  void combine_receive(const TensorView& output, Stream stream, const CombineOptions& options);
  /// Both phases.
  void combine(const TensorView& rows, const TensorView& row_weights, const TensorView& topk_ids,
               const TensorView& output, Stream stream, const CombineOptions& options);

  /// Releases the received rows.
  void release() noexcept;

 private:
  enum class Stage { kClosed, kSent, kReceived, kReturned };

  void start(Stream stream, const DispatchOptions& options);
  Dispatched dispatch_over(const std::shared_ptr<Exchange>& exchange, const TensorView& tokens,
                           const TensorView& topk_ids, const TensorView& topk_weights,
                           Stream stream, const DispatchOptions& options);
  void reopen(const TensorView& topk_ids, const TensorView& output, Stream stream);

  std::shared_ptr<Exchange> exchange_;
  DispatchHandle handle_;
  Stage stage_ = Stage::kClosed;
  Stream stream_ = Stream::host();  ///< of the last dispatch, as the next three
  std::int64_t max_tokens_ = 0;
  bool host_counts_ = false;
  TensorView tensor_scale_;
};

/// `view` as a contiguous tensor of another shape with the same number of elements; absent stays
/// absent.
TensorView reshaped(const TensorView& view, DType dtype, std::initializer_list<std::int64_t> shape);

}  // namespace switchyard

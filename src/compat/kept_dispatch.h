// SPDX-License-Identifier: Apache-2.0
//
// kept_dispatch.h: what is behind the handles of the views. An Exchange has one fixed
// configuration, but views accept options per call, so a pool keeps one Exchange per configuration.
// Handles of an Exchange end with a combine, but those of a view may be used again or dropped.
#pragma once

#include <initializer_list>
#include <limits>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "switchyard/compat/deep_ep/event.h"
#include "switchyard/exchange.h"

#include "compat/tensor_pool.h"
#include "core/bytes.h"
#include "core/require_device.h"
#include "plan/permute.h"

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

/// Behind what the stream has so far; on CPUs empty.
deep_ep::EventOverlap event_behind(Stream stream);

/// `view` as a contiguous tensor of another shape with the same number of elements; absent stays
/// absent.
TensorView reshaped(const TensorView& view, DType dtype, std::initializer_list<std::int64_t> shape);

/// The counts [L] of a dispatch that was received on CPUs.
inline std::span<const std::int32_t> counts_of(const TensorView& num_rows) {
  return {num_rows.as<std::int32_t>(), static_cast<std::size_t>(num_rows.shape(0))};
}

/// An i32 tensor on CPUs with the values of a list.
template <typename List>
Tensor to_i32(const List& list) {
  Tensor tensor(DType::kI32, {static_cast<std::int64_t>(list.size())});
  std::int64_t i = 0;
  for (const std::int64_t value : list) {
    require(value >= std::numeric_limits<std::int32_t>::min() &&
                value <= std::numeric_limits<std::int32_t>::max(),
            Errc::kInvalidArgument, "dispatch: entry {} is {}, must fit in 32 bits", i, value);
    tensor.as<std::int32_t>()[i++] = static_cast<std::int32_t>(value);
  }
  return tensor;
}

/// `view` with another dtype of the same width; absent stays absent.
TensorView retyped(const TensorView& view, DType dtype);

/// The scheme of the caller's rows: e4m3 with opaque 4-byte scales, one per token or one per
/// cdiv(H, S) elements, passed and received as f32; bf16 without scales.
/// Errors: kInvalidArgument.
QuantScheme scheme_of_rows(const char* function, const TensorView& x, const TensorView& scales);

/// Errors: kInvalidArgument unless x is [T, H] and topk_idx [T, K].
void check_ids(const char* function, const TensorView& x, const TensorView& topk_idx);

/// Results, which the originals take in bf16 alone. Errors: kInvalidArgument.
void check_bf16(const char* function, const TensorView& x);

/// Ids of a tensor [T, K], for kernels.
IdTable ids_for_kernel(const TensorView& ids);

/// An i64 copy of ids [T, K], i32 or i64, on the device of the pool. On a GPU any negative id
/// becomes -1, and rows from *num_rows on, if it is given, become -1.
Tensor copy_ids(const char* function, const TensorPool& pool, const TensorView& ids, Stream stream,
                const TensorView& num_rows = {});

/// A copy of a contiguous tensor, from the pool.
Tensor copy_of(const TensorPool& pool, const TensorView& from, Stream stream);

/// True when `ids`, i32 or i64, equal those of the copy. On CPUs.
bool is_same_ids(const TensorView& ids, const TensorView& copy);

/// Errors: kInvalidArgument when the size does not fit in i32.
std::int32_t narrow_size(const char* function, const char* name, std::int64_t size);

/// Errors: kInvalidArgument for an alignment outside 1 to 2^31 - 1.
void check_alignment(const char* function, std::int64_t alignment);

/// Rows per expert, rounded up to the alignment.
std::vector<std::int64_t> aligned_counts(std::span<const std::int32_t> counts,
                                         std::int64_t alignment);

/// Errors: kInvalidArgument unless there are at most two.
void check_bias(const char* function, const std::vector<TensorView>& bias);

}  // namespace switchyard

// SPDX-License-Identifier: Apache-2.0
//
// kept_dispatch.h: what is behind the handles of the views. An Exchange has one fixed
// configuration, but views accept options per call, so a pool keeps one Exchange per configuration.
// Handles of an Exchange end with a combine, but those of a view may be used again or dropped.
#pragma once

#include <limits>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "switchyard/exchange.h"

#include "core/bytes.h"

namespace switchyard {

class ExchangePool {
 public:
  explicit ExchangePool(const Group& group) : group_(group) {}

  const Group& group() const { return group_; }

  /// Collective when the configuration is new.
  std::shared_ptr<Exchange> get(const ExchangeConfig& config);

 private:
  Group group_;
  std::vector<std::shared_ptr<Exchange>> exchanges_;
};

/// One dispatch, which is released when the last owner of this object is gone.
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

  void send(const TensorView& tokens, const TensorView& topk_ids, const TensorView& topk_weights,
            const DispatchOptions& options);
  Dispatched receive();

  /// Dispatches with the same routing over `exchange`. If that is not the exchange of the previous
  /// dispatch, `topk_ids` are sent again; rows arrive in the same places.
  Dispatched dispatch_again(const std::shared_ptr<Exchange>& exchange, const TensorView& tokens,
                            const TensorView& topk_ids, const TensorView& topk_weights,
                            const DispatchOptions& options);

  /// Rows are summed as they are, unweighted. A dispatch that has already been combined is
  /// reopened.
  void combine_send(const TensorView& rows, const TensorView& row_weights, const TensorView& output,
                    const CombineOptions& options);
  void combine_receive(const TensorView& output, const CombineOptions& options);

  /// Releases the received rows.
  void release() noexcept;

 private:
  enum class Stage { kClosed, kSent, kReceived, kReturned };

  std::shared_ptr<Exchange> exchange_;
  DispatchHandle handle_;
  Stage stage_ = Stage::kClosed;
};

/// `view` as a contiguous tensor of another shape with the same number of elements; absent stays
/// absent.
TensorView reshaped(const TensorView& view, DType dtype, std::initializer_list<std::int64_t> shape);

/// An i32 tensor with the values of a list.
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

/// An i64 copy of ids [T, K], i32 or i64.
Tensor copy_ids(const char* function, const TensorView& ids);

/// True when `ids`, i32 or i64, equal those of the copy.
bool is_same_ids(const TensorView& ids, const TensorView& copy);

/// Errors: kInvalidArgument when the size does not fit in i32.
std::int32_t narrow_size(const char* function, const char* name, std::int64_t size);

/// Rows per expert, rounded up to the alignment. Errors: kInvalidArgument for an alignment outside
/// 1 to 2^31 - 1.
std::vector<std::int64_t> aligned_counts(const char* function, std::span<const std::int32_t> counts,
                                         std::int64_t alignment);

/// Errors: kInvalidArgument unless there are at most two.
void check_bias(const char* function, const std::vector<TensorView>& bias);

}  // namespace switchyard

// SPDX-License-Identifier: Apache-2.0
//
// kept_dispatch.h: what stands behind the handles of the views. A view takes options by the call
// where an Exchange is fixed to one configuration, so a pool keeps an Exchange for each; and its
// handles may be used again, or dropped, where those of an Exchange end with a combine.
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

/// One dispatch, given up when the last owner of this object is gone.
class KeptDispatch {
 public:
  explicit KeptDispatch(std::shared_ptr<Exchange> exchange) : exchange_(std::move(exchange)) {}
  KeptDispatch(const KeptDispatch&) = delete;
  KeptDispatch& operator=(const KeptDispatch&) = delete;
  ~KeptDispatch() { release(); }

  Exchange& exchange() const { return *exchange_; }
  const DispatchHandle& handle() const { return handle_; }
  /// Waits for a receive or a combine.
  bool is_open() const { return stage_ != Stage::kClosed; }

  void send(const TensorView& tokens, const TensorView& topk_ids, const TensorView& topk_weights,
            const DispatchOptions& options);
  Dispatched receive();

  /// The same routing again, over `exchange`. Another one than before gets `topk_ids` anew, and
  /// places rows alike.
  Dispatched dispatch_again(const std::shared_ptr<Exchange>& exchange, const TensorView& tokens,
                            const TensorView& topk_ids, const TensorView& topk_weights,
                            const DispatchOptions& options);

  /// Rows are summed as they are. A dispatch that was combined before is opened again.
  void combine_send(const TensorView& rows, const TensorView& row_weights, const TensorView& output,
                    const CombineOptions& options);
  void combine_receive(const TensorView& output, const CombineOptions& options);

  /// Gives received rows up.
  void release() noexcept;

 private:
  enum class Stage { kClosed, kSent, kReceived, kReturned };

  std::shared_ptr<Exchange> exchange_;
  DispatchHandle handle_;
  Stage stage_ = Stage::kClosed;
};

/// `view` with another shape of as many elements, contiguous; absent stays absent.
TensorView reshaped(const TensorView& view, DType dtype, std::initializer_list<std::int64_t> shape);

/// i32 tensor with the values of a list.
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

/// The same elements by the name of another dtype as wide; absent stays absent.
TensorView retyped(const TensorView& view, DType dtype);

/// How the caller's rows travel: e4m3 with opaque scales of 4 bytes, one a token or a block of
/// cdiv(H, S), passed and received as f32; without scales bf16.
/// Errors: kInvalidArgument.
QuantScheme scheme_of_rows(const char* function, const TensorView& x, const TensorView& scales);

/// Errors: kInvalidArgument unless x is [T, H] and topk_idx [T, K].
void check_ids(const char* function, const TensorView& x, const TensorView& topk_idx);

/// i64 copy of [T, K] ids, i32 or i64.
Tensor copy_ids(const char* function, const TensorView& ids);

/// Whether `ids`, i32 or i64, are those of the copy.
bool is_same_ids(const TensorView& ids, const TensorView& copy);

/// Errors: kInvalidArgument when i32 cannot hold the size.
std::int32_t narrow_size(const char* function, const char* name, std::int64_t size);

/// Rows of each expert, rounded up. Errors: kInvalidArgument: an alignment below 1, overflow.
std::vector<std::int64_t> aligned_counts(const char* function, std::span<const std::int32_t> counts,
                                         std::int64_t alignment);

/// Errors: kInvalidArgument unless there are at most two.
void check_bias(const char* function, const std::vector<TensorView>& bias);

}  // namespace switchyard

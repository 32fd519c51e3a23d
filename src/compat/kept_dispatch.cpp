// SPDX-License-Identifier: Apache-2.0

#include "compat/kept_dispatch.h"

#include <limits>

#include "core/fail.h"
#include "core/format.h"
#include "plan/id_tensor.h"

namespace switchyard {

std::shared_ptr<Exchange> ExchangePool::get(const ExchangeConfig& config) {
  for (const auto& exchange : exchanges_) {
    if (exchange->config() == config) return exchange;
  }
  return exchanges_.emplace_back(std::make_shared<Exchange>(group_, config));
}

void KeptDispatch::send(const TensorView& tokens, const TensorView& topk_ids,
                        const TensorView& topk_weights, const DispatchOptions& options) {
  handle_ = exchange_->dispatch_send(tokens, topk_ids, topk_weights, options);
  stage_ = Stage::kSent;
}

Dispatched KeptDispatch::receive() {
  require(stage_ == Stage::kSent, Errc::kInvalidArgument,
          "dispatch: the hook was called before, must be called once");
  // A failed receive ends the dispatch on every rank.
  stage_ = Stage::kClosed;
  Dispatched received = exchange_->dispatch_receive(handle_);
  stage_ = Stage::kReceived;
  return received;
}

Dispatched KeptDispatch::dispatch_again(const std::shared_ptr<Exchange>& exchange,
                                        const TensorView& tokens, const TensorView& topk_ids,
                                        const TensorView& topk_weights,
                                        const DispatchOptions& options) {
  release();
  if (exchange == exchange_) {
    handle_ = exchange_->dispatch_again_send(handle_, tokens, topk_weights, options);
  } else {
    handle_ = exchange->dispatch_send(tokens, topk_ids, topk_weights, options);
    exchange_ = exchange;
  }
  stage_ = Stage::kSent;
  return receive();
}

void KeptDispatch::combine_send(const TensorView& rows, const TensorView& row_weights,
                                const TensorView& output, const CombineOptions& options) {
  if (stage_ == Stage::kClosed) {
    handle_ = exchange_->reopen(handle_);
    stage_ = Stage::kReceived;
  }
  exchange_->check_output(handle_, output, options);
  exchange_->combine_send(handle_, rows, row_weights, RowsAre::kWeighted);
  stage_ = Stage::kReturned;
}

void KeptDispatch::combine_receive(const TensorView& output, const CombineOptions& options) {
  // Arguments were checked before the rows were sent, so the handle ends here even after an error.
  stage_ = Stage::kClosed;
  exchange_->combine_receive(handle_, output, options);
}

void KeptDispatch::release() noexcept {
  if (stage_ == Stage::kClosed) return;
  stage_ = Stage::kClosed;
  try {
    exchange_->release(handle_);
  } catch (const Error&) {
    // The group has failed: there is nothing left to release.
  }
}

TensorView reshaped(const TensorView& view, DType dtype,
                    std::initializer_list<std::int64_t> shape) {
  return view.has_value() ? TensorView(view.data(), dtype, shape) : TensorView{};
}

TensorView retyped(const TensorView& view, DType dtype) {
  if (!view.has_value()) return {};
  return TensorView(view.data(), dtype, {view.shape(0), view.shape(1)},
                    {view.stride(0), view.stride(1)});
}

QuantScheme scheme_of_rows(const char* function, const TensorView& x, const TensorView& scales) {
  require(x.has_value() && x.num_dims() == 2, Errc::kInvalidArgument, "{}: x is {}, must be [T, H]",
          function, x);
  if (!scales.has_value()) {
    require(x.dtype() == DType::kBF16, Errc::kInvalidArgument,
            "{}: x is {} without scales, must be bf16, or e4m3 with scales", function, x);
    return schemes::kNone;
  }
  const std::int64_t hidden = x.shape(1);
  require(x.dtype() == DType::kE4M3 &&
              (scales.dtype() == DType::kI32 || scales.dtype() == DType::kF32) &&
              scales.num_dims() == 2 && scales.shape(0) == x.shape(0) && scales.shape(1) >= 1 &&
              scales.shape(1) <= hidden && hidden <= std::numeric_limits<std::int32_t>::max(),
          Errc::kInvalidArgument,
          "{}: x is {} with scales {}, must be e4m3 [T, H] with f32 or i32 [T, S]", function, x,
          scales);
  QuantScheme scheme = schemes::kFp8Block;
  scheme.block = static_cast<std::int32_t>(cdiv(hidden, scales.shape(1)));
  if (scales.shape(1) == 1) scheme = schemes::kFp8Token;
  require(num_scales(scheme, hidden) == scales.shape(1), Errc::kInvalidArgument,
          "{}: {} scales for {} elements, must be one for each block of as many elements", function,
          scales.shape(1), hidden);
  return scheme;
}

void check_ids(const char* function, const TensorView& x, const TensorView& topk_idx) {
  require(x.has_value() && x.num_dims() == 2 && topk_idx.has_value() && topk_idx.num_dims() == 2 &&
              topk_idx.shape(0) == x.shape(0),
          Errc::kInvalidArgument, "{}: x is {} and topk_idx {}, must be [T, H] and [T, K]",
          function, x, topk_idx);
}

Tensor copy_ids(const char* function, const TensorView& ids) {
  const IdTensor from(function, "topk_idx", ids);
  Tensor copy(DType::kI64, {ids.shape(0), ids.shape(1)});
  for (std::int64_t i = 0; i < ids.num_elements(); ++i) copy.as<std::int64_t>()[i] = from[i];
  return copy;
}

bool is_same_ids(const TensorView& ids, const TensorView& copy) {
  const bool is_id_tensor = ids.has_value() && ids.is_contiguous() && ids.num_dims() == 2 &&
                            (ids.dtype() == DType::kI64 || ids.dtype() == DType::kI32);
  if (!is_id_tensor || ids.shape(0) != copy.shape(0) || ids.shape(1) != copy.shape(1)) return false;
  const IdTensor given("is_same_ids", "ids", ids);
  const auto* kept = copy.as<std::int64_t>();
  for (std::int64_t i = 0; i < ids.num_elements(); ++i) {
    if (given[i] != kept[i]) return false;
  }
  return true;
}

std::int32_t narrow_size(const char* function, const char* name, std::int64_t size) {
  require(size >= 0 && size <= std::numeric_limits<std::int32_t>::max(), Errc::kInvalidArgument,
          "{}: {} is {}, must fit in 32 bits", function, name, size);
  return static_cast<std::int32_t>(size);
}

std::vector<std::int64_t> aligned_counts(const char* function, std::span<const std::int32_t> counts,
                                         std::int64_t alignment) {
  require(alignment >= 1 && alignment <= std::numeric_limits<std::int32_t>::max(),
          Errc::kInvalidArgument, "{}: expert_alignment is {}, must be from 1 to {}", function,
          alignment, std::numeric_limits<std::int32_t>::max());
  std::vector<std::int64_t> aligned;
  for (const std::int32_t count : counts) {
    aligned.push_back(align_up<std::int64_t>(count, alignment));
  }
  return aligned;
}

void check_bias(const char* function, const std::vector<TensorView>& bias) {
  require(bias.size() <= 2, Errc::kInvalidArgument, "{}: {} bias tensors, must be at most 2",
          function, bias.size());
}

}  // namespace switchyard

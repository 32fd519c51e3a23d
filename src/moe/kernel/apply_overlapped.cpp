// SPDX-License-Identifier: Apache-2.0

#include <memory>

#include "switchyard/micro_batches.h"
#include "switchyard/modular_kernel.h"

#include "core/bytes.h"
#include "core/even_parts.h"
#include "core/fail.h"
#include "core/format.h"
#include "core/require_device.h"
#include "device/cuda_module.h"

namespace switchyard {
namespace {

void check_rows(const TensorView& tensor, const char* name, std::int64_t num_tokens) {
  require(tensor.num_dims() == 2 && tensor.shape(0) == num_tokens, Errc::kInvalidArgument,
          "apply_overlapped: {} is {}, must have 2 dimensions and {} rows", name, tensor,
          num_tokens);
}

TensorView rows_of(const TensorView& tensor, std::int64_t begin, std::int64_t end) {
  const std::int64_t offset_bits = begin * tensor.stride(0) * bits_of(tensor.dtype());
  return TensorView(tensor.as<std::byte>() + offset_bits / 8, tensor.dtype(),
                    {end - begin, tensor.shape(1)}, {tensor.stride(0), tensor.stride(1)},
                    tensor.device());
}

// Other streams begin behind what `stream` has, and end before what comes next in it.
class Fork {
 public:
  Fork(bool is_needed, Stream stream) : stream_(stream) {
    if (is_needed) begin_ = cuda_module().record_event(stream);
  }
  void enter(Stream other) const {
    if (is_other(other)) cuda_module().wait_event(begin_.get(), other);
  }
  void join(Stream other) const {
    if (is_other(other)) {
      cuda_module().wait_event(cuda_module().record_event(other).get(), stream_);
    }
  }

 private:
  bool is_other(Stream other) const { return begin_ != nullptr && other != stream_; }

  Stream stream_;
  std::shared_ptr<void> begin_;
};

}  // namespace

void apply_overlapped(ModularKernel& kernel, const PrepareArguments& arguments,
                      const TensorView& output, int num_micro_batches, Stream stream) {
  const PrepareFinalize& prepare_finalize = kernel.prepare_finalize();
  const int most = prepare_finalize.num_micro_batches();
  require(num_micro_batches >= 0 && num_micro_batches <= most, Errc::kInvalidArgument,
          "apply_overlapped: num_micro_batches is {}, must be from 1 to {}; raise "
          "PrepareFinalizeConfig::num_micro_batches",
          num_micro_batches, most);
  require_stream("apply_overlapped", kernel.device(), stream);
  const std::int64_t count = num_micro_batches == 0 ? most : num_micro_batches;
  const std::int64_t num_tokens = arguments.hidden.num_dims() > 0 ? arguments.hidden.shape(0) : 0;
  check_rows(arguments.hidden, "hidden", num_tokens);
  check_rows(arguments.topk_ids, "topk_ids", num_tokens);
  check_rows(arguments.topk_weights, "topk_weights", num_tokens);
  check_rows(output, "output", num_tokens);

  PrepareArguments part = arguments;
  // Sizes follow the split. As every rank passes the same, ranks with other splits are found out.
  const std::int64_t max_tokens = arguments.max_tokens != 0
                                      ? arguments.max_tokens
                                      : prepare_finalize.max_num_tokens_per_rank().value_or(0);
  if (count > 1 && max_tokens > 0) part.max_tokens = cdiv(max_tokens, count);
  const Fork fork(kernel.device().is_cuda() && count > 1, stream);
  run_micro_batches(prepare_finalize.group(), static_cast<int>(count), [&](int m) {
    const Stream own_stream = count > 1 ? kernel.stream_of(m, stream) : stream;
    fork.enter(own_stream);
    const std::int64_t begin = part_begin(num_tokens, count, m);
    const std::int64_t end = part_begin(num_tokens, count, m + 1);
    PrepareArguments own = part;
    own.hidden = rows_of(arguments.hidden, begin, end);
    own.topk_ids = rows_of(arguments.topk_ids, begin, end);
    own.topk_weights = rows_of(arguments.topk_weights, begin, end);
    own.micro_batch = m;
    kernel.apply(own, rows_of(output, begin, end), own_stream);
  });
  for (int m = 0; m < count && count > 1; ++m) fork.join(kernel.stream_of(m, stream));
}

}  // namespace switchyard

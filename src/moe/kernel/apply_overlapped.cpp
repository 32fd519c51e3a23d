// SPDX-License-Identifier: Apache-2.0

#include "switchyard/micro_batches.h"
#include "switchyard/modular_kernel.h"

#include "core/bytes.h"
#include "core/even_parts.h"
#include "core/fail.h"
#include "core/format.h"

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

}  // namespace

void apply_overlapped(ModularKernel& kernel, const PrepareArguments& arguments,
                      const TensorView& output, int num_micro_batches) {
  const PrepareFinalize& prepare_finalize = kernel.prepare_finalize();
  const int most = prepare_finalize.num_micro_batches();
  require(num_micro_batches >= 0 && num_micro_batches <= most, Errc::kInvalidArgument,
          "apply_overlapped: num_micro_batches is {}, must be from 1 to {}; raise "
          "PrepareFinalizeConfig::num_micro_batches",
          num_micro_batches, most);
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
  run_micro_batches(prepare_finalize.group(), static_cast<int>(count), [&](int m) {
    const std::int64_t begin = part_begin(num_tokens, count, m);
    const std::int64_t end = part_begin(num_tokens, count, m + 1);
    PrepareArguments own = part;
    own.hidden = rows_of(arguments.hidden, begin, end);
    own.topk_ids = rows_of(arguments.topk_ids, begin, end);
    own.topk_weights = rows_of(arguments.topk_weights, begin, end);
    own.micro_batch = m;
    kernel.apply(own, rows_of(output, begin, end));
  });
}

}  // namespace switchyard

// SPDX-License-Identifier: Apache-2.0

#include "switchyard/permute.h"

#include <optional>
#include <span>

#include "switchyard/c/permute.h"
#include "switchyard/scale_layout.h"
#include "switchyard/weight_and_reduce.h"

#include "capi/layer_arguments.h"
#include "capi/memory.h"
#include "capi/names.h"
#include "capi/objects.h"
#include "capi/sized.h"

namespace switchyard::capi {
namespace {

PermuteOptions options_of(const sy_permute_options& from) {
  PermuteOptions options;
  options.expert_map = optional_view(from.expert_map, "expert_map");
  options.expert_num_tokens = optional_view(from.expert_num_tokens, "expert_num_tokens");
  options.alignment = from.alignment == 0 ? kDeepGemmAlignment : from.alignment;
  options.compat_padding = named(from.compat_padding, "compat_padding", CompatPadding::kNone);
  return options;
}

// M: on the host what the ids need, on a GPU what any ids may need.
std::int64_t num_permuted_rows(const TensorView& topk_ids, std::int32_t num_local_experts,
                               const PermuteOptions& options) {
  if (topk_ids.device().is_cuda()) {
    return num_local_experts == 0 ? 0
                                  : compute_aligned_m(topk_ids.shape(0), topk_ids.shape(1),
                                                      num_local_experts, options.alignment);
  }
  std::vector<std::int32_t> counts(static_cast<std::size_t>(num_local_experts));
  const TensorView view = TensorView::of(counts.data(), {num_local_experts});
  count_expert_num_tokens(topk_ids, view, options.expert_map);
  return expert_num_tokens_round_up_and_sum(view, options.alignment);
}

TensorView make_scales(PermutedObject& batch, const TensorView& scales, ScaleLayout layout,
                       std::int64_t num_rows, const Memory& memory) {
  check(scales.num_dims() == 2, "scales are {}, must be [T, S]", scales.describe());
  const std::int64_t width = scales.shape(1);
  batch.scales_memory = memory.make(scales.dtype(), {num_scale_elements(layout, num_rows, width)});
  return view_scales(batch.scales_memory.data(), scales.dtype(), layout, num_rows, width,
                     scales.device());
}

// Memory for everything that ep_scatter writes.
PermutedObject make_batch(const TensorView& x, const TensorView& scales, const TensorView& topk_ids,
                          std::int32_t num_local_experts, const PermuteOptions& options,
                          ScaleLayout layout, const Memory& memory) {
  const std::int64_t num_rows = num_permuted_rows(topk_ids, num_local_experts, options);
  const std::int64_t num_tokens = topk_ids.shape(0);
  const std::int64_t num_topk = topk_ids.shape(1);
  PermutedObject batch;
  batch.x = memory.make(x.dtype(), {num_rows, x.shape(1)});
  if (scales.has_value()) batch.scales = make_scales(batch, scales, layout, num_rows, memory);
  batch.m_indices = memory.make(DType::kI32, {num_rows});
  batch.inv_perm = memory.make(DType::kI32, {num_tokens, num_topk});
  batch.first_row = memory.make(DType::kI64, {num_local_experts});
  batch.expert_num_tokens = memory.make(DType::kI32, {num_local_experts});
  batch.num_rows = memory.make(DType::kI64, {1});
  if (x.device().is_cuda()) {
    const std::size_t bytes = ep_scatter_workspace_bytes(num_tokens, num_topk, num_local_experts);
    batch.workspace = memory.make(DType::kU8, {static_cast<std::int64_t>(bytes)});
  }
  return batch;
}

void scatter_into(PermutedObject& batch, const TensorView& x, const TensorView& scales,
                  const TensorView& topk_ids, const PermuteOptions& options, Stream stream) {
  const ScatterOutputs outputs{batch.x,        batch.scales,    batch.m_indices,
                               batch.inv_perm, batch.first_row, batch.expert_num_tokens,
                               batch.num_rows};
  const TensorView& workspace = batch.workspace;
  ep_scatter(x, scales, topk_ids, options, outputs, stream,
             {workspace.as<std::byte>(), workspace.has_value() ? workspace.num_bytes() : 0});
}

}  // namespace
}  // namespace switchyard::capi

using namespace switchyard;
using namespace switchyard::capi;

extern "C" {

sy_status sy_count_expert_tokens(const sy_tensor* topk_ids, const sy_tensor* expert_num_tokens,
                                 const sy_tensor* expert_map, void* stream,
                                 const sy_tensor* num_errors) {
  return call(__func__, [&] {
    const TensorView ids = view_of(topk_ids, "topk_ids");
    count_expert_num_tokens(ids, view_of(expert_num_tokens, "expert_num_tokens"),
                            optional_view(expert_map, "expert_map"),
                            stream_of(stream, ids.device()),
                            optional_view(num_errors, "num_errors"));
  });
}

sy_status sy_aligned_rows(int64_t num_tokens, int64_t num_topk, int64_t num_local_experts,
                          int64_t alignment, const sy_tensor* expert_num_tokens,
                          int64_t* num_rows) {
  return call(__func__, [&] {
    out(num_rows, "num_rows") =
        compute_aligned_m(num_tokens, num_topk, num_local_experts, alignment,
                          optional_view(expert_num_tokens, "expert_num_tokens"));
  });
}

sy_status sy_scatter(const sy_tensor* x, const sy_tensor* scales, const sy_tensor* topk_ids,
                     const sy_permute_options* options, const sy_scatter_outputs* outputs,
                     void* workspace, size_t workspace_bytes, void* stream,
                     const sy_tensor* num_errors) {
  return call(__func__, [&] {
    const TensorView rows = view_of(x, "x");
    const sy_scatter_outputs to = read_required(outputs, "outputs");
    const ScatterOutputs views{view_of(to.x, "outputs->x"),
                               optional_view(to.scales, "outputs->scales"),
                               view_of(to.m_indices, "m_indices"),
                               view_of(to.inv_perm, "inv_perm"),
                               view_of(to.first_row, "first_row"),
                               optional_view(to.expert_num_tokens, "expert_num_tokens"),
                               optional_view(to.num_rows, "num_rows")};
    ep_scatter(rows, optional_view(scales, "scales"), view_of(topk_ids, "topk_ids"),
               options_of(read_sized(options, "options")), views, stream_of(stream, rows.device()),
               workspace_of(workspace, workspace_bytes), optional_view(num_errors, "num_errors"));
  });
}

sy_status sy_scatter_workspace_bytes(int64_t num_tokens, int64_t num_topk,
                                     int64_t num_local_experts, size_t* bytes) {
  return call(__func__, [&] {
    out(bytes, "bytes") = ep_scatter_workspace_bytes(num_tokens, num_topk, num_local_experts);
  });
}

sy_status sy_gather(const sy_tensor* expert_output, const sy_tensor* topk_ids,
                    const sy_tensor* topk_weights, const sy_tensor* inv_perm,
                    const sy_tensor* expert_map, const sy_tensor* output, void* stream,
                    const sy_tensor* num_errors) {
  return call(__func__, [&] {
    const TensorView rows = view_of(expert_output, "expert_output");
    ep_gather(rows, view_of(topk_ids, "topk_ids"), optional_view(topk_weights, "topk_weights"),
              view_of(inv_perm, "inv_perm"), optional_view(expert_map, "expert_map"),
              view_of(output, "output"), stream_of(stream, rows.device()),
              optional_view(num_errors, "num_errors"));
  });
}

sy_status sy_permute(const sy_tensor* x, const sy_tensor* scales, const sy_tensor* topk_ids,
                     int32_t num_local_experts, const sy_permute_options* options,
                     const sy_allocator* allocator, void* stream, sy_permuted** permuted) {
  return call(__func__, [&] {
    sy_permuted*& result = out(permuted, "permuted");
    const TensorView rows = view_of(x, "x");
    const TensorView row_scales = optional_view(scales, "scales");
    const TensorView ids = view_of(topk_ids, "topk_ids");
    check(rows.num_dims() == 2 && ids.num_dims() == 2 && rows.shape(0) == ids.shape(0),
          "x is {} and topk_ids are {}, must be [T, H] and [T, K]", rows.describe(),
          ids.describe());
    check(num_local_experts >= 0, "num_local_experts is {}, must be at least 0", num_local_experts);
    const sy_permute_options given = read_sized(options, "options");
    const ScaleLayout layout = named(given.scale_layout, "scale_layout", ScaleLayout::kRowMajor);
    check(layout != ScaleLayout::kSwizzled,
          "scale_layout is \"swizzled\", must be row_major, column_major or column_major_aligned");
    const PermuteOptions how = options_of(given);
    PermutedObject batch = make_batch(rows, row_scales, ids, num_local_experts, how, layout,
                                      Memory(allocator, rows.device(), stream));
    scatter_into(batch, rows, row_scales, ids, how, stream_of(stream, rows.device()));
    result = give<sy_permuted>(std::move(batch));
  });
}

sy_status sy_permuted_tensors(sy_permuted* permuted, sy_scatter_outputs* tensors) {
  return call(__func__, [&] {
    const auto of = use(permuted);
    sy_scatter_outputs to{};
    to.x = of->held[0].set(of->x);
    to.scales = of->held[1].set(of->scales);
    to.m_indices = of->held[2].set(of->m_indices);
    to.inv_perm = of->held[3].set(of->inv_perm);
    to.first_row = of->held[4].set(of->first_row);
    to.expert_num_tokens = of->held[5].set(of->expert_num_tokens);
    to.num_rows = of->held[6].set(of->num_rows);
    write_sized(tensors, "tensors", to);
  });
}

sy_status sy_permuted_destroy(sy_permuted* permuted) { return destroy(__func__, permuted); }

sy_status sy_unpermute_and_reduce(const sy_tensor* expert_output, const sy_tensor* inv_perm,
                                  const sy_tensor* topk_weights, const sy_tensor* output,
                                  void* stream, const sy_tensor* num_errors) {
  return call(__func__, [&] {
    const TensorView rows = view_of(expert_output, "expert_output");
    unpermute_and_reduce(rows, view_of(inv_perm, "inv_perm"),
                         optional_view(topk_weights, "topk_weights"), view_of(output, "output"),
                         stream_of(stream, rows.device()), optional_view(num_errors, "num_errors"));
  });
}

sy_status sy_weight_and_reduce(const sy_weight_and_reduce_arguments* arguments,
                               const sy_tensor* output, void* workspace, size_t workspace_bytes,
                               void* stream, const sy_tensor* num_errors) {
  return call(__func__, [&] {
    const sy_weight_and_reduce_arguments from = read_required(arguments, "arguments");
    const WeightAndReduce policy{named(from.kind, "kind", WeightAndReduceKind::kDelegate),
                                 from.rank, from.skips_padding};
    const WeightAndReduceArguments given{
        view_of(from.expert_output, "expert_output"),
        optional_view(from.topk_weights, "topk_weights"), optional_view(from.topk_ids, "topk_ids"),
        optional_view(from.expert_map, "expert_map"), from.apply_router_weight_on_input};
    weight_and_reduce(
        policy, given, view_of(output, "output"), stream_of(stream, given.expert_output.device()),
        workspace_of(workspace, workspace_bytes), optional_view(num_errors, "num_errors"));
  });
}

sy_status sy_weight_and_reduce_workspace_bytes(const char* kind, int64_t num_tokens,
                                               int64_t num_topk, int64_t num_local_experts,
                                               size_t* bytes) {
  return call(__func__, [&] {
    out(bytes, "bytes") = weight_and_reduce_workspace_bytes(
        {named(text(kind, "kind"), "kind", WeightAndReduceKind::kDelegate)}, num_tokens, num_topk,
        num_local_experts);
  });
}

}  // extern "C"

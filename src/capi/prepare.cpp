// SPDX-License-Identifier: Apache-2.0

#include "switchyard/c/prepare.h"

#include <utility>

#include "switchyard/prepare_finalize_factory.h"

#include "capi/layer_arguments.h"
#include "capi/layer_config.h"
#include "capi/names.h"
#include "capi/objects.h"
#include "capi/sized.h"

namespace switchyard::capi {

PrepareArguments prepare_arguments_of(const sy_prepare_arguments* given) {
  const sy_prepare_arguments from = read_required(given, "arguments");
  PrepareArguments arguments;
  arguments.hidden = view_of(from.hidden, "hidden");
  arguments.topk_ids = view_of(from.topk_ids, "topk_ids");
  arguments.topk_weights = view_of(from.topk_weights, "topk_weights");
  arguments.apply_router_weight_on_input = from.apply_router_weight_on_input;
  arguments.micro_batch = from.micro_batch;
  arguments.defer_input_quant = from.defer_input_quant;
  arguments.weighs_in_place = from.weighs_in_place;
  arguments.max_tokens = from.max_tokens;
  arguments.host_counts = from.host_counts;
  arguments.copies_inputs = from.copies_inputs;
  return arguments;
}

namespace {

// The table stays the caller's.
PrepareFinalizeOptions options_of(const sy_prepare_options* given, std::int32_t num_experts) {
  const sy_prepare_options from = read_sized(given, "options");
  PrepareFinalizeOptions options;
  options.use_cudagraph = !from.no_use_cudagraph;
  options.nvfp4_dispatch = from.nvfp4_dispatch;
  if (from.global_to_physical != nullptr) {
    options.global_to_physical = {from.global_to_physical, static_cast<std::size_t>(num_experts)};
  }
  options.reduce = named<Reduce>(from.reduce, "reduce");
  options.scale_layout = named<ScaleLayout>(from.scale_layout, "scale_layout");
  options.expert_alignment = from.expert_alignment == 0 ? 1 : from.expert_alignment;
  options.num_micro_batches = from.num_micro_batches;
  if (from.wire_scheme != nullptr) options.wire_scheme = scheme_of(from.wire_scheme, "wire_scheme");
  options.defers_input_quant = from.defers_input_quant;
  options.exchange = exchange_options_of(from.exchange);
  return options;
}

FinalizeArguments finalize_arguments_of(const sy_finalize_arguments* given) {
  const sy_finalize_arguments from = read_required(given, "arguments");
  FinalizeArguments arguments;
  arguments.output = view_of(from.output, "output");
  arguments.expert_output = view_of(from.expert_output, "expert_output");
  arguments.weight_and_reduce.kind =
      named(from.weight_and_reduce, "weight_and_reduce", WeightAndReduceKind::kDelegate);
  arguments.micro_batch = from.micro_batch;
  arguments.shared = optional_view(from.shared, "shared");
  arguments.reduced = optional_view(from.reduced, "reduced");
  arguments.topk_weights = optional_view(from.topk_weights, "topk_weights");
  arguments.topk_ids = optional_view(from.topk_ids, "topk_ids");
  arguments.copies_inputs = from.copies_inputs;
  return arguments;
}

PrepareObject::MicroBatch& micro_batch_of(PrepareObject& object, std::int32_t micro_batch) {
  check(micro_batch >= 0 && micro_batch < std::ssize(object.micro_batches),
        "micro_batch is {}, must be from 0 to {}", micro_batch,
        std::ssize(object.micro_batches) - 1);
  return object.micro_batches[static_cast<std::size_t>(micro_batch)];
}

// Ends a send: its receive part, exactly once.
template <typename Result>
Result receive(std::optional<Pending<Result>>& pending, const char* send) {
  check(pending.has_value(), "nothing was sent for this micro-batch; call {} first", send);
  const Pending<Result> parts = std::move(*std::exchange(pending, std::nullopt));
  if (parts.hook) parts.hook();
  return parts.receiver();
}

void write_prepared(PrepareObject::MicroBatch& batch, const Prepared& from, sy_prepared* prepared) {
  auto& held = batch.held;
  const ExpertTokensMetadata metadata = from.metadata.value_or(ExpertTokensMetadata{});
  sy_prepared to{};
  to.rows = held[0].set(from.experts.rows);
  to.scales = held[1].set(from.experts.scales);
  to.tensor_scale = held[2].set(from.experts.tensor_scale);
  to.first_row = held[3].set(from.experts.first_row);
  to.num_rows = held[4].set(from.experts.num_rows);
  to.total_rows = held[5].set(from.total_rows);
  to.expert_num_tokens = held[6].set(metadata.expert_num_tokens);
  to.expert_num_tokens_cpu = held[7].set(metadata.expert_num_tokens_cpu);
  to.topk_ids = held[8].set(from.topk_ids);
  to.topk_weights = held[9].set(from.topk_weights);
  to.scheme = name_of_scheme(from.experts.scheme);
  to.scale_layout = name_of(from.experts.scale_layout);
  write_sized(prepared, "prepared", to);
}

Group group_of(sy_group* group, const MoEConfig& moe, const QuantConfig& quant,
               const PrepareFinalizeOptions& options) {
  if (group != nullptr) return *use(group);
  const PrepareKind kind = choose_prepare_finalize(moe, quant, options).kind;
  check(kind == PrepareKind::kLocal, "group is NULL, but the class is \"{}\", which needs one",
        name_of(kind));
  return {};
}

}  // namespace
}  // namespace switchyard::capi

using namespace switchyard;
using namespace switchyard::capi;

extern "C" {

sy_status sy_prepare_choose(const sy_moe_config* moe, sy_quant_config* quant,
                            const sy_prepare_options* options, sy_prepare_choice* choice) {
  return call(__func__, [&] {
    const MoEConfig sizes = moe_config_of(moe);
    const PrepareFinalizeChoice of = choose_prepare_finalize(
        sizes, quant_config_of(quant), options_of(options, sizes.num_experts));
    sy_prepare_choice to{};
    to.kind = name_of(of.kind);
    to.scheme = name_of_scheme(of.config.scheme);
    to.scale_layout = name_of(of.config.scale_layout);
    to.num_micro_batches = of.config.num_micro_batches;
    to.slices_experts = of.config.slices_experts;
    if (of.config.wire_scheme.has_value()) to.wire_scheme = name_of_scheme(*of.config.wire_scheme);
    write_sized(choice, "choice", to);
  });
}

sy_status sy_prepare_finalize_create(sy_group* group, const sy_moe_config* moe,
                                     sy_quant_config* quant, const sy_prepare_options* options,
                                     sy_prepare_finalize** prepare_finalize) {
  return call(__func__, [&] {
    sy_prepare_finalize*& result = out(prepare_finalize, "prepare_finalize");
    const MoEConfig sizes = moe_config_of(moe);
    const QuantConfig formats = quant_config_of(quant);
    const PrepareFinalizeOptions chosen = options_of(options, sizes.num_experts);
    auto made =
        make_prepare_finalize(group_of(group, sizes, formats, chosen), sizes, formats, chosen);
    const auto num_micro_batches = static_cast<std::size_t>(made->num_micro_batches());
    result = give<sy_prepare_finalize>(std::move(made),
                                       std::vector<PrepareObject::MicroBatch>(num_micro_batches));
  });
}

sy_status sy_prepare_finalize_describe(sy_prepare_finalize* prepare_finalize,
                                       sy_prepare_finalize_info* info) {
  return call(__func__, [&] {
    const auto handle = run(prepare_finalize);
    const PrepareFinalize& of = *handle->object;
    const ExchangeMemory bytes = of.memory();
    sy_prepare_finalize_info to{};
    to.kind = name_of(of.kind());
    to.activation_format = enum_name(of.activation_format());
    to.heap = of.heap();
    to.device = to_dlpack(of.device());
    to.hidden = of.hidden();
    to.max_buffer_rows = of.max_buffer_rows();
    to.max_num_tokens_per_rank = of.max_num_tokens_per_rank().value_or(-1);
    to.num_topk = of.num_topk();
    to.num_local_experts = of.num_local_experts();
    to.num_dispatchers = of.num_dispatchers();
    to.num_micro_batches = of.num_micro_batches();
    to.output_is_reduced = of.output_is_reduced();
    to.supports_async = of.supports_async();
    to.is_shared_gpu = of.is_shared_gpu();
    to.window_bytes = bytes.window_bytes;
    to.receive_bytes = bytes.receive_bytes;
    to.expert_map = handle->expert_map.set(of.expert_map());
    write_sized(info, "info", to);
  });
}

sy_status sy_prepare(sy_prepare_finalize* prepare_finalize, const sy_prepare_arguments* arguments,
                     void* stream, sy_prepared* prepared) {
  return call(__func__, [&] {
    const auto handle = run(prepare_finalize);
    const PrepareArguments given = prepare_arguments_of(arguments);
    auto& batch = micro_batch_of(*handle, given.micro_batch);
    checked_struct_size(&out(prepared, "prepared"), "prepared");
    const Prepared rows =
        handle->object->prepare(given, stream_of(stream, handle->object->device()));
    write_prepared(batch, rows, prepared);
  });
}

sy_status sy_prepare_send(sy_prepare_finalize* prepare_finalize,
                          const sy_prepare_arguments* arguments, void* stream) {
  return call(__func__, [&] {
    const auto handle = run(prepare_finalize);
    const PrepareArguments given = prepare_arguments_of(arguments);
    auto& batch = micro_batch_of(*handle, given.micro_batch);
    batch.prepare =
        handle->object->prepare_async(given, stream_of(stream, handle->object->device()));
  });
}

sy_status sy_prepare_receive(sy_prepare_finalize* prepare_finalize, int32_t micro_batch,
                             sy_prepared* prepared) {
  return call(__func__, [&] {
    const auto handle = run(prepare_finalize);
    auto& batch = micro_batch_of(*handle, micro_batch);
    checked_struct_size(&out(prepared, "prepared"), "prepared");
    write_prepared(batch, receive(batch.prepare, "sy_prepare_send"), prepared);
  });
}

sy_status sy_finalize(sy_prepare_finalize* prepare_finalize, const sy_finalize_arguments* arguments,
                      void* stream) {
  return call(__func__, [&] {
    const auto handle = run(prepare_finalize);
    handle->object->finalize(finalize_arguments_of(arguments),
                             stream_of(stream, handle->object->device()));
  });
}

sy_status sy_finalize_send(sy_prepare_finalize* prepare_finalize,
                           const sy_finalize_arguments* arguments, void* stream) {
  return call(__func__, [&] {
    const auto handle = run(prepare_finalize);
    const FinalizeArguments given = finalize_arguments_of(arguments);
    auto& batch = micro_batch_of(*handle, given.micro_batch);
    batch.finalize =
        handle->object->finalize_async(given, stream_of(stream, handle->object->device()));
  });
}

sy_status sy_finalize_receive(sy_prepare_finalize* prepare_finalize, int32_t micro_batch) {
  return call(__func__, [&] {
    const auto handle = run(prepare_finalize);
    receive(micro_batch_of(*handle, micro_batch).finalize, "sy_finalize_send");
  });
}

sy_status sy_prepare_finalize_abandon(sy_prepare_finalize* prepare_finalize, int32_t micro_batch,
                                      const char* reason) {
  return call(__func__, [&] {
    const auto handle = run(prepare_finalize);
    micro_batch_of(*handle, micro_batch);
    handle->object->abandon(micro_batch, text(reason, "reason"));
  });
}

sy_status sy_prepare_finalize_check(sy_prepare_finalize* prepare_finalize) {
  return call(__func__, [&] { run(prepare_finalize)->object->check(); });
}

sy_status sy_prepare_finalize_close(sy_prepare_finalize* prepare_finalize, bool waits_for_peers) {
  return call(__func__, [&] { use(prepare_finalize)->close(waits_for_peers); });
}

sy_status sy_prepare_finalize_destroy(sy_prepare_finalize* prepare_finalize) {
  return destroy(__func__, prepare_finalize);
}

}  // extern "C"

// SPDX-License-Identifier: Apache-2.0
//
// kernel.cpp: the router, and the whole layer.

#include "switchyard/c/kernel.h"

#include <utility>

#include "switchyard/micro_batches.h"
#include "switchyard/modular_kernel.h"
#include "switchyard/router.h"

#include "capi/layer_arguments.h"
#include "capi/names.h"
#include "capi/objects.h"
#include "capi/sized.h"

namespace switchyard::capi {
namespace {

RouterConfig router_config_of(const sy_router_config* given) {
  const sy_router_config from = read_required(given, "config");
  RouterConfig config;
  config.num_experts = from.num_experts;
  config.num_topk = from.num_topk;
  config.scoring = named(from.scoring, "scoring", Scoring::kSoftmax);
  config.norm_topk_prob = from.norm_topk_prob;
  config.norm_min = from.norm_min;
  config.bias_on_logits = from.bias_on_logits;
  config.jitter = from.jitter;
  config.routed_scaling_factor =
      from.routed_scaling_factor == 0 ? 1.0f : from.routed_scaling_factor;
  config.group_selection = named(from.group_selection, "group_selection", GroupSelection::kNone);
  config.num_groups = from.num_groups == 0 ? 1 : from.num_groups;
  config.topk_groups = from.topk_groups == 0 ? 1 : from.topk_groups;
  return config;
}

// Checks every handle before any of them ends.
SharedExpert shared_expert_of(const sy_shared_expert& from) {
  SharedExpert shared;
  shared.gate = optional_view(from.gate, "gate");
  shared.order =
      from.no_overlap ? SharedExpertsOrder::kNoOverlap : SharedExpertsOrder::kMkInternalOverlapped;
  shared.experts = std::move(take(from.experts, Finding::kEndIdle)->object);
  return shared;
}

}  // namespace
}  // namespace switchyard::capi

using namespace switchyard;
using namespace switchyard::capi;

extern "C" {

sy_status sy_router_logits(const sy_tensor* hidden, const sy_tensor* gate,
                           const sy_tensor* logits) {
  return call(__func__, [&] {
    router_logits(view_of(hidden, "hidden"), view_of(gate, "gate"), view_of(logits, "logits"));
  });
}

sy_status sy_select_experts(const sy_router_config* config, const sy_tensor* logits,
                            const sy_tensor* bias, const sy_tensor* topk_ids,
                            const sy_tensor* topk_weights) {
  return call(__func__, [&] {
    select_experts(router_config_of(config), view_of(logits, "logits"), optional_view(bias, "bias"),
                   view_of(topk_ids, "topk_ids"), view_of(topk_weights, "topk_weights"));
  });
}

sy_status sy_kernel_create(sy_prepare_finalize* prepare_finalize, sy_experts* experts,
                           const sy_shared_expert* shared, sy_kernel** kernel) {
  return call(__func__, [&] {
    sy_kernel*& result = out(kernel, "kernel");
    const sy_shared_expert from = read_sized(shared, "shared");
    run(prepare_finalize);
    use(experts);
    check(shared == nullptr || from.experts != experts,
          "shared->experts are the routed experts, must be others");
    if (shared != nullptr) use(from.experts);
    SharedExpert shared_expert;
    if (shared != nullptr) shared_expert = shared_expert_of(from);
    auto moves = std::move(take(prepare_finalize, Finding::kEndIdle)->object().object);
    auto computes = std::move(take(experts, Finding::kEndIdle)->object);
    result = give<sy_kernel>(std::move(moves), std::move(computes), std::move(shared_expert));
  });
}

sy_status sy_kernel_describe(sy_kernel* kernel, sy_kernel_info* info) {
  return call(__func__, [&] {
    const auto of = run(kernel);
    sy_kernel_info to{};
    to.device = to_dlpack(of->device());
    to.workspace_bytes = of->workspace_bytes();
    to.num_micro_batches = of->prepare_finalize().num_micro_batches();
    to.is_capturable = of->is_capturable();
    write_sized(info, "info", to);
  });
}

sy_status sy_kernel_apply(sy_kernel* kernel, const sy_prepare_arguments* arguments,
                          const sy_tensor* output, void* stream) {
  return call(__func__, [&] {
    const auto of = run(kernel);
    of->apply(prepare_arguments_of(arguments), view_of(output, "output"),
              stream_of(stream, of->device()));
  });
}

sy_status sy_kernel_apply_overlapped(sy_kernel* kernel, const sy_prepare_arguments* arguments,
                                     const sy_tensor* output, int32_t num_micro_batches,
                                     void* stream) {
  return call(__func__, [&] {
    const auto of = run(kernel);
    apply_overlapped(*of, prepare_arguments_of(arguments), view_of(output, "output"),
                     num_micro_batches, stream_of(stream, of->device()));
  });
}

sy_status sy_kernel_check(sy_kernel* kernel) {
  return call(__func__, [&] { run(kernel)->check(); });
}

sy_status sy_kernel_close(sy_kernel* kernel, bool waits_for_peers) {
  return call(__func__, [&] { use(kernel)->close(waits_for_peers); });
}

sy_status sy_kernel_destroy(sy_kernel* kernel) { return destroy(__func__, kernel); }

}  // extern "C"

// SPDX-License-Identifier: Apache-2.0
//
// exchange.cpp: the exchange itself; dispatch.cpp has its calls.

#include "switchyard/exchange.h"

#include <optional>

#include "switchyard/c/exchange.h"

#include "capi/layer_config.h"
#include "capi/names.h"
#include "capi/objects.h"
#include "capi/sized.h"

namespace switchyard::capi {
namespace {

// Far beyond any use: more is a field that was never set.
constexpr std::size_t kMaxPayloads = 1024;
constexpr std::size_t kMaxRanks = 1 << 20;

}  // namespace

ExchangeConfig exchange_config_of(const sy_exchange_config* given) {
  const sy_exchange_config from = read_required(given, "config");
  check(from.num_payloads <= kMaxPayloads, "num_payloads is {}, must be at most {}",
        from.num_payloads, kMaxPayloads);
  check(from.num_payloads == 0 || from.payload_bytes != nullptr,
        "payload_bytes is NULL, must be {} sizes", from.num_payloads);
  check(from.num_experts_per_rank <= kMaxRanks, "num_experts_per_rank is {}, must be at most {}",
        from.num_experts_per_rank, kMaxRanks);
  ExchangeConfig config;
  config.num_experts = from.num_experts;
  config.num_topk = from.num_topk;
  const auto held = span_of(from.experts_per_rank, from.num_experts_per_rank, "experts_per_rank");
  config.experts_per_rank.assign(held.begin(), held.end());
  config.hidden = from.hidden;
  config.max_tokens_per_rank = from.max_tokens_per_rank;
  config.layout = named(from.layout, "layout", Layout::kExpanded);
  config.slices_experts = from.slices_experts;
  config.scheme = wire_scheme_of(from.scheme, "scheme", from.row_dtype, "row_dtype");
  config.scale_layout = named(from.scale_layout, "scale_layout", ScaleLayout::kRowMajor);
  config.payload_bytes.assign(from.payload_bytes, from.payload_bytes + from.num_payloads);
  config.reduce = named(from.reduce, "reduce", Reduce::kPerRank);
  config.combine_scheme =
      wire_scheme_of(from.combine_scheme, "combine_scheme", from.combine_dtype, "combine_dtype");
  config.sends_weights = !from.no_sends_weights;
  config.expert_alignment = from.expert_alignment == 0 ? 1 : from.expert_alignment;
  config.worst_case_rows = from.worst_case_rows;
  config.zero_padding = from.zero_padding;
  config.capacity = from.capacity;
  config.overflow = named(from.overflow, "overflow", Overflow::kError);
  config.max_in_flight = from.max_in_flight == 0 ? 1 : from.max_in_flight;
  return config;
}

ExchangeOptions exchange_options_of(const sy_exchange_options* given) {
  const sy_exchange_options from = read_sized(given, "exchange options");
  ExchangeOptions options;
  options.device = device_or_cpu(from.device, "device");
  options.timeout_ms = from.timeout_ms;
  options.num_ctas = from.num_ctas;
  options.programmatic_launch = !from.no_programmatic_launch;
  options.heap = text_or_empty(from.heap);
  options.exact_memory = from.exact_memory;
  options.keeps_routing = from.keeps_routing;
  options.host_capacity = from.host_capacity;
  options.exact_messages = from.exact_messages;
  return options;
}

}  // namespace switchyard::capi

using namespace switchyard;
using namespace switchyard::capi;

extern "C" {

sy_status sy_exchange_plan(const sy_exchange_config* config, int32_t num_ranks, int32_t rank,
                           sy_exchange_memory* memory) {
  return call(__func__, [&] {
    const ExchangeMemory bytes = exchange_memory(exchange_config_of(config), num_ranks, rank);
    write_sized(memory, "memory", {0, bytes.window_bytes, bytes.receive_bytes});
  });
}

sy_status sy_exchange_plan_hosts(const sy_exchange_config* config, const int32_t* hosts,
                                 size_t num_ranks, int32_t rank, sy_exchange_memory* memory) {
  return call(__func__, [&] {
    check(num_ranks <= kMaxRanks, "num_ranks is {}, must be at most {}", num_ranks, kMaxRanks);
    const ExchangeMemory bytes =
        exchange_memory(exchange_config_of(config), span_of(hosts, num_ranks, "hosts"), rank);
    write_sized(memory, "memory", {0, bytes.window_bytes, bytes.receive_bytes});
  });
}

sy_status sy_exchange_create(sy_group* group, const sy_exchange_config* config,
                             const sy_exchange_options* options, sy_exchange** exchange) {
  return call(__func__, [&] {
    sy_exchange*& result = out(exchange, "exchange");
    const auto ranks = use(group);
    result = give<sy_exchange>(*ranks, exchange_config_of(config), exchange_options_of(options));
  });
}

sy_status sy_exchange_describe(sy_exchange* exchange, sy_exchange_info* info) {
  return call(__func__, [&] {
    const auto of = run(exchange);
    const ExchangeMemory bytes = of->memory();
    sy_exchange_info to{};
    to.device = to_dlpack(of->device());
    to.max_buffer_rows = of->max_buffer_rows();
    to.window_bytes = bytes.window_bytes;
    to.receive_bytes = bytes.receive_bytes;
    to.heap = of->heap();
    to.is_shared_gpu = of->is_shared_gpu();
    write_sized(info, "info", to);
  });
}

sy_status sy_exchange_check(sy_exchange* exchange) {
  return call(__func__, [&] { run(exchange)->check(); });
}

sy_status sy_exchange_close(sy_exchange* exchange, bool waits_for_peers) {
  return call(__func__, [&] { use(exchange)->close(waits_for_peers); });
}

sy_status sy_exchange_destroy(sy_exchange* exchange) { return destroy(__func__, exchange); }

}  // extern "C"

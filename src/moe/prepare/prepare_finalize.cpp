// SPDX-License-Identifier: Apache-2.0

#include "switchyard/prepare_finalize.h"

#include "engine/local_engine.h"
#include "moe/prepare/exchange_prepare_finalize.h"
#include "quant/scheme.h"

namespace switchyard {

Group group_of_one() {
  constexpr std::int64_t kDayMs = 86'400'000;
  return Group(make_local_engines(1, kDayMs).front());
}

std::unique_ptr<PrepareFinalize> make_prepare_finalize(PrepareKind kind, const Group& group,
                                                       const PrepareFinalizeConfig& config,
                                                       const ExchangeOptions& options) {
  const bool is_local = kind == PrepareKind::kLocal;
  return std::make_unique<ExchangePrepareFinalize>(
      recipe_of(kind), is_local ? group_of_one() : group, config, options);
}

std::unique_ptr<PrepareFinalize> make_low_latency(const Group& group,
                                                  const PrepareFinalizeConfig& config,
                                                  const ExchangeOptions& options) {
  return make_prepare_finalize(PrepareKind::kLowLatency, group, config, options);
}

std::unique_ptr<PrepareFinalize> make_local(const PrepareFinalizeConfig& config,
                                            const ExchangeOptions& options) {
  return make_prepare_finalize(PrepareKind::kLocal, {}, config, options);
}

ExchangeMemory prepare_finalize_memory(PrepareKind kind, const PrepareFinalizeConfig& config,
                                       int num_ranks, int rank) {
  const PrepareRecipe& recipe = recipe_of(kind);
  const bool is_local = kind == PrepareKind::kLocal;
  check_prepare_config(recipe, config, is_local ? 1 : num_ranks);
  const ExchangeConfig exchange = exchange_config_of(recipe, config, false);
  ExchangeMemory memory = exchange_memory(exchange, is_local ? 1 : num_ranks, is_local ? 0 : rank);
  if (exchange.scheme != config.scheme) {
    // The rows once more, as the experts get them.
    ExchangeConfig quantized = exchange;
    quantized.scheme = config.scheme;
    quantized.scale_layout = config.scale_layout;
    memory.receive_bytes +=
        exchange_memory(quantized, is_local ? 1 : num_ranks, is_local ? 0 : rank).receive_bytes;
  }
  if (config.defers_input_quant && wire_scheme_of(config).is_quantized()) {
    const ExchangeMemory plain = exchange_memory(exchange_config_of(recipe, config, true),
                                                 is_local ? 1 : num_ranks, is_local ? 0 : rank);
    memory.window_bytes += plain.window_bytes;
    memory.receive_bytes += plain.receive_bytes;
  }
  return memory;
}

}  // namespace switchyard

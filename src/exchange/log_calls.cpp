// SPDX-License-Identifier: Apache-2.0

#include "exchange/log_calls.h"

#include <string>

#include "core/log.h"
#include "device/cuda_module.h"
#include "engine/engine.h"

namespace switchyard {
namespace {

std::string format_text(const QuantScheme& scheme) {
  return scheme.is_quantized() ? name_of(scheme) : name_of(scheme.dtype);
}

}  // namespace

void log_exchange(const Group& group, const ExchangeBackend& backend) {
  if (group.rank() != 0 || !log_enabled(LogLevel::kInfo)) return;
  const ExchangeConfig& config = backend.config();
  const ExchangeMemory memory = backend.memory();
  const bool is_cuda = backend.device().is_cuda();
  const std::string way = is_cuda                    ? fmt::format("heap {}", backend.heap())
                          : memory.window_bytes == 0 ? std::string("messages")
                          : group.engine().has_windows()
                              ? std::string("windows")
                              : std::string("windows inside hosts, messages between them");
  const std::string cuda = why_no_cuda();
  log(LogLevel::kInfo, "exchange",
      "{} ranks on {} through {}: layout {}, {} experts, top-{}, hidden {}, at most {} tokens per "
      "rank, rows as {}, returned as {}, reduce {}, {} in flight; rank 0 has {} bytes of windows "
      "and {} bytes of receive buffers; CUDA module {}",
      group.size(), is_cuda ? "GPUs" : "CPUs", way, name_of(config.layout), config.num_experts,
      config.num_topk, config.hidden, config.max_tokens_per_rank, format_text(config.scheme),
      format_text(config.combine_scheme), name_of(config.reduce), config.max_in_flight,
      memory.window_bytes, memory.receive_bytes,
      cuda.empty() ? std::string("found") : "not used: " + cuda);
}

void log_dispatch(const ExchangeConfig& config, const DispatchCall& call) {
  if (!log_enabled(LogLevel::kDebug)) return;
  const bool is_again = call.earlier != nullptr;
  log(LogLevel::kDebug, "exchange", "{}: tokens {}, {}, {}", call.name(), call.tokens.describe(),
      call.options.scales.has_value() ? "quantized by the caller"
      : config.scheme.is_quantized()  ? "quantized here to " + name_of(config.scheme)
                                      : std::string("sent as they are"),
      is_again ? std::string("routing of an earlier dispatch") : "ids " + call.topk_ids.describe());
}

void log_combine(const ExchangeConfig& config, const CombineCall& call) {
  if (!log_enabled(LogLevel::kDebug) || !call.rows.has_value()) return;
  const bool is_quantized = config.combine_scheme.is_quantized();
  log(LogLevel::kDebug, "exchange", "combine: rows {} return {}, reduce {}", call.rows.describe(),
      is_quantized ? "quantized to " + name_of(config.combine_scheme) : std::string("as they are"),
      name_of(config.reduce));
}

Dispatched log_received(Dispatched received) {
  if (!log_enabled(LogLevel::kDebug)) return received;
  const ExpertRows& experts = received.experts;
  log(LogLevel::kDebug, "exchange", "received: rows {} as {}, {} of them valid",
      experts.rows.describe(), name_of(experts.scheme),
      received.host ? std::to_string(received.host->num_rows) : std::string("an unknown number"));
  return received;
}

void log_end(std::string_view why) {
  log(LogLevel::kInfo, "exchange", "it ends without waiting for its peers: {}", why);
}

void log_kernel(std::string_view call, std::string_view path, int num_ctas) {
  log(LogLevel::kDebug, "exchange", "{}: a kernel of {} CTAs, rows by way of {}", call, num_ctas,
      path);
}

}  // namespace switchyard

// SPDX-License-Identifier: Apache-2.0
//
// exchange.cpp: chooses the backend, and checks on which device tensors and streams lie; the rest
// is the backend's.

#include "switchyard/exchange.h"

#include <algorithm>
#include <cstdint>
#include <set>
#include <string_view>
#include <utility>

#include "core/fail.h"
#include "core/live.h"
#include "core/log.h"
#include "core/require_device.h"
#include "device/cuda_module.h"
#include "exchange/agree.h"
#include "exchange/backend.h"
#include "exchange/exchange_shape.h"
#include "exchange/hosts/hosts_exchange.h"
#include "exchange/log_calls.h"
#include "exchange/messages/messages_exchange.h"
#include "exchange/pull/pull_exchange.h"

namespace switchyard {
namespace {

// Collective. The ranks of this rank's host, where there are several hosts, some with several
// ranks, and those of each host share windows; else null.
std::shared_ptr<Engine> host_with_windows(Engine& engine) try {
  const Control& control = engine.control();
  std::set<int> hosts;
  for (int rank = 0; rank < control.size(); ++rank) hosts.insert(control.host_of(rank));
  const auto num_hosts = static_cast<int>(hosts.size());
  if (num_hosts == 1 || num_hosts == control.size()) return nullptr;
  std::shared_ptr<Engine> host = engine.make_host_group();
  return host->has_windows() ? host : nullptr;
} catch (const Error& error) {
  if (error.code() != Errc::kNotSupported) throw;
  return nullptr;
}

std::unique_ptr<ExchangeBackend> make_backend(const Group& group, const ExchangeConfig& config,
                                              const ExchangeOptions& options) {
  // Checks this rank's own arguments before the first collective step, so that it can retry.
  (void)make_exchange_shape(config, group.size(), group.rank());
  require_agreement(group.control(), {Phase::kExchange, "device"}, "exchange",
                    {{"device", options.device.is_cuda() ? "cuda" : "cpu"}});
  if (options.device.is_cuda()) return cuda_module().make_exchange(group, config, options);
  Engine& engine = group.engine();
  if (!engine.has_windows() && engine.has_messages()) {
    std::shared_ptr<Engine> host = host_with_windows(engine);
    if (host != nullptr) {
      return std::make_unique<HostsExchange>(group, config, options, std::move(host));
    }
    return std::make_unique<MessagesExchange>(group, config, options);
  }
  (void)engine.windows("exchange");  // without them nothing else is worth an error
  return std::make_unique<PullExchange>(group, config, options);
}

// A block of each expert has room for every token; with many of them, nearly all of it stays empty.
void warn_of_blocks(const Group& group, const ExchangeConfig& config) {
  constexpr std::int64_t kManyTokens = 1024;
  constexpr std::size_t kManyBytes = std::size_t{256} << 20;
  if (group.rank() != 0 || config.layout != Layout::kBatched) return;
  if (config.max_tokens_per_rank < kManyTokens) return;
  const ExchangeShape shape = make_exchange_shape(config, group.size(), 0);
  const int rank = shape.ownership.largest_rank();
  const std::int64_t num_experts = shape.ownership.max_count();
  const std::int64_t capacity = shape.receive.capacity;
  const std::int64_t num_rows = num_experts * capacity;
  const std::int64_t max_arriving = group.size() * config.max_tokens_per_rank *
                                    std::min<std::int64_t>(config.num_topk, num_experts);
  if (num_rows <= max_arriving) return;
  const std::size_t bytes = exchange_memory(config, group.size(), rank).receive_bytes;
  if (bytes < kManyBytes) return;
  log(LogLevel::kWarn, "exchange",
      "layout batched with {} tokens per rank takes {} bytes of buffers on rank {}, for {} experts "
      "of {} rows, but {} of these {} rows can arrive at most; layout expanded, or a smaller "
      "capacity, takes less",
      config.max_tokens_per_rank, bytes, rank, num_experts, capacity, max_arriving, num_rows);
}

ExchangeBackend& live(const std::unique_ptr<ExchangeBackend>& backend) {
  return live(backend, "Exchange");
}

ExchangeBackend& open(const std::unique_ptr<ExchangeBackend>& backend, const char* call) {
  ExchangeBackend& found = live(backend);
  require(!found.is_closed(), Errc::kInvalidArgument, "{}: the exchange was closed, must be open",
          call);
  return found;
}

// The legacy default stream is one for all threads. Where ranks are threads and share a GPU, the
// kernels of one would wait for a peer's that are behind them.
void require_own_stream(const char* call, const ExchangeBackend& backend, Stream stream) {
  constexpr std::uintptr_t kLegacy = 1;  // cudaStreamLegacy; 0 means the same
  require_stream(call, backend.device(), stream);
  const bool is_for_all = reinterpret_cast<std::uintptr_t>(stream.get()) <= kLegacy;
  if (!is_for_all || !backend.is_shared_gpu()) return;
  if (backend.heap() != std::string_view("same_process")) return;
  fail(Errc::kInvalidArgument,
       "{}: the stream is the legacy default stream of {}, which ranks of this process share; give "
       "each rank a stream of its own",
       call, name_of(backend.device()));
}

DispatchCall checked(const ExchangeBackend& backend, const DispatchCall& call) {
  require_own_stream(call.name(), backend, call.stream);
  require_device(call.name(), backend.device(),
                 {{"tokens", call.tokens},
                  {"topk_ids", call.topk_ids},
                  {"topk_weights", call.topk_weights},
                  {"scales", call.options.scales},
                  {"tensor_scale", call.options.tensor_scale}});
  for (const TensorView& payload : call.options.payloads) {
    require_device(call.name(), backend.device(), {{"payload", payload}});
  }
  log_dispatch(backend.config(), call);
  return call;
}

CombineCall checked(const ExchangeBackend& backend, const CombineCall& call) {
  require_own_stream("combine", backend, call.stream);
  require_device("combine", backend.device(),
                 {{"rows", call.rows},
                  {"row_weights", call.options.row_weights},
                  {"output", call.output},
                  {"topk_weights", call.options.topk_weights},
                  {"shared", call.options.shared},
                  {"returned_weights", call.options.returned_weights}});
  for (const TensorView& bias : call.options.bias) {
    require_device("combine", backend.device(), {{"bias", bias}});
  }
  log_combine(backend.config(), call);
  return call;
}

}  // namespace

Exchange::Exchange(const Group& group, const ExchangeConfig& config, const ExchangeOptions& options)
    : backend_(make_backend(group, config, options)) {
  warn_of_blocks(group, config);
  log_exchange(group, *backend_);
}
Exchange::Exchange(Exchange&&) noexcept = default;
Exchange& Exchange::operator=(Exchange&&) noexcept = default;
Exchange::~Exchange() = default;

void Exchange::close(bool waits_for_peers) { live(backend_).close(waits_for_peers); }
bool Exchange::is_closed() const { return live(backend_).is_closed(); }

const ExchangeConfig& Exchange::config() const { return live(backend_).config(); }
Device Exchange::device() const { return live(backend_).device(); }
std::int64_t Exchange::max_buffer_rows() const {
  return open(backend_, "max_buffer_rows").max_buffer_rows();
}
ExchangeMemory Exchange::memory() const { return open(backend_, "memory").memory(); }
const char* Exchange::heap() const { return open(backend_, "heap").heap(); }
bool Exchange::is_shared_gpu() const { return open(backend_, "is_shared_gpu").is_shared_gpu(); }

DispatchHandle Exchange::dispatch_send(const TensorView& tokens, const TensorView& topk_ids,
                                       const TensorView& topk_weights, Stream stream,
                                       const DispatchOptions& options) {
  ExchangeBackend& backend = open(backend_, "dispatch_send");
  return backend.dispatch_send(checked(backend, {tokens, topk_ids, topk_weights, stream, options}));
}

DispatchHandle Exchange::dispatch_again_send(const DispatchHandle& earlier,
                                             const TensorView& tokens,
                                             const TensorView& topk_weights, Stream stream,
                                             const DispatchOptions& options) {
  ExchangeBackend& backend = open(backend_, "dispatch_again_send");
  return backend.dispatch_send(
      checked(backend, {tokens, {}, topk_weights, stream, options, &earlier}));
}

Dispatched Exchange::dispatch_receive(const DispatchHandle& handle, Stream stream) {
  ExchangeBackend& backend = open(backend_, "dispatch_receive");
  require_own_stream("dispatch_receive", backend, stream);
  return log_received(backend.dispatch_receive(handle, stream));
}

Dispatched Exchange::places(const DispatchHandle& handle) const {
  const ExchangeBackend& backend = open(backend_, "places");
  require(backend.config().layout == Layout::kBatched, Errc::kNotSupported,
          "places: the layout depends on the routing, must be batched; receive first");
  return backend.places(handle);
}

Dispatched Exchange::dispatch(const TensorView& tokens, const TensorView& topk_ids,
                              const TensorView& topk_weights, Stream stream,
                              const DispatchOptions& options) {
  ExchangeBackend& backend = open(backend_, "dispatch");
  return log_received(
      backend.dispatch(checked(backend, {tokens, topk_ids, topk_weights, stream, options})));
}

Dispatched Exchange::dispatch_again(const DispatchHandle& earlier, const TensorView& tokens,
                                    const TensorView& topk_weights, Stream stream,
                                    const DispatchOptions& options) {
  ExchangeBackend& backend = open(backend_, "dispatch_again");
  return log_received(
      backend.dispatch(checked(backend, {tokens, {}, topk_weights, stream, options, &earlier})));
}

DispatchHandle Exchange::reopen(const DispatchHandle& earlier, Stream stream) {
  require_stream("reopen", device(), stream);
  return open(backend_, "reopen").reopen(earlier, stream);
}

void Exchange::check_output(const DispatchHandle& handle, const TensorView& output,
                            const CombineOptions& options) const {
  const Stream any_stream = Stream::default_of(device());
  ExchangeBackend& backend = open(backend_, "check_output");
  backend.check_output(checked(backend, {handle, {}, output, any_stream, options}));
}

TensorView Exchange::combine_input(const DispatchHandle& handle) {
  return open(backend_, "combine_input").combine_input(handle);
}

void Exchange::combine_send(const DispatchHandle& handle, const TensorView& rows, Stream stream,
                            const CombineOptions& options) {
  ExchangeBackend& backend = open(backend_, "combine_send");
  backend.combine_send(checked(backend, {handle, rows, {}, stream, options}));
}

void Exchange::combine_receive(const DispatchHandle& handle, const TensorView& output,
                               Stream stream, const CombineOptions& options) {
  ExchangeBackend& backend = open(backend_, "combine_receive");
  backend.combine_receive(checked(backend, {handle, {}, output, stream, options}));
}

void Exchange::combine(const DispatchHandle& handle, const TensorView& rows,
                       const TensorView& output, Stream stream, const CombineOptions& options) {
  ExchangeBackend& backend = open(backend_, "combine");
  backend.combine(checked(backend, {handle, rows, output, stream, options}));
}

void Exchange::release(const DispatchHandle& handle) { open(backend_, "release").release(handle); }

std::vector<RowOrigin> Exchange::row_origins(const DispatchHandle& handle) const {
  return open(backend_, "row_origins").row_origins(handle);
}

void Exchange::write_row_sources(const DispatchHandle& handle, const RowSources& sources,
                                 Stream stream) const {
  constexpr const char* kName = "write_row_sources";
  const ExchangeBackend& backend = open(backend_, kName);
  require_stream(kName, backend.device(), stream);
  require_device(kName, backend.device(),
                 {{"rank", sources.rank},
                  {"token", sources.token},
                  {"k", sources.k},
                  {"rows_per_rank", sources.rows_per_rank}});
  backend.write_row_sources(handle, sources, stream);
}

WireBytes Exchange::wire_bytes(const DispatchHandle& handle) const {
  return open(backend_, "wire_bytes").wire_bytes(handle);
}

void Exchange::check() const { open(backend_, "check").check(); }

}  // namespace switchyard

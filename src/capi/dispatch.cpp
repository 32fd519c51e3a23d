// SPDX-License-Identifier: Apache-2.0
//
// dispatch.cpp: dispatch, combine and what is known of them. A dispatch knows its exchange, so that
// no call takes both.

#include <utility>

#include "switchyard/c/exchange.h"
#include "switchyard/exchange.h"

#include "capi/objects.h"
#include "capi/sized.h"

namespace switchyard::capi {
namespace {

// A dispatch whose exchange is still there.
struct Open {
  std::shared_ptr<DispatchObject> dispatch;
  Running<Exchange> exchange;

  const DispatchHandle& handle() const { return dispatch->handle; }
  Stream stream(void* given) const { return stream_of(given, exchange->device()); }
};

Open open(const sy_dispatch* dispatch) {
  std::shared_ptr<DispatchObject> object = use(dispatch);
  std::shared_ptr<Closable<Exchange>> exchange = object->exchange.lock();
  check(exchange != nullptr, "the exchange of this dispatch was destroyed");
  return {std::move(object), Running(std::move(exchange))};
}

const Dispatched& received_of(const DispatchObject& dispatch) {
  check(dispatch.received.has_value(),
        "the dispatch has no received rows; call sy_dispatch_receive first");
  return *dispatch.received;
}

DispatchOptions options_of(const sy_dispatch_options& from) {
  DispatchOptions options;
  options.scales = optional_view(from.scales, "scales");
  options.tensor_scale = optional_view(from.tensor_scale, "tensor_scale");
  options.payloads = views_of(from.payloads, from.num_payloads, "payloads");
  options.max_tokens = from.max_tokens;
  options.routing_only = from.routing_only;
  options.host_counts = from.host_counts;
  options.copies_inputs = from.copies_inputs;
  options.slot = from.slot - 1;
  return options;
}

CombineOptions options_of(const sy_combine_options* given) {
  const sy_combine_options from = read_sized(given, "options");
  CombineOptions options;
  options.rows_are = from.rows_are_weighted ? RowsAre::kWeighted : RowsAre::kUnweighted;
  options.row_weights = optional_view(from.row_weights, "row_weights");
  options.copies_inputs = from.copies_inputs;
  options.topk_weights = optional_view(from.topk_weights, "topk_weights");
  options.bias = views_of(from.bias, from.num_bias, "bias");
  options.shared = optional_view(from.shared, "shared");
  options.returned_weights = optional_view(from.returned_weights, "returned_weights");
  return options;
}

// The arguments of a dispatch. With `earlier` the routing is that of another one.
struct Sending {
  Running<Exchange> exchange;
  std::optional<Open> earlier;
  TensorView tokens;
  TensorView topk_ids;
  TensorView topk_weights;
  DispatchOptions options;
  Stream stream;
};

Sending sending_of(sy_exchange* exchange, const sy_tensor* tokens, const sy_tensor* topk_ids,
                   const sy_tensor* topk_weights, const sy_dispatch_options* given, void* stream) {
  const sy_dispatch_options options = read_sized(given, "options");
  auto through = run(exchange);
  const Stream where = stream_of(stream, through->device());
  std::optional<Open> earlier;
  if (options.earlier != nullptr) {
    earlier.emplace(open(options.earlier));
    check(earlier->exchange.owner() == through.owner(), "options->earlier is of another exchange");
    check(topk_ids == nullptr,
          "topk_ids are given, must be NULL: options->earlier has the routing");
  }
  return {std::move(through),
          std::move(earlier),
          view_of(tokens, "tokens"),
          options.earlier != nullptr ? TensorView{} : view_of(topk_ids, "topk_ids"),
          optional_view(topk_weights, "topk_weights"),
          options_of(options),
          where};
}

}  // namespace
}  // namespace switchyard::capi

using namespace switchyard;
using namespace switchyard::capi;

extern "C" {

sy_status sy_dispatch_tokens(sy_exchange* exchange, const sy_tensor* tokens,
                             const sy_tensor* topk_ids, const sy_tensor* topk_weights,
                             const sy_dispatch_options* options, void* stream,
                             sy_dispatch** dispatch) {
  return call(__func__, [&] {
    sy_dispatch*& result = out(dispatch, "dispatch");
    const Sending s = sending_of(exchange, tokens, topk_ids, topk_weights, options, stream);
    Dispatched received =
        s.earlier.has_value()
            ? s.exchange->dispatch_again(s.earlier->handle(), s.tokens, s.topk_weights, s.stream,
                                         s.options)
            : s.exchange->dispatch(s.tokens, s.topk_ids, s.topk_weights, s.stream, s.options);
    const DispatchHandle handle = received.handle;
    result = give<sy_dispatch>(s.exchange.owner(), handle, std::move(received));
  });
}

sy_status sy_dispatch_send(sy_exchange* exchange, const sy_tensor* tokens,
                           const sy_tensor* topk_ids, const sy_tensor* topk_weights,
                           const sy_dispatch_options* options, void* stream,
                           sy_dispatch** dispatch) {
  return call(__func__, [&] {
    sy_dispatch*& result = out(dispatch, "dispatch");
    const Sending s = sending_of(exchange, tokens, topk_ids, topk_weights, options, stream);
    DispatchHandle handle =
        s.earlier.has_value()
            ? s.exchange->dispatch_again_send(s.earlier->handle(), s.tokens, s.topk_weights,
                                              s.stream, s.options)
            : s.exchange->dispatch_send(s.tokens, s.topk_ids, s.topk_weights, s.stream, s.options);
    result = give<sy_dispatch>(s.exchange.owner(), std::move(handle));
  });
}

sy_status sy_dispatch_receive(sy_dispatch* dispatch, void* stream) {
  return call(__func__, [&] {
    const Open of = open(dispatch);
    of.dispatch->received = of.exchange->dispatch_receive(of.handle(), of.stream(stream));
  });
}

sy_status sy_dispatch_reopen(sy_dispatch* earlier, void* stream, sy_dispatch** dispatch) {
  return call(__func__, [&] {
    sy_dispatch*& result = out(dispatch, "dispatch");
    const Open of = open(earlier);
    result =
        give<sy_dispatch>(of.exchange.owner(), of.exchange->reopen(of.handle(), of.stream(stream)));
  });
}

sy_status sy_dispatch_rows(sy_dispatch* dispatch, sy_received* received) {
  return call(__func__, [&] {
    const Open of = open(dispatch);
    DispatchObject& object = *of.dispatch;
    const Dispatched& from = received_of(object);
    const std::size_t num_payloads = from.payloads.size();
    object.held_payloads.resize(num_payloads);
    object.payloads.resize(num_payloads);
    for (std::size_t i = 0; i < num_payloads; ++i) {
      object.payloads[i] = object.held_payloads[i].set(from.payloads[i]);
    }
    sy_received to{};
    to.rows = object.held[0].set(from.experts.rows);
    to.scales = object.held[1].set(from.experts.scales);
    to.tensor_scale = object.held[2].set(from.experts.tensor_scale);
    to.first_row = object.held[3].set(from.experts.first_row);
    to.num_rows = object.held[4].set(from.experts.num_rows);
    to.total_rows = object.held[5].set(from.total_rows);
    to.topk_ids = object.held[6].set(from.topk_ids);
    to.topk_weights = object.held[7].set(from.topk_weights);
    to.num_dropped = object.held[8].set(from.num_dropped);
    to.payloads = object.payloads.data();
    to.num_payloads = num_payloads;
    write_sized(received, "received", to);
  });
}

sy_status sy_dispatch_counts(sy_dispatch* dispatch, sy_host_counts* counts) {
  return call(__func__, [&] {
    const Open of = open(dispatch);
    const Dispatched& received = received_of(*of.dispatch);
    if (!received.host.has_value()) {
      throw Error(Errc::kNotAvailable,
                  fmt::format("{}: the host has no counts of this dispatch; set host_counts",
                              current_function()));
    }
    const HostCounts& from = *received.host;
    sy_host_counts to{};
    to.num_rows = from.num_rows;
    to.num_dropped = from.num_dropped;
    to.rows_per_rank = from.rows_per_rank.data();
    to.num_ranks = from.rows_per_rank.size();
    to.rows_per_expert = from.rows_per_expert.data();
    to.num_local_experts = from.rows_per_expert.size();
    to.expert_load = from.expert_load.data();
    to.num_experts = from.expert_load.size();
    to.wait_ns = from.wait_ns.data();
    to.num_waits = from.wait_ns.size();
    write_sized(counts, "counts", to);
  });
}

sy_status sy_dispatch_sources(sy_dispatch* dispatch, const sy_tensor* rank, const sy_tensor* token,
                              const sy_tensor* rows_per_rank, void* stream) {
  return call(__func__, [&] {
    const Open of = open(dispatch);
    const RowSources sources{optional_view(rank, "rank"), optional_view(token, "token"),
                             optional_view(rows_per_rank, "rows_per_rank")};
    of.exchange->write_row_sources(of.handle(), sources, of.stream(stream));
  });
}

sy_status sy_dispatch_choices(sy_dispatch* dispatch, const sy_tensor* k, void* stream) {
  return call(__func__, [&] {
    const Open of = open(dispatch);
    of.exchange->write_row_sources(of.handle(), {.k = view_of(k, "k")}, of.stream(stream));
  });
}

sy_status sy_dispatch_wire_bytes(sy_dispatch* dispatch, int64_t* sent, int64_t* returned) {
  return call(__func__, [&] {
    const Open of = open(dispatch);
    std::int64_t& to_experts = out(sent, "sent");
    std::int64_t& back = out(returned, "returned");
    const WireBytes bytes = of.exchange->wire_bytes(of.handle());
    to_experts = bytes.dispatch;
    back = bytes.combine;
  });
}

sy_status sy_combine(sy_dispatch* dispatch, const sy_tensor* rows, const sy_tensor* output,
                     const sy_combine_options* options, void* stream) {
  return call(__func__, [&] {
    const Open of = open(dispatch);
    of.exchange->combine(of.handle(), view_of(rows, "rows"), view_of(output, "output"),
                         of.stream(stream), options_of(options));
  });
}

sy_status sy_combine_input(sy_dispatch* dispatch, const sy_tensor** rows) {
  return call(__func__, [&] {
    const Open of = open(dispatch);
    const sy_tensor*& to = out(rows, "rows");
    to = of.dispatch->combine_input.set(of.exchange->combine_input(of.handle()));
  });
}

sy_status sy_combine_send(sy_dispatch* dispatch, const sy_tensor* rows,
                          const sy_combine_options* options, void* stream) {
  return call(__func__, [&] {
    const Open of = open(dispatch);
    of.exchange->combine_send(of.handle(), view_of(rows, "rows"), of.stream(stream),
                              options_of(options));
  });
}

sy_status sy_combine_receive(sy_dispatch* dispatch, const sy_tensor* output,
                             const sy_combine_options* options, void* stream) {
  return call(__func__, [&] {
    const Open of = open(dispatch);
    of.exchange->combine_receive(of.handle(), view_of(output, "output"), of.stream(stream),
                                 options_of(options));
  });
}

sy_status sy_combine_check(sy_dispatch* dispatch, const sy_tensor* output,
                           const sy_combine_options* options) {
  return call(__func__, [&] {
    const Open of = open(dispatch);
    of.exchange->check_output(of.handle(), view_of(output, "output"), options_of(options));
  });
}

sy_status sy_dispatch_release(sy_dispatch* dispatch) {
  return call(__func__, [&] {
    const Open of = open(dispatch);
    of.exchange->release(of.handle());
  });
}

sy_status sy_dispatch_destroy(sy_dispatch* dispatch) { return destroy(__func__, dispatch); }

}  // extern "C"

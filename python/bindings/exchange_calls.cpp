// SPDX-License-Identifier: Apache-2.0
//
// The calls of Exchange. A handle keeps what its dispatch reads until the rows are there, and
// remembers how many tokens were sent, so that combine can allocate its output.

#include <memory>
#include <string>
#include <utility>

#include "config.h"
#include "dtypes.h"
#include "exchange.h"
#include "gil.h"
#include "module.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

namespace switchyard::python {

PyHandle& handle_of(nb::handle value) {
  if (nb::isinstance<PyDispatched>(value)) return *nb::cast<const PyDispatched&>(value).handle;
  if (nb::isinstance<PyHandle>(value)) return nb::cast<PyHandle&>(value);
  fail_type("handle", value, "what dispatch or dispatch_send returned");
}

namespace {

// Keywords of dispatch in all its forms.
struct DispatchArguments {
  DispatchArguments(nb::handle tokens_array, nb::handle topk_weights_array,
                    const nb::kwargs& keywords)
      : arrays(keywords.contains("stream") ? nb::object(keywords["stream"]) : nb::none()) {
    tokens = arrays.in(tokens_array, "dispatch: tokens");
    if (tokens.num_dims() != 2) {
      fail(Errc::kInvalidArgument, "dispatch: tokens are {}, must be [T, H]", tokens.describe());
    }
    topk_weights = arrays.in(topk_weights_array, "dispatch: topk_weights");
    for (const auto& [key, value] : keywords) set(nb::cast<std::string>(key), value);
  }

  void set(const std::string& key, nb::handle value) {
    if (key == "scales") {
      options.scales = arrays.in(value, "dispatch: scales");
    } else if (key == "tensor_scale") {
      options.tensor_scale = arrays.in(value, "dispatch: tensor_scale");
    } else if (key == "payloads") {
      for (const nb::handle one : value)
        options.payloads.push_back(arrays.in(one, "dispatch: payloads"));
    } else if (key != "stream" && !set_field(options, key, value)) {
      fail_keyword("dispatch", key,
                   known_keywords<DispatchOptions>(
                       {"scales", "tensor_scale", "payloads", "topk_weights", "stream"}));
    }
  }

  Arrays arrays;
  TensorView tokens;
  TensorView topk_weights;
  DispatchOptions options;
};

PyDispatched received(const std::shared_ptr<Exchange>& exchange, Dispatched rows,
                      std::int64_t num_tokens, Stream stream) {
  auto handle = std::make_shared<PyHandle>(PyHandle{rows.handle, num_tokens});
  return {std::move(rows), std::move(handle), exchange, stream};
}

PyDispatched dispatch(const PyExchange& self, nb::handle tokens, nb::handle topk_ids,
                      nb::handle topk_weights, const nb::kwargs& keywords) {
  const auto exchange = self.live();
  const Exclusive call = self.call();
  DispatchArguments args(tokens, topk_weights, keywords);
  const TensorView ids = args.arrays.in(topk_ids, "dispatch: topk_ids");
  const Stream stream = args.arrays.stream(exchange->device());
  Dispatched rows = without_gil([&] {
    return exchange->dispatch(args.tokens, ids, args.topk_weights, stream, args.options);
  });
  return received(exchange, std::move(rows), args.tokens.shape(0), stream);
}

PyDispatched dispatch_again(const PyExchange& self, nb::handle earlier, nb::handle tokens,
                            nb::handle topk_weights, const nb::kwargs& keywords) {
  const auto exchange = self.live();
  const Exclusive call = self.call();
  const DispatchHandle handle = handle_of(earlier).handle;
  DispatchArguments args(tokens, topk_weights, keywords);
  const Stream stream = args.arrays.stream(exchange->device());
  Dispatched rows = without_gil([&] {
    return exchange->dispatch_again(handle, args.tokens, args.topk_weights, stream, args.options);
  });
  return received(exchange, std::move(rows), args.tokens.shape(0), stream);
}

PyHandle dispatch_send(const PyExchange& self, nb::handle tokens, nb::handle topk_ids,
                       nb::handle topk_weights, const nb::kwargs& keywords) {
  const auto exchange = self.live();
  const Exclusive call = self.call();
  DispatchArguments args(tokens, topk_weights, keywords);
  const TensorView ids = args.arrays.in(topk_ids, "dispatch: topk_ids");
  const Stream stream = args.arrays.stream(exchange->device());
  const DispatchHandle handle = without_gil([&] {
    return exchange->dispatch_send(args.tokens, ids, args.topk_weights, stream, args.options);
  });
  return {handle, args.tokens.shape(0), args.arrays.take_held()};
}

PyHandle dispatch_again_send(const PyExchange& self, nb::handle earlier, nb::handle tokens,
                             nb::handle topk_weights, const nb::kwargs& keywords) {
  const auto exchange = self.live();
  const Exclusive call = self.call();
  const DispatchHandle handle = handle_of(earlier).handle;
  DispatchArguments args(tokens, topk_weights, keywords);
  const Stream stream = args.arrays.stream(exchange->device());
  const DispatchHandle made = without_gil([&] {
    return exchange->dispatch_again_send(handle, args.tokens, args.topk_weights, stream,
                                         args.options);
  });
  return {made, args.tokens.shape(0), args.arrays.take_held()};
}

PyDispatched dispatch_receive(const PyExchange& self, PyHandle& handle,
                              nb::handle stream_argument) {
  const auto exchange = self.live();
  const Exclusive call = self.call();
  Arrays arrays(stream_argument);
  for (const nb::object& sent : handle.held) arrays.prefer(sent);
  const Stream stream = arrays.stream(exchange->device());
  Dispatched rows = without_gil([&] { return exchange->dispatch_receive(handle.handle, stream); });
  handle.held.clear();
  return received(exchange, std::move(rows), handle.num_tokens, stream);
}

// Keywords of combine in all its forms.
struct CombineArguments {
  explicit CombineArguments(const nb::kwargs& keywords)
      : arrays(keywords.contains("stream") ? nb::object(keywords["stream"]) : nb::none()) {
    for (const auto& [key, value] : keywords) set(nb::cast<std::string>(key), value);
  }

  void set(const std::string& key, nb::handle value) {
    if (key == "rows_are_weighted") {
      options.rows_are =
          argument<bool>(value, key, "bool") ? RowsAre::kWeighted : RowsAre::kUnweighted;
    } else if (key == "copies_inputs") {
      options.copies_inputs = argument<bool>(value, key, "bool");
    } else if (key == "row_weights") {
      options.row_weights = arrays.in(value, "combine: row_weights");
    } else if (key == "topk_weights") {
      options.topk_weights = arrays.in(value, "combine: topk_weights");
    } else if (key == "bias") {
      for (const nb::handle one : value) options.bias.push_back(arrays.in(one, "combine: bias"));
    } else if (key == "shared") {
      options.shared = arrays.in(value, "combine: shared");
    } else if (key == "returned_weights") {
      options.returned_weights = arrays.out(value, "combine: returned_weights");
    } else if (key != "stream") {
      fail_keyword(
          "combine", key,
          known_keywords<>({"rows_are_weighted", "copies_inputs", "row_weights", "topk_weights",
                            "bias", "shared", "returned_weights", "out", "stream"}));
    }
  }

  // The output that the caller gave, or a new one of `dtype`.
  nb::object output(const Exchange& exchange, nb::handle out, std::int64_t num_tokens,
                    DType dtype) {
    if (!out.is_none()) return nb::borrow(out);
    const std::int64_t shape[] = {num_tokens, exchange.config().hidden};
    return nb::cast(arrays.allocate(dtype, shape, exchange.device()));
  }

  Arrays arrays;
  CombineOptions options;
};

nb::object combine(const PyExchange& self, nb::handle handle_value, nb::handle rows_array,
                   nb::handle out, const nb::kwargs& keywords) {
  const auto exchange = self.live();
  const Exclusive call = self.call();
  const PyHandle& handle = handle_of(handle_value);
  CombineArguments args(keywords);
  const TensorView rows = args.arrays.in(rows_array, "combine: rows");
  nb::object result = args.output(*exchange, out, handle.num_tokens, rows.dtype());
  const TensorView output = args.arrays.out(result, "combine: out");
  const Stream stream = args.arrays.stream(exchange->device());
  without_gil([&] { exchange->combine(handle.handle, rows, output, stream, args.options); });
  return result;
}

void combine_send(const PyExchange& self, nb::handle handle_value, nb::handle rows_array,
                  const nb::kwargs& keywords) {
  PyHandle& handle = handle_of(handle_value);
  const auto exchange = self.live();
  const Exclusive call = self.call();
  CombineArguments args(keywords);
  const TensorView rows = args.arrays.in(rows_array, "combine: rows");
  const Stream stream = args.arrays.stream(exchange->device());
  without_gil([&] { exchange->combine_send(handle.handle, rows, stream, args.options); });
  handle.held = args.arrays.take_held();
  handle.sent = rows.dtype();
}

nb::object combine_receive(const PyExchange& self, nb::handle handle_value, nb::handle out,
                           nb::handle dtype, const nb::kwargs& keywords) {
  PyHandle& handle = handle_of(handle_value);
  const auto exchange = self.live();
  const Exclusive call = self.call();
  CombineArguments args(keywords);
  for (const nb::object& sent : handle.held) args.arrays.prefer(sent);
  nb::object result = args.output(*exchange, out, handle.num_tokens,
                                  dtype.is_none() ? handle.sent : dtype_from(dtype));
  const TensorView output = args.arrays.out(result, "combine: out");
  const Stream stream = args.arrays.stream(exchange->device());
  without_gil([&] { exchange->combine_receive(handle.handle, output, stream, args.options); });
  handle.held.clear();
  return result;
}

constexpr const char* kDispatchSig =
    "(self, tokens: Array, topk_ids: Array, topk_weights: Array | None = None, *, stream: "
    "StreamLike = None, "
    "scales: Array | None = None, tensor_scale: Array | None = None, payloads: Sequence[Array] = "
    "(), "
    "max_tokens: int = 0, routing_only: bool = False, host_counts: bool = False, slot: int = -1, "
    "copies_inputs: bool = False) -> ";
constexpr const char* kAgainSig =
    "(self, earlier: Handle | Dispatched, tokens: Array, topk_weights: Array | None = None, *, "
    "stream: StreamLike = "
    "None, scales: Array | None = None, tensor_scale: Array | None = None, payloads: "
    "Sequence[Array] = (), "
    "max_tokens: int = 0, routing_only: bool = False, host_counts: bool = False, slot: int = -1, "
    "copies_inputs: bool = False) -> ";

void bind_dispatch(nb::class_<PyExchange>& type) {
  type.def("dispatch", &dispatch, nb::arg("tokens"), nb::arg("topk_ids"),
           nb::arg("topk_weights").none() = nb::none(), nb::arg("options"),
           nb::sig(sig("dispatch", kDispatchSig, "Dispatched")),
           "Sends each token to the ranks that hold its experts and receives what came here. "
           "Collective.\n\n"
           "tokens        [T, H] bf16, f16 or f32, or quantized (with scales); T differs between "
           "ranks\n"
           "topk_ids      [T, K] i32 or i64; -1: none\n"
           "topk_weights  [T, K] f32; None: all 1\n"
           "scales        [T, S] of tokens that are quantized already\n"
           "tensor_scale  [1] f32 for schemes with one scale per tensor and nvfp4\n"
           "payloads      [T, ...] each, of the configured bytes per row\n"
           "max_tokens    upper bound on T over all ranks in this call; 0: the configured one\n"
           "host_counts   GPUs: wait for the counts, so that shapes are exact and `host` is there\n"
           "slot          the in-flight slot; -1: the first free one")
      .def("dispatch_again", &dispatch_again, nb::arg("earlier"), nb::arg("tokens"),
           nb::arg("topk_weights").none() = nb::none(), nb::arg("options"),
           nb::sig(sig("dispatch_again", kAgainSig, "Dispatched")),
           "dispatch with the routing of an earlier handle. Collective.")
      .def("dispatch_send", &dispatch_send, nb::arg("tokens"), nb::arg("topk_ids"),
           nb::arg("topk_weights").none() = nb::none(), nb::arg("options"),
           nb::sig(sig("dispatch_send", kDispatchSig, "Handle")),
           "The first phase of dispatch: quantizes and sends. The handle keeps the arrays until "
           "they are received, and on CPUs the caller leaves them as they are, unless "
           "copies_inputs is set.")
      .def("dispatch_again_send", &dispatch_again_send, nb::arg("earlier"), nb::arg("tokens"),
           nb::arg("topk_weights").none() = nb::none(), nb::arg("options"),
           nb::sig(sig("dispatch_again_send", kAgainSig, "Handle")),
           "The first phase of dispatch_again.")
      .def("dispatch_receive", &dispatch_receive, nb::arg("handle"),
           nb::arg("stream").none() = nb::none(),
           nb::sig("def dispatch_receive(self, handle: Handle, stream: StreamLike = None) -> "
                   "Dispatched"),
           "The second phase: receives the peers' rows.")
      .def(
          "reopen",
          [](const PyExchange& self, nb::handle earlier, nb::handle stream) {
            const auto exchange = self.live();
            const Exclusive call = self.call();
            const PyHandle& handle = handle_of(earlier);
            Arrays arrays(stream);
            arrays.prefer_torch();
            const Stream in = arrays.stream(exchange->device());
            return PyHandle{without_gil([&] { return exchange->reopen(handle.handle, in); }),
                            handle.num_tokens};
          },
          nb::arg("earlier"), nb::arg("stream").none() = nb::none(),
          nb::sig("def reopen(self, earlier: Handle | Dispatched, stream: StreamLike = None) -> "
                  "Handle"),
          "A handle for one more combine with an earlier routing: the gradient of dispatch.");
}

void bind_combine(nb::class_<PyExchange>& type) {
  type.def("combine", &combine, nb::arg("handle"), nb::arg("rows"),
           nb::arg("out").none() = nb::none(), nb::arg("options"),
           nb::sig(
               "def combine(self, handle: Handle | Dispatched, rows: Array, out: Array | None = "
               "None, *, stream: StreamLike = None, rows_are_weighted: bool = False, row_weights: "
               "Array | None = None, topk_weights: Array | None = None, bias: Sequence[Array] = "
               "(), shared: Array | None = None, returned_weights: Array | None = None) -> Tensor"),
           "Returns expert results to the ranks whose tokens they are, sums them in fixed order "
           "and ends the handle.\n"
           "Returns `out`, or a new tensor. Collective.\n\n"
           "rows               [N, H] or [L, C, H], bf16, f16 or f32: one for each received row\n"
           "out                [T, H] bf16, f16 or f32, written; None: a new tensor with the dtype "
           "of rows\n"
           "rows_are_weighted  weights are in the rows already\n"
           "row_weights        f32 [N], or [N, K] in token-major layouts, returned to the source "
           "ranks\n"
           "topk_weights       [T, K] f32, per_expert: instead of those given to dispatch\n"
           "bias               [T, H] bf16 each, added first\n"
           "shared             [T, H] bf16, added to the rounded sum\n"
           "returned_weights   [T, K] f32, written: what the ranks passed as row_weights")
      .def(
          "combine_input",
          [](const PyExchange& self, nb::handle handle) {
            const auto exchange = self.live();
            const Exclusive call = self.call();
            return tensor_or_none(exchange->combine_input(handle_of(handle).handle), exchange,
                                  Stream::default_of(exchange->device()));
          },
          nb::arg("handle"),
          nb::sig("def combine_input(self, handle: Handle | Dispatched) -> Tensor"),
          "Memory for the rows of combine, bf16, of the shape of the received rows: GPUs that "
          "store "
          "rows straight to their places read results of peers there. Write it before combine, no "
          "more after that.")
      .def("combine_send", &combine_send, nb::arg("handle"), nb::arg("rows"), nb::arg("options"),
           nb::sig("def combine_send(self, handle: Handle | Dispatched, rows: Array, *, stream: "
                   "StreamLike = None, rows_are_weighted: bool = False, row_weights: Array | None "
                   "= None, copies_inputs: bool = False) -> None"),
           "The first phase of combine. The handle keeps the rows until they are received, and on "
           "CPUs the caller leaves them as they are, unless copies_inputs is set.")
      .def(
          "combine_receive", &combine_receive, nb::arg("handle"),
          nb::arg("out").none() = nb::none(), nb::arg("dtype").none() = nb::none(),
          nb::arg("options"),
          nb::sig(
              "def combine_receive(self, handle: Handle | Dispatched, out: Array | None = "
              "None, dtype: DTypeLike | None = None, *, stream: StreamLike = None, topk_weights: "
              "Array | None = None, bias: Sequence[Array] = (), shared: Array | None = None, "
              "returned_weights: Array | None = None) -> Tensor"),
          "The second phase of combine. Without `out` the result is new, of `dtype`; None: that of "
          "the rows sent.")
      .def(
          "release",
          [](const PyExchange& self, nb::handle handle) {
            const auto exchange = self.live();
            const Exclusive call = self.call();
            exchange->release(handle_of(handle).handle);
          },
          nb::arg("handle"), nb::sig("def release(self, handle: Handle | Dispatched) -> None"),
          "Gives a handle up without a combine; every rank must.");
}

}  // namespace

void bind_exchange_calls(nb::class_<PyExchange>& type) {
  bind_dispatch(type);
  bind_combine(type);
}

}  // namespace switchyard::python

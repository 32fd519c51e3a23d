// SPDX-License-Identifier: Apache-2.0
//
// Exchange. A handle keeps what its dispatch reads until the rows are there, and remembers how many
// tokens were sent, so that combine can allocate its output.

#include "switchyard/exchange.h"

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "config.h"
#include "dtypes.h"
#include "exchange.h"
#include "gil.h"
#include "group.h"
#include "module.h"
#include "owned.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

namespace switchyard::python {
namespace {

struct PyExchange {
  Owned<Exchange> exchange;
  int num_ranks = 0;

  Exclusive call() const { return {exchange.busy(), "Exchange"}; }
  std::shared_ptr<Exchange> live() const { return exchange.live("Exchange"); }
};

// What combine and its like take: a Handle, or the Dispatched that has one.
PyHandle& handle_of(nb::handle value) {
  if (nb::isinstance<PyDispatched>(value)) return *nb::cast<const PyDispatched&>(value).handle;
  if (nb::isinstance<PyHandle>(value)) return nb::cast<PyHandle&>(value);
  fail(Errc::kInvalidArgument, "handle: a {}, must be what dispatch or dispatch_send returned",
       text_of(value.type().attr("__name__")));
}

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
      throw nb::type_error(("dispatch() got an unexpected keyword argument '" + key + "'").c_str());
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
      options.rows_are = nb::cast<bool>(value) ? RowsAre::kWeighted : RowsAre::kUnweighted;
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
      throw nb::type_error(("combine() got an unexpected keyword argument '" + key + "'").c_str());
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
}

nb::object combine_receive(const PyExchange& self, nb::handle handle_value, nb::handle out,
                           nb::handle dtype, const nb::kwargs& keywords) {
  PyHandle& handle = handle_of(handle_value);
  const auto exchange = self.live();
  const Exclusive call = self.call();
  CombineArguments args(keywords);
  for (const nb::object& sent : handle.held) args.arrays.prefer(sent);
  nb::object result = args.output(*exchange, out, handle.num_tokens, dtype_from(dtype));
  const TensorView output = args.arrays.out(result, "combine: out");
  const Stream stream = args.arrays.stream(exchange->device());
  without_gil([&] { exchange->combine_receive(handle.handle, output, stream, args.options); });
  handle.held.clear();
  return result;
}

PyExchange make_exchange(const PyGroup& py_group, nb::handle given, const nb::kwargs& keywords) {
  const auto group = py_group.live();
  const Exclusive call = py_group.call();
  ExchangeConfig config;
  if (!given.is_none()) config = nb::cast<ExchangeConfig>(given);
  ExchangeOptions options;
  for (const auto& [key, value] : keywords) {
    const std::string name = nb::cast<std::string>(key);
    if (!set_field(config, name, value) && !set_field(options, name, value)) {
      throw nb::type_error(
          ("Exchange() got an unexpected keyword argument '" + name + "'").c_str());
    }
  }
  auto made = without_gil([&] { return std::make_unique<Exchange>(*group, config, options); });
  return {Owned<Exchange>(std::move(made)), group->size()};
}

// Columns of the origins, by row.
nb::dict row_origins(const PyExchange& self, nb::handle handle) {
  const auto exchange = self.live();
  const Exclusive call = self.call();
  const std::vector<RowOrigin> origins = exchange->row_origins(handle_of(handle).handle);
  nb::list row, expert, rank, token, k, weight;
  for (const RowOrigin& origin : origins) {
    row.append(origin.row);
    expert.append(origin.expert);
    rank.append(origin.rank);
    token.append(origin.token);
    k.append(origin.k);
    weight.append(origin.weight);
  }
  nb::dict columns;
  columns["row"] = row;
  columns["expert"] = expert;
  columns["rank"] = rank;
  columns["token"] = token;
  columns["k"] = k;
  columns["weight"] = weight;
  return columns;
}

// New i32 tensors of the origins, where the rows are.
nb::tuple row_sources(const PyExchange& self, const PyDispatched& dispatched,
                      nb::handle stream_argument) {
  const auto exchange = self.live();
  const Exclusive call = self.call();
  const DispatchHandle handle = dispatched.received.handle;
  Arrays arrays(stream_argument);
  const TensorView& rows = dispatched.received.experts.rows;
  arrays.prefer(dispatched.stream);
  const std::int64_t shape[] = {rows.num_dims() == 3 ? rows.shape(0) * rows.shape(1)
                                                     : rows.shape(0)};
  const std::int64_t ranks[] = {self.num_ranks};
  PyTensor rank = arrays.allocate(DType::kI32, shape, exchange->device());
  PyTensor token = arrays.allocate(DType::kI32, shape, exchange->device());
  PyTensor per_rank = arrays.allocate(DType::kI32, ranks, exchange->device());
  const Stream stream = arrays.stream(exchange->device());
  without_gil([&] {
    exchange->write_row_sources(handle, {rank.view, token.view, per_rank.view}, stream);
  });
  return nb::make_tuple(rank, token, per_rank);
}

constexpr const char* kDispatchSig =
    "(self, tokens: Array, topk_ids: Array, topk_weights: Array | None = None, *, stream: "
    "StreamLike = None, "
    "scales: Array | None = None, tensor_scale: Array | None = None, payloads: Sequence[Array] = "
    "(), "
    "max_tokens: int = 0, routing_only: bool = False, host_counts: bool = False, slot: int = -1) "
    "-> ";
constexpr const char* kAgainSig =
    "(self, earlier: Handle | Dispatched, tokens: Array, topk_weights: Array | None = None, *, "
    "stream: StreamLike = "
    "None, scales: Array | None = None, tensor_scale: Array | None = None, payloads: "
    "Sequence[Array] = (), "
    "max_tokens: int = 0, routing_only: bool = False, host_counts: bool = False, slot: int = -1) "
    "-> ";

const char* sig(const char* name, const char* arguments, const char* result) {
  return (new std::string("def " + std::string(name) + arguments + result))->c_str();
}

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
           "they are received.")
      .def("dispatch_again_send", &dispatch_again_send, nb::arg("earlier"), nb::arg("tokens"),
           nb::arg("topk_weights").none() = nb::none(), nb::arg("options"),
           nb::sig(sig("dispatch_again_send", kAgainSig, "Handle")))
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
            const Stream in = Arrays(stream).stream(exchange->device());
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
      .def("combine_send", &combine_send, nb::arg("handle"), nb::arg("rows"), nb::arg("options"),
           nb::sig("def combine_send(self, handle: Handle | Dispatched, rows: Array, *, stream: "
                   "StreamLike = None, rows_are_weighted: bool = False, row_weights: Array | None "
                   "= None) -> None"),
           "The first phase of combine. The handle keeps the rows until they are received.")
      .def("combine_receive", &combine_receive, nb::arg("handle"),
           nb::arg("out").none() = nb::none(), nb::arg("dtype") = "bf16", nb::arg("options"),
           nb::sig("def combine_receive(self, handle: Handle | Dispatched, out: Array | None = "
                   "None, dtype: DTypeLike = 'bf16', *, stream: StreamLike = None, topk_weights: "
                   "Array | None = None, bias: Sequence[Array] = (), shared: Array | None = None, "
                   "returned_weights: Array | None = None) -> Tensor"),
           "The second phase of combine. Without `out` the result is new, of `dtype`.")
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

void bind_exchange(nb::module_& m) {
  bind_exchange_configs(m);
  bind_received(m);
  nb::class_<PyExchange> type(
      m, "Exchange",
      "Moves tokens to the ranks of their experts and brings the results back, on CPUs or GPUs.\n"
      "Memory is taken when it is made, for the largest call. One thread of each rank calls, in "
      "the\n"
      "same order on every rank. close() or the end of a `with` block gives the memory back.");
  std::string keywords;
  for (const auto& field : fields_of<ExchangeConfig>())
    keywords += ", " + field.name + ": " + field.type + " = ...";
  for (const auto& field : fields_of<ExchangeOptions>())
    keywords += ", " + field.name + ": " + field.type + " = ...";
  type.def(
          "__init__",
          [](PyExchange* self, const PyGroup& group, nb::handle config, const nb::kwargs& values) {
            new (self) PyExchange(make_exchange(group, config, values));
          },
          nb::arg("group"), nb::arg("config").none() = nb::none(), nb::arg("values"),
          nb::sig(sig("__init__(self, group: Group, config: ExchangeConfig | None = None, *",
                      keywords.c_str(), ") -> None")),
          "Collective. Keywords are the members of ExchangeConfig and ExchangeOptions; those of "
          "the former win over `config`.")
      .def_prop_ro("config", [](const PyExchange& self) { return self.live()->config(); })
      .def_prop_ro("device", [](const PyExchange& self) { return self.live()->device(); })
      .def_prop_ro(
          "max_buffer_rows", [](const PyExchange& self) { return self.live()->max_buffer_rows(); },
          "Upper bound on N for this rank.")
      .def_prop_ro(
          "memory",
          [](const PyExchange& self) {
            const ExchangeMemory memory = self.live()->memory();
            return nb::make_tuple(memory.window_bytes, memory.receive_bytes);
          },
          nb::sig("def memory(self) -> tuple[int, int]"),
          "(window_bytes, receive_bytes) of this rank.")
      .def_prop_ro("heap", [](const PyExchange& self) { return self.live()->heap(); })
      .def_prop_ro("is_shared_gpu",
                   [](const PyExchange& self) { return self.live()->is_shared_gpu(); });
  bind_dispatch(type);
  bind_combine(type);
  type.def("row_origins", &row_origins, nb::arg("handle"),
           nb::sig("def row_origins(self, handle: Handle | Dispatched) -> dict[str, list]"),
           "Origin of every valid row, as columns row, expert, rank, token, k and weight. CPUs "
           "only.")
      .def("row_sources", &row_sources, nb::arg("received"), nb::arg("stream").none() = nb::none(),
           nb::sig("def row_sources(self, received: Dispatched, stream: StreamLike = None) -> "
                   "tuple[Tensor, Tensor, Tensor]"),
           "(rank [N], token [N], rows_per_rank [P]) i32, where the rows are; -1 in rows without a "
           "token.")
      .def(
          "wire_bytes",
          [](const PyExchange& self, nb::handle handle) {
            const auto exchange = self.live();
            const Exclusive call = self.call();
            const WireBytes bytes = exchange->wire_bytes(handle_of(handle).handle);
            return nb::make_tuple(bytes.dispatch, bytes.combine);
          },
          nb::arg("handle"),
          nb::sig("def wire_bytes(self, handle: Handle | Dispatched) -> tuple[int, int]"),
          "(dispatch, combine): bytes that leave this rank. CPUs only.")
      .def(
          "check", [](const PyExchange& self) { self.live()->check(); },
          "Raises what kernels that have ended found, or why the group was aborted. Does not wait.")
      .def(
          "close", [](PyExchange& self) { self.exchange.close(); },
          "Gives the memory back, once the tensors that point into it are gone. On GPUs "
          "collective:\n"
          "the memory goes when the last such tensor is gone on every rank.")
      .def_prop_ro("is_closed", [](const PyExchange& self) { return self.exchange.is_closed(); })
      .def(
          "__enter__", [](nb::object self) { return self; },
          nb::sig("def __enter__(self) -> Exchange"))
      .def(
          "__exit__", [](PyExchange& self, const nb::args&) { self.exchange.close(); },
          nb::sig("def __exit__(self, *exception: object) -> None"))
      .def("__repr__", [](const PyExchange& self) {
        if (self.exchange.is_closed()) return std::string("Exchange(closed)");
        return "Exchange(" + describe(self.live()->config(), "ExchangeConfig") + ", device='" +
               name_of(self.live()->device()) + "')";
      });
}

}  // namespace switchyard::python

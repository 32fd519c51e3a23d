// SPDX-License-Identifier: Apache-2.0
//
// Exchange: how it is made, its properties and its end.

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

PyExchange make_exchange(const PyGroup& py_group, nb::handle given, const nb::kwargs& keywords) {
  const auto group = py_group.live();
  const Exclusive call = py_group.call();
  ExchangeConfig config;
  if (!given.is_none())
    config = argument<ExchangeConfig>(given, "Exchange: config", "an ExchangeConfig");
  ExchangeOptions options;
  for (const auto& [key, value] : keywords) {
    const std::string name = nb::cast<std::string>(key);
    if (!set_field(config, name, value) && !set_field(options, name, value)) {
      fail_keyword("Exchange", name, known_keywords<ExchangeConfig, ExchangeOptions>({"config"}));
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
  PyTensor k = arrays.allocate(DType::kI32, shape, exchange->device());
  const Stream stream = arrays.stream(exchange->device());
  without_gil([&] {
    exchange->write_row_sources(handle, {rank.view, token.view, per_rank.view, k.view}, stream);
  });
  return nb::make_tuple(rank, token, per_rank, k);
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
      .def_prop_ro(
          "config", [](const PyExchange& self) { return self.live()->config(); }, "As given.")
      .def_prop_ro(
          "device", [](const PyExchange& self) { return self.live()->device(); },
          "Where tokens, received rows and results lie.")
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
      .def_prop_ro(
          "heap", [](const PyExchange& self) { return self.live()->heap(); },
          "How windows are shared: \"host\", on GPUs \"same_process\", \"vmm\", \"ipc\" or "
          "\"nccl\".")
      .def_prop_ro(
          "is_shared_gpu", [](const PyExchange& self) { return self.live()->is_shared_gpu(); },
          "Whether several ranks use this rank's GPU.");
  bind_exchange_calls(type);
  type.def("row_origins", &row_origins, nb::arg("handle"),
           nb::sig("def row_origins(self, handle: Handle | Dispatched) -> dict[str, list]"),
           "Origin of every valid row, as columns row, expert, rank, token, k and weight. CPUs "
           "only.")
      .def("row_sources", &row_sources, nb::arg("received"), nb::arg("stream").none() = nb::none(),
           nb::sig("def row_sources(self, received: Dispatched, stream: StreamLike = None) -> "
                   "tuple[Tensor, Tensor, Tensor, Tensor]"),
           "(rank [N], token [N], rows_per_rank [P], k [N]) i32, where the rows are; -1 in rows "
           "without a token.\nk: which of its token's choices a row serves; token-major: the "
           "highest here.")
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
          "close", [](PyExchange& self) { self.exchange.close("Exchange"); },
          "Ends the exchange, whoever holds results of it. On GPUs collective: returns when the "
          "kernels\nof every rank have ended. Results stay valid; their memory goes with the last "
          "of them.")
      .def_prop_ro(
          "is_closed", [](const PyExchange& self) { return self.exchange.is_closed(); },
          "Whether close() was called.")
      .def(
          "__enter__", [](nb::object self) { return self; },
          nb::sig("def __enter__(self) -> Exchange"))
      .def(
          "__exit__",
          [](PyExchange& self, const nb::args& exception) {
            self.exchange.close("Exchange", ends_well(exception));
          },
          nb::sig("def __exit__(self, *exception: object) -> None"))
      .def("__repr__", [](const PyExchange& self) {
        if (self.exchange.is_closed()) return std::string("Exchange(closed)");
        return "Exchange(" + describe(self.live()->config(), "ExchangeConfig") + ", device='" +
               name_of(self.live()->device()) + "')";
      });
}

}  // namespace switchyard::python

// SPDX-License-Identifier: Apache-2.0

#include "switchyard/exchange.h"

#include "config.h"
#include "exchange.h"
#include "exchange/exchange_fields.h"

#include <nanobind/nanobind.h>

namespace switchyard::python {

void bind_exchange_configs(nb::module_& m) {
  ConfigClass<ExchangeConfig>(
      m, "ExchangeConfig",
      "Everything that is fixed for the lifetime of an Exchange; equal on every rank.")
      .done()
      .def(
          "memory",
          [](const ExchangeConfig& self, int num_ranks, int rank) {
            const ExchangeMemory memory = exchange_memory(self, num_ranks, rank);
            return nb::make_tuple(memory.window_bytes, memory.receive_bytes);
          },
          nb::arg("num_ranks"), nb::arg("rank") = 0,
          nb::sig("def memory(self, num_ranks: int, rank: int = 0) -> tuple[int, int]"),
          "(window_bytes, receive_bytes) that a CPU rank will take. Allocates nothing.")
      .def(
          "memory",
          [](const ExchangeConfig& self, const std::vector<std::int32_t>& hosts, int rank) {
            const ExchangeMemory memory = exchange_memory(self, hosts, rank);
            return nb::make_tuple(memory.window_bytes, memory.receive_bytes);
          },
          nb::arg("hosts"), nb::arg("rank") = 0,
          nb::sig("def memory(self, hosts: collections.abc.Sequence[int], rank: int = 0) -> "
                  "tuple[int, int]"),
          "The same for ranks on the hosts with these numbers, one per rank.");
  ConfigClass<ExchangeOptions>(m, "ExchangeOptions", "What a rank chooses for itself.").done();
  add_fields<DispatchOptions>();
}

}  // namespace switchyard::python

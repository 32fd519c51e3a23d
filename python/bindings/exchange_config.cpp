// SPDX-License-Identifier: Apache-2.0

#include "switchyard/exchange.h"

#include "config.h"
#include "exchange.h"

#include <nanobind/nanobind.h>

namespace switchyard::python {

void bind_exchange_configs(nb::module_& m) {
  ConfigClass<ExchangeConfig>(
      m, "ExchangeConfig",
      "Everything that is fixed for the lifetime of an Exchange; equal on every rank.")
      .field("num_experts", &ExchangeConfig::num_experts,
             "E, of all ranks; need not be a multiple of their number.")
      .field("experts_per_rank", &ExchangeConfig::experts_per_rank,
             "How many experts each rank holds, in order, or 0; empty: equal numbers.")
      .field("num_topk", &ExchangeConfig::num_topk, "K, experts per token.")
      .field("hidden", &ExchangeConfig::hidden, "H, elements per token.")
      .field("max_tokens_per_rank", &ExchangeConfig::max_tokens_per_rank)
      .field("layout", &ExchangeConfig::layout, "How received rows are arranged.")
      .field("slices_experts", &ExchangeConfig::slices_experts)
      .field("scheme", &ExchangeConfig::scheme,
             "Format of rows on the wire; the sender quantizes them.")
      .field("scale_layout", &ExchangeConfig::scale_layout, "Of received scales.")
      .field("payload_bytes", &ExchangeConfig::payload_bytes,
             "Bytes per row of each further payload.")
      .field("reduce", &ExchangeConfig::reduce, "Where sums are computed.")
      .field("combine_scheme", &ExchangeConfig::combine_scheme, "Format of returned rows.")
      .field("sends_weights", &ExchangeConfig::sends_weights)
      .field("expert_alignment", &ExchangeConfig::expert_alignment,
             "expanded: each expert starts at a multiple of it.")
      .field("worst_case_rows", &ExchangeConfig::worst_case_rows,
             "Received tensors always have their maximum size.")
      .field("zero_padding", &ExchangeConfig::zero_padding)
      .field("capacity", &ExchangeConfig::capacity,
             "Rows that an expert accepts; 0: as many as can arrive.")
      .field("overflow", &ExchangeConfig::overflow)
      .field("max_in_flight", &ExchangeConfig::max_in_flight, "Handles that may be alive at once.")
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
  ConfigClass<ExchangeOptions>(m, "ExchangeOptions", "What a rank chooses for itself.")
      .field("device", &ExchangeOptions::device, "Where tokens, received rows and results lie.")
      .field("timeout_ms", &ExchangeOptions::timeout_ms,
             "How long a kernel waits for a peer; 0: as long as the group.")
      .field("num_ctas", &ExchangeOptions::num_ctas,
             "GPUs: upper bound on the CTAs of a kernel; 0: as many as fit.")
      .field("programmatic_launch", &ExchangeOptions::programmatic_launch)
      .field("heap", &ExchangeOptions::heap,
             "GPUs: \"auto\", \"same_process\", \"vmm\", \"ipc\" or \"nccl\".")
      .field("exact_memory", &ExchangeOptions::exact_memory)
      .field("keeps_routing", &ExchangeOptions::keeps_routing,
             "GPUs: keep the routing for dispatch_again and reopen.")
      .field("host_capacity", &ExchangeOptions::host_capacity,
             "GPUs of several hosts: tokens of a rank that may go to one other host; 0: all.")
      .field("exact_messages", &ExchangeOptions::exact_messages,
             "GPUs of several hosts: messages have the size of what crosses; waits for counts.")
      .done();
  auto& options = fields_of<DispatchOptions>();
  options.push_back(keyword("max_tokens", &DispatchOptions::max_tokens));
  options.push_back(keyword("routing_only", &DispatchOptions::routing_only));
  options.push_back(keyword("host_counts", &DispatchOptions::host_counts));
  options.push_back(keyword("slot", &DispatchOptions::slot));
  options.push_back(keyword("copies_inputs", &DispatchOptions::copies_inputs));
}

}  // namespace switchyard::python

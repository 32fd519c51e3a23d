// SPDX-License-Identifier: Apache-2.0
//
// What an exchange hands out, as Python objects.

#include <string>
#include <vector>

#include "exchange.h"
#include "names.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

namespace switchyard::python {
namespace {

template <typename T>
std::vector<T> copied(std::span<const T> values) {
  return {values.begin(), values.end()};
}

// switchyard.HostCounts: copies, valid for good.
struct PyHostCounts {
  std::int64_t num_rows = 0;
  std::int64_t num_dropped = 0;
  std::vector<std::int64_t> rows_per_rank;
  std::vector<std::int32_t> rows_per_expert;
  std::vector<std::int64_t> expert_load;
  std::vector<std::int64_t> wait_ns;
};

}  // namespace

nb::object tensor_or_none(const TensorView& view, const std::shared_ptr<const void>& owner,
                          Stream stream) {
  return view.has_value() ? nb::cast(PyTensor{view, owner, stream}) : nb::none();
}

nb::object counts_or_none(const std::optional<HostCounts>& counts) {
  if (!counts) return nb::none();
  return nb::cast(PyHostCounts{counts->num_rows, counts->num_dropped, copied(counts->rows_per_rank),
                               copied(counts->rows_per_expert), copied(counts->expert_load),
                               copied(counts->wait_ns)});
}

namespace {

void bind_rows(nb::module_& m) {
  nb::class_<PyHostCounts>(m, "HostCounts", "What the host knows of received rows.")
      .def_ro("num_rows", &PyHostCounts::num_rows, "Valid rows.")
      .def_ro("num_dropped", &PyHostCounts::num_dropped,
              "This rank's choices that capacity dropped.")
      .def_ro("rows_per_rank", &PyHostCounts::rows_per_rank,
              "[P] tokens placed here from each rank.")
      .def_ro("rows_per_expert", &PyHostCounts::rows_per_expert, "[L] rows of each local expert.")
      .def_ro("expert_load", &PyHostCounts::expert_load,
              "[E] rows that all ranks sent to each expert; empty on GPUs.")
      .def_ro("wait_ns", &PyHostCounts::wait_ns,
              "[P] time spent waiting for each rank's rows; empty on GPUs.")
      .def("__repr__", [](const PyHostCounts& self) {
        return "HostCounts(num_rows=" + std::to_string(self.num_rows) +
               ", rows_per_expert=" + nb::repr(nb::cast(self.rows_per_expert)).c_str() + ")";
      });
  nb::class_<PyExpertRows>(m, "ExpertRows", "Rows grouped by local expert, as experts take them.")
      .def_prop_ro(
          "rows", [](const PyExpertRows& self) { return self.tensor(self.rows.rows); },
          "[N, H] or [L, C, H].")
      .def_prop_ro(
          "scales",
          [](const PyExpertRows& self) {
            return tensor_or_none(self.rows.scales, self.owner, self.stream);
          },
          nb::sig("def scales(self) -> Tensor | None"), "[N, S] or [L, C, S]; None without scales.")
      .def_prop_ro(
          "first_row",
          [](const PyExpertRows& self) {
            return tensor_or_none(self.rows.first_row, self.owner, self.stream);
          },
          nb::sig("def first_row(self) -> Tensor | None"), "[L] i64; None in token-major layouts.")
      .def_prop_ro(
          "num_rows",
          [](const PyExpertRows& self) {
            return tensor_or_none(self.rows.num_rows, self.owner, self.stream);
          },
          nb::sig("def num_rows(self) -> Tensor | None"), "[L] i32: valid rows of each expert.")
      .def_prop_ro(
          "tensor_scale",
          [](const PyExpertRows& self) {
            return tensor_or_none(self.rows.tensor_scale, self.owner, self.stream);
          },
          nb::sig("def tensor_scale(self) -> Tensor | None"), "The global scale of nvfp4.")
      .def_prop_ro(
          "scheme", [](const PyExpertRows& self) { return self.rows.scheme; },
          "How the rows are quantized.")
      .def_prop_ro(
          "scale_layout",
          [](const PyExpertRows& self) { return enum_name(self.rows.scale_layout); },
          "How the scales are arranged.")
      .def("__repr__", [](const PyExpertRows& self) {
        return "ExpertRows(" + self.rows.rows.describe() + ", scheme=" + name_of(self.rows.scheme) +
               ")";
      });
}

void bind_dispatched(nb::module_& m) {
  nb::class_<PyHandle>(m, "Handle", "Ties a combine to its dispatch.")
      .def_ro("num_tokens", &PyHandle::num_tokens, "T of the dispatch.")
      .def("__repr__", [](const PyHandle& self) {
        return "Handle(num_tokens=" + std::to_string(self.num_tokens) + ")";
      });
  nb::class_<PyDispatched>(m, "Dispatched",
                           "Received rows: memory of the exchange, overwritten by later dispatches "
                           "once combine has been\n"
                           "received or the handle was released.")
      .def_prop_ro(
          "handle", [](const PyDispatched& self) { return self.handle; },
          "For combine, or one more dispatch with this routing.")
      .def_prop_ro("experts", &PyDispatched::experts,
                   "Rows, scales and counts in one object, as experts take them.")
      .def_prop_ro(
          "rows", [](const PyDispatched& self) { return self.tensor(self.received.experts.rows); },
          nb::sig("def rows(self) -> Tensor"), "[L, C, H] in layout batched, else [N, H].")
      .def_prop_ro(
          "scales",
          [](const PyDispatched& self) { return self.tensor(self.received.experts.scales); },
          nb::sig("def scales(self) -> Tensor | None"), "[L, C, S] or [N, S]; None without scales.")
      .def_prop_ro(
          "first_row",
          [](const PyDispatched& self) { return self.tensor(self.received.experts.first_row); },
          nb::sig("def first_row(self) -> Tensor | None"),
          "[L] i64, batched and expanded: first row of each expert.")
      .def_prop_ro(
          "num_rows",
          [](const PyDispatched& self) { return self.tensor(self.received.experts.num_rows); },
          nb::sig("def num_rows(self) -> Tensor | None"),
          "[L] i32: rows, or tokens in token-major layouts, of each expert.")
      .def_prop_ro(
          "total_rows",
          [](const PyDispatched& self) { return self.tensor(self.received.total_rows); },
          nb::sig("def total_rows(self) -> Tensor | None"), "[1] i32: valid rows.")
      .def_prop_ro(
          "topk_ids", [](const PyDispatched& self) { return self.tensor(self.received.topk_ids); },
          nb::sig("def topk_ids(self) -> Tensor | None"), "[N, K] i32, token-major layouts.")
      .def_prop_ro(
          "topk_weights",
          [](const PyDispatched& self) { return self.tensor(self.received.topk_weights); },
          nb::sig("def topk_weights(self) -> Tensor | None"),
          "f32 [N, K], in batched and expanded [N].")
      .def_prop_ro(
          "num_dropped",
          [](const PyDispatched& self) { return self.tensor(self.received.num_dropped); },
          nb::sig("def num_dropped(self) -> Tensor | None"), "[1] i32, overflow \"drop\".")
      .def_prop_ro(
          "payloads",
          [](const PyDispatched& self) {
            nb::list tensors;
            for (const TensorView& view : self.received.payloads) tensors.append(self.tensor(view));
            return tensors;
          },
          nb::sig("def payloads(self) -> list[Tensor]"), "[N, bytes] u8 each.")
      .def_prop_ro(
          "host", [](const PyDispatched& self) { return counts_or_none(self.received.host); },
          nb::sig("def host(self) -> HostCounts | None"),
          "Counts as numbers: always on CPUs, on GPUs with host_counts=True.")
      .def("__repr__", [](const PyDispatched& self) {
        const auto& host = self.received.host;
        return "Dispatched(" + self.received.experts.rows.describe() +
               (host ? ", " + std::to_string(host->num_rows) + " valid" : "") + ")";
      });
}

}  // namespace

void bind_received(nb::module_& m) {
  bind_rows(m);
  bind_dispatched(m);
}

}  // namespace switchyard::python

// SPDX-License-Identifier: Apache-2.0
//
// prepare and finalize, in one call and split; what they return and what the split ones keep.

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "switchyard/prepare_finalize.h"

#include "config.h"
#include "gil.h"
#include "layer.h"
#include "module.h"
#include "moe/prepare/prepare_fields.h"
#include "prepare.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

namespace switchyard::python {
namespace {

struct PyPrepared {
  Prepared prepared;
  std::shared_ptr<const void> owner;
  Stream stream = Stream::host();
  std::int64_t num_tokens = 0;

  nb::object tensor(const TensorView& view) const { return tensor_or_none(view, owner, stream); }
};

// A split call: the second part, with everything that it reads.
struct PyPending {
  std::shared_ptr<PrepareFinalize> object;
  Busy busy;
  std::function<void()> hook;
  std::function<Prepared()> prepared;
  std::function<void()> finalized;
  std::vector<nb::object> held;
  nb::object output;
  Stream stream = Stream::host();
  std::int64_t num_tokens = 0;
  bool is_received = false;

  void run_hook() {
    if (!hook) return;
    const Exclusive exclusive(busy, "PrepareFinalize");
    const auto run = std::exchange(hook, nullptr);
    without_gil([&] { run(); });
  }

  nb::object wait() {
    require(!is_received, Errc::kInvalidArgument,
            "wait: the result was fetched, must be fetched once");
    run_hook();
    const Exclusive exclusive(busy, "PrepareFinalize");
    is_received = true;
    held.clear();
    if (finalized) {
      without_gil([&] { finalized(); });
      return output;
    }
    Prepared result = without_gil([&] { return prepared(); });
    return nb::cast(PyPrepared{std::move(result), object, stream, num_tokens});
  }
};

nb::object prepare(const PyPrepareFinalize& self, nb::handle hidden, nb::handle topk_ids,
                   nb::handle topk_weights, const nb::kwargs& keywords, bool is_async) {
  const auto object = self.live();
  const Exclusive exclusive = self.call();
  PrepareCall call(hidden, topk_ids, topk_weights, keywords, "prepare");
  const Stream stream = call.arrays.stream(object->device());
  const std::int64_t num_tokens =
      call.arguments.hidden.num_dims() > 0 ? call.arguments.hidden.shape(0) : 0;
  if (!is_async) {
    Prepared prepared = without_gil([&] { return object->prepare(call.arguments, stream); });
    return nb::cast(PyPrepared{std::move(prepared), object, stream, num_tokens});
  }
  Pending<Prepared> pending =
      without_gil([&] { return object->prepare_async(call.arguments, stream); });
  PyPending made{object,
                 self.part.busy(),
                 std::move(pending.hook),
                 std::move(pending.receiver),
                 {},
                 call.arrays.take_held(),
                 nb::none(),
                 stream,
                 num_tokens};
  return nb::cast(std::move(made));
}

struct FinalizeCall {
  FinalizeCall(const PrepareFinalize& object, nb::handle expert_output, nb::handle out,
               nb::handle num_tokens, const nb::kwargs& keywords)
      : arrays(keywords.contains("stream") ? nb::object(keywords["stream"]) : nb::none()),
        output(nb::borrow(out)) {
    arguments.expert_output = arrays.in(expert_output, "finalize: expert_output");
    for (const auto& [key, value] : keywords) set(nb::cast<std::string>(key), value);
    if (output.is_none()) {
      if (num_tokens.is_none())
        fail(Errc::kInvalidArgument,
             "finalize: neither out nor num_tokens is given, must be one of them");
      const std::int64_t shape[] = {
          argument<std::int64_t>(num_tokens, "finalize: num_tokens", "int"), object.hidden()};
      output = nb::cast(arrays.allocate(
          arguments.expert_output.has_value() ? arguments.expert_output.dtype() : DType::kBF16,
          shape, object.device()));
    }
    arguments.output = arrays.out(output, "finalize: out");
  }

  void set(const std::string& key, nb::handle value) {
    if (key == "weight_and_reduce") {
      arguments.weight_and_reduce.kind =
          enum_from<WeightAndReduceKind>(argument<std::string>(value, key, "str"));
    } else if (key == "micro_batch") {
      arguments.micro_batch = argument<int>(value, key, "int");
    } else if (key == "shared") {
      arguments.shared = arrays.in(value, "finalize: shared");
    } else if (key == "reduced") {
      arguments.reduced = arrays.out(value, "finalize: reduced");
    } else if (key == "topk_weights") {
      arguments.topk_weights = arrays.in(value, "finalize: topk_weights");
    } else if (key == "topk_ids") {
      arguments.topk_ids = arrays.in(value, "finalize: topk_ids");
    } else if (key == "copies_inputs") {
      arguments.copies_inputs = argument<bool>(value, key, "bool");
    } else if (key != "stream") {
      fail_keyword(
          "finalize", key,
          known_keywords<>({"weight_and_reduce", "micro_batch", "shared", "reduced", "topk_weights",
                            "topk_ids", "copies_inputs", "out", "num_tokens", "stream"}));
    }
  }

  Arrays arrays;
  nb::object output;
  FinalizeArguments arguments;
};

nb::object finalize(const PyPrepareFinalize& self, nb::handle expert_output, nb::handle out,
                    nb::handle num_tokens, const nb::kwargs& keywords, bool is_async) {
  const auto object = self.live();
  const Exclusive exclusive = self.call();
  FinalizeCall call(*object, expert_output, out, num_tokens, keywords);
  const Stream stream = call.arrays.stream(object->device());
  if (!is_async) {
    without_gil([&] { object->finalize(call.arguments, stream); });
    return call.output;
  }
  Pending<void> pending =
      without_gil([&] { return object->finalize_async(call.arguments, stream); });
  PyPending made{object,
                 self.part.busy(),
                 std::move(pending.hook),
                 {},
                 std::move(pending.receiver),
                 call.arrays.take_held(),
                 call.output,
                 stream,
                 0};
  return nb::cast(std::move(made));
}

constexpr const char* kPrepareSig =
    "(self, hidden: Array, topk_ids: Array, topk_weights: Array, *, apply_router_weight_on_input: "
    "bool = False, "
    "micro_batch: int = 0, defer_input_quant: bool = False, weighs_in_place: bool = False, "
    "max_tokens: int = 0, "
    "host_counts: bool = False, copies_inputs: bool = False, stream: StreamLike = None) -> ";
constexpr const char* kFinalizeSig =
    "(self, expert_output: Array, out: Array | None = None, num_tokens: int | None = None, *, "
    "weight_and_reduce: "
    "Literal['delegate', 'no_op', 'contiguous'] = 'delegate', micro_batch: int = 0, shared: Array "
    "| None = None, "
    "reduced: Array | None = None, topk_weights: Array | None = None, topk_ids: Array | None = "
    "None, copies_inputs: bool = False, stream: StreamLike = None) -> ";

}  // namespace

PrepareCall::PrepareCall(nb::handle hidden, nb::handle topk_ids, nb::handle topk_weights,
                         const nb::kwargs& keywords, const char* function,
                         std::span<const std::string_view> without)
    : arrays(keywords.contains("stream") ? nb::object(keywords["stream"]) : nb::none()) {
  arguments.hidden = arrays.in(hidden, "prepare: hidden");
  arguments.topk_ids = arrays.in(topk_ids, "prepare: topk_ids");
  arguments.topk_weights = arrays.in(topk_weights, "prepare: topk_weights");
  for (const auto& [key, value] : keywords) {
    const std::string name = nb::cast<std::string>(key);
    const bool is_taken = std::ranges::find(without, name) == without.end() &&
                          (name == "stream" || set_field(arguments, name, value));
    if (is_taken) continue;
    auto known = known_keywords<PrepareArguments>({"stream"});
    std::erase_if(known,
                  [&](auto one) { return std::ranges::find(without, one) != without.end(); });
    fail_keyword(function, name, known);
  }
}

void bind_prepare_results(nb::module_& m) {
  add_fields<PrepareArguments>();
  nb::class_<PyPrepared>(
      m, "Prepared",
      "What prepare hands to the experts; valid until finalize of the same micro-batch.")
      .def_prop_ro(
          "experts",
          [](const PyPrepared& self) {
            return PyExpertRows{self.prepared.experts, self.owner, self.stream};
          },
          "Activations and scales.")
      .def_prop_ro(
          "num_tokens", [](const PyPrepared& self) { return self.num_tokens; }, "T of the call.")
      .def_prop_ro(
          "total_rows",
          [](const PyPrepared& self) { return self.tensor(self.prepared.total_rows); },
          nb::sig("def total_rows(self) -> Tensor | None"), "[1] i32.")
      .def_prop_ro(
          "topk_ids", [](const PyPrepared& self) { return self.tensor(self.prepared.topk_ids); },
          nb::sig("def topk_ids(self) -> Tensor | None"), "[M, K]; None: the caller's own hold.")
      .def_prop_ro(
          "topk_weights",
          [](const PyPrepared& self) { return self.tensor(self.prepared.topk_weights); },
          nb::sig("def topk_weights(self) -> Tensor | None"),
          "f32, as topk_ids; 0 in rows without a token.")
      .def_prop_ro(
          "expert_num_tokens",
          [](const PyPrepared& self) {
            const auto& metadata = self.prepared.metadata;
            return metadata ? self.tensor(metadata->expert_num_tokens) : nb::none();
          },
          nb::sig("def expert_num_tokens(self) -> Tensor | None"),
          "[L] i32, low_latency and elastic_prefill.")
      .def_prop_ro(
          "expert_num_tokens_cpu",
          [](const PyPrepared& self) {
            const auto& metadata = self.prepared.metadata;
            return metadata
                       ? tensor_or_none(metadata->expert_num_tokens_cpu, self.owner, Stream::host())
                       : nb::none();
          },
          nb::sig("def expert_num_tokens_cpu(self) -> Tensor | None"), "[L] i32 in host memory.")
      .def_prop_ro(
          "host", [](const PyPrepared& self) { return counts_or_none(self.prepared.host); },
          nb::sig("def host(self) -> HostCounts | None"),
          "Counts as numbers: always on CPUs, on GPUs with host_counts=True.")
      .def("__repr__", [](const PyPrepared& self) {
        return "Prepared(" + self.prepared.experts.rows.describe() + ")";
      });
  nb::class_<PyPending>(
      m, "Pending",
      "A split call: hook() receives, wait() returns the result and receives if nobody did.")
      .def("hook", &PyPending::run_hook, "The receive part; does nothing the second time.")
      .def("wait", &PyPending::wait, nb::sig("def wait(self) -> Prepared | Tensor"),
           "The result, once.");
}

void bind_prepare_calls(nb::class_<PyPrepareFinalize>& type) {
  type.def(
          "prepare",
          [](const PyPrepareFinalize& self, nb::handle hidden, nb::handle ids, nb::handle weights,
             const nb::kwargs& keywords) {
            return prepare(self, hidden, ids, weights, keywords, false);
          },
          nb::arg("hidden"), nb::arg("topk_ids"), nb::arg("topk_weights"), nb::arg("options"),
          nb::sig(sig("prepare", kPrepareSig, "Prepared")),
          "Quantizes and dispatches. Collective.\n\n"
          "hidden        [T, H] bf16, f16 or f32\n"
          "topk_ids      [T, K] i32 or i64; -1: none\n"
          "topk_weights  [T, K] f32")
      .def(
          "prepare_async",
          [](const PyPrepareFinalize& self, nb::handle hidden, nb::handle ids, nb::handle weights,
             const nb::kwargs& keywords) {
            return prepare(self, hidden, ids, weights, keywords, true);
          },
          nb::arg("hidden"), nb::arg("topk_ids"), nb::arg("topk_weights"), nb::arg("options"),
          nb::sig(sig("prepare_async", kPrepareSig, "Pending")),
          "Sends; the result receives. On CPUs the arrays stay as they are until then, unless "
          "copies_inputs is set.")
      .def(
          "finalize",
          [](const PyPrepareFinalize& self, nb::handle rows, nb::handle out, nb::handle num_tokens,
             const nb::kwargs& keywords) {
            return finalize(self, rows, out, num_tokens, keywords, false);
          },
          nb::arg("expert_output"), nb::arg("out").none() = nb::none(),
          nb::arg("num_tokens").none() = nb::none(), nb::arg("options"),
          nb::sig(sig("finalize", kFinalizeSig, "Tensor")),
          "Returns expert results to the ranks whose tokens they are. Returns `out`, or a new "
          "[num_tokens, H] with the dtype of expert_output.\n\n"
          "expert_output  rows at the places of Prepared.experts; with a row per token [M, H], "
          "weighted and summed\n"
          "               (\"no_op\"), or [M, K, H]")
      .def(
          "finalize_async",
          [](const PyPrepareFinalize& self, nb::handle rows, nb::handle out, nb::handle num_tokens,
             const nb::kwargs& keywords) {
            return finalize(self, rows, out, num_tokens, keywords, true);
          },
          nb::arg("expert_output"), nb::arg("out").none() = nb::none(),
          nb::arg("num_tokens").none() = nb::none(), nb::arg("options"),
          nb::sig(sig("finalize_async", kFinalizeSig, "Pending")),
          "The same in two parts, as prepare_async; the result is the output.");
}

}  // namespace switchyard::python

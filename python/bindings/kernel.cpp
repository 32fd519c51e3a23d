// SPDX-License-Identifier: Apache-2.0

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "switchyard/micro_batches.h"
#include "switchyard/modular_kernel.h"

#include "errors.h"
#include "gil.h"
#include "layer.h"
#include "module.h"
#include "names.h"
#include "prepare.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

namespace switchyard::python {
namespace {

struct PyKernel {
  Owned<ModularKernel> kernel;
  nb::object held{};          ///< the gate of the shared expert
  Experts* routed = nullptr;  ///< of the kernel, as the next
  Experts* shared = nullptr;

  Exclusive call() const { return {kernel.busy(), "ModularKernel"}; }
  std::shared_ptr<ModularKernel> live() const { return kernel.live("ModularKernel"); }
};

// A part stays the caller's when the kernel cannot be made.
PyKernel make(PyPrepareFinalize& prepare, PyExperts& routed, nb::handle shared_value,
              nb::handle gate, const std::string& order) {
  if (!shared_value.is_none() && !nb::isinstance<PyExperts>(shared_value))
    fail_type("ModularKernel: shared_experts", shared_value, "Experts or None");
  auto* shared = shared_value.is_none() ? nullptr : &nb::cast<PyExperts&>(shared_value);
  require(shared != &routed, Errc::kInvalidArgument,
          "ModularKernel: shared_experts are the experts, must be others");
  const auto prepare_finalize = prepare.live();
  const auto experts = routed.live();
  const Exclusive of_prepare = prepare.call();
  const Exclusive of_routed = routed.call();
  std::optional<Exclusive> of_shared;
  Arrays arrays;
  SharedExpert shared_expert;
  if (shared != nullptr) {
    shared_expert.experts = shared->live();
    of_shared.emplace(shared->part.busy(), "Experts");
    shared_expert.gate = arrays.in(gate, "ModularKernel: shared_gate");
    shared_expert.order = enum_from<SharedExpertsOrder>(order);
  }
  PyKernel made{Owned<ModularKernel>(without_gil([&] {
                  return std::make_unique<ModularKernel>(prepare_finalize, experts, shared_expert);
                })),
                nb::borrow(gate), experts.get(), shared_expert.experts.get()};
  prepare.part.hand_over();
  routed.part.hand_over();
  if (shared != nullptr) shared->part.hand_over();
  return made;
}

// Experts see memory of the kernel, and the arrays of the call.
std::shared_ptr<const void> memory_of(std::shared_ptr<const void> kernel, Arrays& arrays) {
  struct Memory {
    std::shared_ptr<const void> kernel;
    std::shared_ptr<const void> arrays;
  };
  return std::make_shared<Memory>(Memory{std::move(kernel), keep_all(arrays.take_held())});
}

// Keywords of prepare that these calls have no use for.
constexpr std::string_view kOfPrepareAlone[] = {"copies_inputs"};
constexpr std::string_view kOfPrepareOrOneBatch[] = {"copies_inputs", "micro_batch"};

// A call of the layer: `run` gets its arguments, output and stream.
template <typename Run>
nb::object run_layer(const PyKernel& self, nb::handle hidden, nb::handle topk_ids,
                     nb::handle topk_weights, nb::handle out, const nb::kwargs& keywords,
                     const char* function, std::span<const std::string_view> without,
                     const Run& run) {
  const auto kernel = self.live();
  const Exclusive exclusive = self.call();
  PrepareCall call(hidden, topk_ids, topk_weights, keywords, function, without);
  nb::object result = nb::borrow(out);
  if (out.is_none() && call.arguments.hidden.num_dims() == 2) {
    const std::int64_t shape[] = {call.arguments.hidden.shape(0),
                                  kernel->prepare_finalize().hidden()};
    result = nb::cast(call.arrays.allocate(self.routed->output_dtype(), shape, kernel->device()));
  }
  const TensorView output = call.arrays.out(result, (std::string(function) + ": out").c_str());
  const Stream stream = call.arrays.stream(kernel->device());
  const CallMemory memory({self.routed, self.shared}, memory_of(kernel, call.arrays));
  without_gil([&] { run(*kernel, call.arguments, output, stream); });
  return result;
}

nb::object apply(const PyKernel& self, nb::handle hidden, nb::handle topk_ids,
                 nb::handle topk_weights, nb::handle out, const nb::kwargs& keywords) {
  return run_layer(
      self, hidden, topk_ids, topk_weights, out, keywords, "apply", kOfPrepareAlone,
      [](ModularKernel& kernel, const PrepareArguments& arguments, const TensorView& output,
         Stream stream) { kernel.apply(arguments, output, stream); });
}

nb::object overlapped(const PyKernel& self, nb::handle hidden, nb::handle topk_ids,
                      nb::handle topk_weights, nb::handle out, int num_micro_batches,
                      const nb::kwargs& keywords) {
  return run_layer(self, hidden, topk_ids, topk_weights, out, keywords, "apply_overlapped",
                   kOfPrepareOrOneBatch,
                   [&](ModularKernel& kernel, const PrepareArguments& arguments,
                       const TensorView& output, Stream stream) {
                     apply_overlapped(kernel, arguments, output, num_micro_batches, stream);
                   });
}

nb::dict times_of(const PyKernel& self, int micro_batch) {
  const StageTimes& times = self.live()->times(micro_batch);
  nb::dict stages;
  stages["dispatch_ns"] = times.dispatch_ns;
  stages["place_ns"] = times.place_ns;
  stages["experts_ns"] = times.experts_ns;
  stages["combine_ns"] = times.combine_ns;
  stages["shared_ns"] = times.shared_ns;
  return stages;
}

}  // namespace

void bind_kernel(nb::module_& m) {
  nb::class_<PyKernel>(m, "ModularKernel",
                       "prepare -> experts -> finalize in one call, with a shared expert where "
                       "there is one. Takes the parts over.")
      .def(
          "__init__",
          [](PyKernel* self, PyPrepareFinalize& prepare, PyExperts& experts, nb::handle shared,
             nb::handle gate, const std::string& order) {
            new (self) PyKernel(make(prepare, experts, shared, gate, order));
          },
          nb::arg("prepare_finalize"), nb::arg("experts"),
          nb::arg("shared_experts").none() = nb::none(), nb::arg("shared_gate").none() = nb::none(),
          nb::arg("shared_order") = "mk_internal_overlapped",
          nb::sig("def __init__(self, prepare_finalize: PrepareFinalize, experts: Experts, "
                  "shared_experts: Experts | None = None, shared_gate: Array | None = None, "
                  "shared_order: Literal['none', 'no_overlap', 'mk_internal_overlapped'] = "
                  "'mk_internal_overlapped') -> None"),
          "Collective.\n\nshared_experts  one expert that every token visits on its own "
          "rank\nshared_gate     [H] or [1, H]: its row is multiplied by sigmoid(x . gate)")
      .def("apply", &apply, nb::arg("hidden"), nb::arg("topk_ids"), nb::arg("topk_weights"),
           nb::arg("out").none() = nb::none(), nb::arg("options"),
           nb::sig(
               "def apply(self, hidden: Array, topk_ids: Array, topk_weights: Array, out: Array | "
               "None = None, *, apply_router_weight_on_input: bool = False, micro_batch: int = 0, "
               "defer_input_quant: bool = False, weighs_in_place: bool = False, max_tokens: int = "
               "0, host_counts: bool = False, stream: StreamLike = None) -> Tensor"),
           "The layer's output [T, H]; without `out` new, of the dtype of the experts' results: "
           "bf16, "
           "or f32 with intermediate \"f32\". Collective. When the experts raise, the group is "
           "aborted.\n\n"
           "hidden        [T, H] bf16, f16 or f32\n"
           "topk_ids      [T, K] i32 or i64; -1: none\n"
           "topk_weights  [T, K] f32")
      .def(
          "apply_overlapped", &overlapped, nb::arg("hidden"), nb::arg("topk_ids"),
          nb::arg("topk_weights"), nb::arg("out").none() = nb::none(),
          nb::arg("num_micro_batches") = 0, nb::arg("options"),
          nb::sig("def apply_overlapped(self, hidden: Array, topk_ids: Array, topk_weights: Array, "
                  "out: Array | None = None, num_micro_batches: int = 0, *, "
                  "apply_router_weight_on_input: bool = False, defer_input_quant: bool = False, "
                  "weighs_in_place: bool = False, max_tokens: int = 0, host_counts: bool = False, "
                  "stream: StreamLike = None) -> Tensor"),
          "apply over contiguous ranges of the tokens: one range computes while another's rows "
          "travel. The bits of apply,\nwhere rows are independent. Collective.\n\n"
          "num_micro_batches  the same on every rank, up to that of the PrepareFinalize; 0: as "
          "many\n"
          "Python experts are called on threads of the library, one at a time.")
      .def_prop_ro(
          "device", [](const PyKernel& self) { return self.live()->device(); },
          "Where all of its parts work.")
      .def_prop_ro(
          "is_capturable", [](const PyKernel& self) { return self.live()->is_capturable(); },
          "Whether apply may be captured in a CUDA graph.")
      .def_prop_ro(
          "workspace_bytes", [](const PyKernel& self) { return self.live()->workspace_bytes(); },
          "Bytes of rows, expert output and scratch of the micro-batches.")
      .def("times", &times_of, nb::arg("micro_batch") = 0,
           nb::sig("def times(self, micro_batch: int = 0) -> dict[str, int]"),
           "Nanoseconds of the last call by stage.")
      .def(
          "check", [](const PyKernel& self) { self.live()->check(); },
          "Raises what kernels found; see Exchange.check.")
      .def(
          "close", [](PyKernel& self) { self.kernel.close("ModularKernel"); },
          "Ends its exchange; see Exchange.close.")
      .def(
          "__enter__", [](nb::object self) { return self; },
          nb::sig("def __enter__(self) -> ModularKernel"))
      .def(
          "__exit__",
          [](PyKernel& self, const nb::args& exception) {
            self.kernel.close("ModularKernel", ends_well(exception));
          },
          nb::sig("def __exit__(self, *exception: object) -> None"))
      .def("__repr__", [](const PyKernel& self) {
        if (self.kernel.is_closed()) return std::string("ModularKernel(closed)");
        const auto kernel = self.live();
        return fmt::format("ModularKernel('{}', experts='{}', device='{}')",
                           kernel->prepare_finalize().name(), kernel->experts().name(),
                           name_of(kernel->device()));
      });
}

}  // namespace switchyard::python

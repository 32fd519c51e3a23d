// SPDX-License-Identifier: Apache-2.0
//
// compat.h: what bindings of the compat classes share. The Python classes with the originals'
// names are in python/switchyard/compat.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "switchyard/exchange_types.h"

#include "compat/deep_ep/event.h"
#include "exchange.h"
#include "group.h"
#include "owned.h"
#include "tensors.h"

#include <nanobind/nanobind.h>

namespace switchyard::python {

/// A compat object, which lives on one device.
template <typename T>
struct PyCompat {
  Owned<T> object;
  Device device;

  Exclusive call(const char* type) const { return {object.busy(), type}; }
  std::shared_ptr<T> live(const char* type) const { return object.live(type); }
};

template <typename T, typename... Options>
PyCompat<T> make_compat(const PyGroup& py_group, nb::handle device, const Options&... options) {
  const auto group = py_group.live();
  const Exclusive call = py_group.call();
  const ExchangeOptions exchange{.device = device_from(device)};
  auto made = without_gil([&] { return std::make_unique<T>(*group, options..., exchange); });
  return {Owned<T>(std::move(made)), exchange.device};
}

/// What a call returned, and what must outlive it: the object whose memory it shows, and the
/// arguments of a call that goes on. A forked child never destroys it.
template <typename T, typename Result>
class PyResult {
 public:
  PyResult(std::shared_ptr<T> object, Result result, Stream stream)
      : shared_(new Shared{std::move(object), std::move(result), {}},
                [generation = fork_generation()](Shared* made) {
                  if (generation == fork_generation()) delete made;
                }),
        stream_(stream) {}

  Result& operator*() const { return shared_->result; }
  Result* operator->() const { return &shared_->result; }
  Stream stream() const { return stream_; }
  void hold(std::vector<nb::object> arguments) const {
    shared_->arguments = keep_all(std::move(arguments));
  }
  /// Errors: kInvalidArgument in a forked child, which shares the windows with its parent.
  void require_own_process(const char* type) const {
    require(generation_ == fork_generation(), Errc::kInvalidArgument,
            "{}: it belongs to the process that this one was forked from; make one here", type);
  }
  void release_arguments() const { shared_->arguments = nullptr; }
  /// Memory of the result, which the tensor keeps.
  nb::object tensor(const TensorView& view) const { return tensor_or_none(view, shared_, stream_); }

 private:
  struct Shared {
    std::shared_ptr<T> object;  // destroyed last
    Result result;
    std::shared_ptr<const void> arguments;
  };

  int generation_ = fork_generation();
  std::shared_ptr<Shared> shared_;
  Stream stream_;
};

/// The event of a call, in Python CompatEvent.
struct PyEvent {
  deep_ep::EventOverlap event;
  Device device;
};

template <typename T, typename Result>
PyEvent event_of(const PyResult<T, Result>& self) {
  return {self->event, self.stream().device()};
}

/// combine of DeepEP's Buffer and ElasticBuffer.
template <typename Combined, typename T, typename Dispatched>
PyResult<T, Combined> combine_rows(const char* type, const PyCompat<T>& self, nb::handle x,
                                   const PyResult<T, Dispatched>& dispatched,
                                   nb::handle topk_weights, const std::vector<nb::object>& bias,
                                   nb::handle stream_argument) {
  const auto buffer = self.live(type);
  const Exclusive call = self.call(type);
  Arrays arrays(stream_argument);
  const TensorView rows = arrays.in(x, "combine: x");
  const TensorView weights = arrays.in(topk_weights, "combine: topk_weights");
  std::vector<TensorView> terms;
  for (const nb::object& term : bias) terms.push_back(arrays.in(term, "combine: bias"));
  const Stream stream = arrays.stream(self.device);
  return {buffer, without_gil([&] {
            return buffer->combine(rows, dispatched->handle, stream, weights, terms);
          }),
          stream};
}

void bind_compat_event(nb::module_& m);
void bind_compat_low_latency(nb::module_& m);
void bind_compat_buffer(nb::module_& m);
void bind_compat_elastic(nb::module_& m);
void bind_compat_flashinfer(nb::module_& m);

}  // namespace switchyard::python

// SPDX-License-Identifier: Apache-2.0
//
// layer.h: the parts of a layer as Python objects: experts, prepare/finalize objects, kernels. A
// kernel takes the first two over; the objects that they were made as refuse calls then.
#pragma once

#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "switchyard/experts.h"
#include "switchyard/prepare_finalize.h"

#include "exchange.h"
#include "owned.h"

#include <nanobind/nanobind.h>

namespace switchyard::python {

/// A part that a kernel may take over.
template <typename T>
class Part {
 public:
  Part() = default;
  explicit Part(std::unique_ptr<T> part) : owned_(std::move(part)) {}

  /// A share of the part. Errors: kInvalidArgument when it was closed or is a kernel's.
  std::shared_ptr<T> live(const char* type) const {
    require(!is_taken_, Errc::kInvalidArgument, "{}: it is part of a ModularKernel, which calls it",
            type);
    return owned_.live(type);
  }
  /// From now on it is the kernel's; tensors and calls that hold a share keep it.
  void hand_over() {
    is_taken_ = true;
    owned_.drop();
  }
  const Busy& busy() const { return owned_.busy(); }
  void close(const char* type, bool waits_for_peers = true) { owned_.close(type, waits_for_peers); }
  void drop() { owned_.drop(); }

 private:
  Owned<T> owned_;
  bool is_taken_ = false;
};

struct PyExperts {
  Part<Experts> part;

  Exclusive call() const { return {part.busy(), "Experts"}; }
  std::shared_ptr<Experts> live() const { return part.live("Experts"); }
};

struct PyPrepareFinalize {
  Part<PrepareFinalize> part;

  Exclusive call() const { return {part.busy(), "PrepareFinalize"}; }
  std::shared_ptr<PrepareFinalize> live() const { return part.live("PrepareFinalize"); }
};

/// Experts that call a Python function, on any thread. Who calls them makes a CallMemory.
class PythonExperts final : public Experts {
 public:
  struct Facts {
    std::string name = "python";
    Device device{};
    bool is_batch_invariant = false;
    bool expects_unquantized_inputs = false;
    bool supports_packed_ue8m0_act_scales = false;
  };

  PythonExperts(nb::object function, Facts facts)
      : function_(keep(std::move(function))), facts_(std::move(facts)) {}

  std::string_view name() const override { return facts_.name; }
  Device device() const override { return facts_.device; }
  bool is_batch_invariant() const override { return facts_.is_batch_invariant; }
  bool supports_packed_ue8m0_act_scales() const override {
    return facts_.supports_packed_ue8m0_act_scales;
  }
  bool expects_unquantized_inputs() const override { return facts_.expects_unquantized_inputs; }
  bool is_capturable(bool) const override { return facts_.device.is_cuda(); }
  std::size_t workspace_bytes(const TensorView&) const override { return 0; }
  void apply(const ExpertRows& input, const TensorView& output, std::span<std::byte> workspace,
             Stream stream) override;

 private:
  friend class CallMemory;

  std::shared_ptr<const void> function_;
  Facts facts_;
  std::shared_ptr<const void> memory_;  ///< of the call that runs
};

/// What the tensors that Python functions get in a call keep alive.
class CallMemory {
 public:
  /// Experts that are no Python functions have none.
  CallMemory(std::initializer_list<Experts*> experts, const std::shared_ptr<const void>& memory);
  ~CallMemory();
  CallMemory(const CallMemory&) = delete;
  CallMemory& operator=(const CallMemory&) = delete;

 private:
  std::vector<std::pair<PythonExperts*, std::shared_ptr<const void>>> outer_;
};

}  // namespace switchyard::python

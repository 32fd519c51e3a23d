// SPDX-License-Identifier: Apache-2.0
//
// objects.h: what is behind each type of handle.
#pragma once

#include <array>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "switchyard/c.h"
#include "switchyard/eplb.h"
#include "switchyard/exchange.h"
#include "switchyard/group.h"
#include "switchyard/modular_kernel.h"
#include "switchyard/prepare_finalize.h"
#include "switchyard/quant_config.h"

#include "capi/handle.h"
#include "capi/tensors.h"

namespace switchyard::capi {

/// Memory and a view of it; both contiguous but for scales in columns.
struct ArrayObject {
  explicit ArrayObject(Tensor owner) : memory(std::move(owner)), view(memory.view()) {
    held.set(view);
  }
  ArrayObject(Tensor owner, const TensorView& part) : memory(std::move(owner)), view(part) {
    held.set(view);
  }
  ArrayObject(const ArrayObject&) = delete;
  ArrayObject& operator=(const ArrayObject&) = delete;

  Tensor memory;
  TensorView view;
  HeldTensor held{};
};

/// A dispatch outlives neither its exchange nor its combine; both are checked.
struct DispatchObject {
  std::weak_ptr<Closable<Exchange>> exchange;
  DispatchHandle handle;
  std::optional<Dispatched> received{};
  std::array<HeldTensor, 9> held{};
  HeldTensor combine_input{};
  std::vector<HeldTensor> held_payloads{};
  std::vector<const sy_tensor*> payloads{};
};

struct PrepareObject {
  /// What a send left to its receive, and the tensors of the last prepare.
  struct MicroBatch {
    std::optional<Pending<Prepared>> prepare{};
    std::optional<Pending<void>> finalize{};
    std::array<HeldTensor, 10> held{};
  };

  void close(bool waits_for_peers) const { object->close(waits_for_peers); }

  std::unique_ptr<PrepareFinalize> object;
  std::vector<MicroBatch> micro_batches;
  HeldTensor expert_map{};
};

struct ExpertsObject {
  std::unique_ptr<Experts> object;
};

struct PermutedObject {
  Tensor x;
  Tensor scales_memory;
  Tensor m_indices;
  Tensor inv_perm;
  Tensor first_row;
  Tensor expert_num_tokens;
  Tensor num_rows;
  Tensor workspace;
  TensorView scales;
  std::array<HeldTensor, 7> held{};
};

#define SWITCHYARD_HANDLE(Handle, Type)           \
  template <>                                     \
  struct Behind<Handle> {                         \
    using Object = Type;                          \
    static constexpr const char* kName = #Handle; \
  }

SWITCHYARD_HANDLE(sy_array, ArrayObject);
SWITCHYARD_HANDLE(sy_group, Group);
SWITCHYARD_HANDLE(sy_quant_config, QuantConfig);
SWITCHYARD_HANDLE(sy_exchange, Closable<Exchange>);
SWITCHYARD_HANDLE(sy_dispatch, DispatchObject);
SWITCHYARD_HANDLE(sy_prepare_finalize, Closable<PrepareObject>);
SWITCHYARD_HANDLE(sy_experts, ExpertsObject);
SWITCHYARD_HANDLE(sy_kernel, Closable<ModularKernel>);
SWITCHYARD_HANDLE(sy_permuted, PermutedObject);
SWITCHYARD_HANDLE(sy_logical_maps, LogicalMaps);
SWITCHYARD_HANDLE(sy_expert_load, ExpertLoad);

#undef SWITCHYARD_HANDLE

}  // namespace switchyard::capi

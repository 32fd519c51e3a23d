// SPDX-License-Identifier: Apache-2.0
//
// experts.cpp: the library's experts, and those of the caller behind the same class.

#include "switchyard/experts.h"

#include <array>
#include <limits>
#include <string>

#include "switchyard/c/kernel.h"
#include "switchyard/experts_factory.h"

#include "capi/layer_config.h"
#include "capi/memory.h"
#include "capi/names.h"
#include "capi/objects.h"
#include "capi/sized.h"

namespace switchyard::capi {
namespace {

class FunctionExperts final : public Experts {
 public:
  explicit FunctionExperts(const sy_expert_functions& functions)
      : functions_(functions),
        name_(text(functions.name, "name")),
        device_(device_or_cpu(functions.device, "device")) {
    check(functions.apply != nullptr, "apply is NULL, must be a function");
  }
  ~FunctionExperts() override {
    if (functions_.release != nullptr) functions_.release(functions_.user);
  }

  std::string_view name() const override { return name_; }
  Device device() const override { return device_; }
  bool is_batch_invariant() const override { return functions_.is_batch_invariant; }
  bool expects_unquantized_inputs() const override { return functions_.expects_unquantized_inputs; }
  bool is_capturable(bool) const override { return functions_.is_capturable; }
  std::size_t workspace_bytes(const TensorView& rows) const override {
    if (functions_.workspace_bytes == nullptr) return 0;
    HeldTensor held;
    return functions_.workspace_bytes(functions_.user, held.set(rows));
  }
  void apply(const ExpertRows& input, const TensorView& output, std::span<std::byte> workspace,
             Stream stream) override;

 private:
  sy_expert_functions functions_;
  std::string name_;
  Device device_;
};

void FunctionExperts::apply(const ExpertRows& input, const TensorView& output,
                            std::span<std::byte> workspace, Stream stream) {
  std::array<HeldTensor, 6> held;
  sy_expert_rows rows{};
  rows.struct_size = sizeof(rows);
  rows.rows = held[0].set(input.rows);
  rows.scales = held[1].set(input.scales);
  rows.tensor_scale = held[2].set(input.tensor_scale);
  rows.first_row = held[3].set(input.first_row);
  rows.num_rows = held[4].set(input.num_rows);
  rows.scheme = name_of_scheme(input.scheme);
  rows.scale_layout = name_of(input.scale_layout);
  const sy_status status = functions_.apply(functions_.user, &rows, held[5].set(output),
                                            workspace.data(), workspace.size(), stream.get());
  if (status != SY_OK) throw_status("apply", status);
}

std::optional<Activation> activation_of(const sy_activation* given) {
  if (given == nullptr) return std::nullopt;
  const sy_activation from = read_sized(given, "activation");
  Activation activation;
  activation.kind = named(from.kind, "kind", ActivationKind::kSiluMul);
  if (activation.kind == ActivationKind::kSiluMul) return activation;
  activation.alpha = from.alpha;
  activation.beta = from.beta;
  activation.limit = from.limit == 0 ? std::numeric_limits<float>::infinity() : from.limit;
  return activation;
}

ExpertRows expert_rows_of(const sy_expert_rows* given) {
  const sy_expert_rows from = read_required(given, "rows");
  ExpertRows rows;
  rows.rows = view_of(from.rows, "rows");
  rows.scales = optional_view(from.scales, "scales");
  rows.scheme = scheme_of(from.scheme, "scheme");
  if (!rows.scheme.is_quantized()) rows.scheme.dtype = rows.rows.dtype();
  rows.first_row = view_of(from.first_row, "first_row");
  rows.num_rows = view_of(from.num_rows, "num_rows");
  rows.tensor_scale = optional_view(from.tensor_scale, "tensor_scale");
  rows.scale_layout = named(from.scale_layout, "scale_layout", ScaleLayout::kRowMajor);
  return rows;
}

}  // namespace
}  // namespace switchyard::capi

using namespace switchyard;
using namespace switchyard::capi;

extern "C" {

sy_status sy_experts_create(const char* name, const sy_tensor* w1, const sy_tensor* w2,
                            sy_quant_config* quant, const sy_activation* activation,
                            sy_device device, sy_experts** experts) {
  return call(__func__, [&] {
    sy_experts*& result = out(experts, "experts");
    result = give<sy_experts>(make_experts(text(name, "name"), view_of(w1, "w1"), view_of(w2, "w2"),
                                           quant_config_of(quant), activation_of(activation),
                                           device_or_cpu(device, "device")));
  });
}

sy_status sy_experts_from_functions(const sy_expert_functions* functions, sy_experts** experts) {
  return call(__func__, [&] {
    sy_experts*& result = out(experts, "experts");
    result =
        give<sy_experts>(std::make_unique<FunctionExperts>(read_required(functions, "functions")));
  });
}

sy_status sy_experts_workspace_bytes(sy_experts* experts, const sy_tensor* rows, size_t* bytes) {
  return call(__func__, [&] {
    out(bytes, "bytes") = use(experts)->object->workspace_bytes(view_of(rows, "rows"));
  });
}

sy_status sy_experts_apply(sy_experts* experts, const sy_expert_rows* rows, const sy_tensor* output,
                           void* workspace, size_t workspace_bytes, void* stream) {
  return call(__func__, [&] {
    const auto of = use(experts);
    of->object->apply(expert_rows_of(rows), view_of(output, "output"),
                      workspace_of(workspace, workspace_bytes),
                      stream_of(stream, of->object->device()));
  });
}

sy_status sy_experts_destroy(sy_experts* experts) { return destroy(__func__, experts); }

}  // extern "C"

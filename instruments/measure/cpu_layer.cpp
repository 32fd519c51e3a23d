// SPDX-License-Identifier: Apache-2.0
//
// Measures a whole MoE layer; see layer_parts.h.

#include <cstring>

#include "switchyard/experts.h"
#include "switchyard/modular_kernel.h"

#include "core/clock.h"
#include "measure/bench_batch.h"
#include "measure/bench_oracle.h"
#include "measure/cpu_target.h"
#include "measure/host_bytes.h"
#include "measure/layer_parts.h"

namespace switchyard::measure {
namespace {

class LayerRun {
 public:
  LayerRun(const Group& group, const BenchShape& shape)
      : group_(group),
        shape_(shape),
        batch_(shape, group.rank()),
        output_(DType::kBF16, {shape.num_tokens, shape.workload.hidden}),
        host_bytes_(group, shape) {
    kernel_ = make_layer(group, shape, {});
  }

  const HostBytes& host_bytes() const { return host_bytes_; }

  double time(std::int64_t iteration) {
    const PrepareArguments arguments = prepare(iteration);
    group_.barrier();
    host_bytes_.begin();
    const std::int64_t start = now_ns();
    for (int layer = 0; layer < shape_.num_layers; ++layer) {
      apply_layer(*kernel_, shape_, arguments, output_);
    }
    const std::int64_t end = now_ns();
    host_bytes_.end(iteration);
    return static_cast<double>(end - start) * 1e-3;
  }

  std::int64_t count_wrong(std::int64_t iteration) {
    apply_layer(*kernel_, shape_, prepare(iteration), output_);
    const BenchOracle oracle(shape_, iteration, group_.rank(), reference_expert(shape_.workload),
                             reference_shared(shape_));
    return oracle.count_wrong_output(output_, kCheckedTokens, layer_tolerance(shape_));
  }

 private:
  PrepareArguments prepare(std::int64_t iteration) {
    batch_.make(iteration);
    std::memset(output_.data(), 0xFF, output_.view().num_bytes());
    PrepareArguments arguments;
    arguments.hidden = batch_.tokens();
    arguments.topk_ids = batch_.topk_ids();
    arguments.topk_weights = batch_.topk_weights();
    return arguments;
  }

  Group group_;
  const BenchShape& shape_;
  BenchBatch batch_;
  Tensor output_;
  HostBytes host_bytes_;
  std::unique_ptr<ModularKernel> kernel_;
};

}  // namespace

ShapeResult measure_cpu_layer(const Group& group, const BenchShape& shape,
                              const std::function<void()>& tick) {
  LayerRun run(group, shape);
  return measure_calls(run, shape, tick);
}

}  // namespace switchyard::measure

// SPDX-License-Identifier: Apache-2.0
//
// gpu_experts.cpp: experts on a GPU around either kind of products: rows are widened where they
// must be, multiplied, activated and rounded, and multiplied again. The host knows no counts:
// scratch is for all rows of the buffer, kernels look at those that count.
//
// Scratch, for N rows: the elements of the first product, where rows cannot be taken as they are,
// and later those of the second, N x max(H, I); the sums of the first, N x its columns; then what
// scales and products want.
#include <algorithm>
#include <string>

#include "switchyard/experts.h"

#include "core/bytes.h"
#include "core/carver.h"
#include "core/fail.h"
#include "cuda/quantize/quantize.h"
#include "device/cuda_module.h"
#include "device/scale_memory.h"
#include "moe/experts/expert_checks.h"
#include "moe/experts/expert_input.h"
#include "moe/experts/gpu_products.h"

namespace switchyard {
namespace {

constexpr std::size_t kAlignment = 256;

std::int64_t bytes_of(DType dtype) { return bits_of(dtype) / 8; }

bool is_rows(const TensorView& tensor) {
  return tensor.has_value() && (tensor.num_dims() == 2 || tensor.num_dims() == 3);
}

// Small tables that kernels read; absent when empty.
Tensor upload_floats(const std::vector<float>& values, Device device) {
  if (values.empty()) return {};
  return copy_to(TensorView::of(values.data(), {static_cast<std::int64_t>(values.size())}), device);
}

const float* floats_of(const Tensor& tensor) {
  return tensor.view().has_value() ? tensor.as<const float>() : nullptr;
}

class GpuExperts final : public Experts {
 public:
  GpuExperts(std::string_view name, std::unique_ptr<GpuProducts> products, const ExpertShape& shape,
             const ExpertWeights& weights, const ExpertOptions& options, Device device);

  std::string_view name() const override { return name_; }
  Device device() const override { return device_; }
  std::optional<std::int32_t> num_local_experts() const override {
    return static_cast<std::int32_t>(shape_.num_experts);
  }
  bool is_batch_invariant() const override {
    return products_->has_fixed_order() && !rounds_together();
  }
  bool is_capturable(bool is_batched) const override {
    return products_->is_capturable(is_batched);
  }
  std::size_t workspace_bytes(const TensorView& rows) const override;
  void apply(const ExpertRows& input, const TensorView& output, std::span<std::byte> workspace,
             Stream stream) override;

 private:
  struct Scratch {
    std::byte* elements = nullptr;  // of the rows; then of the activation
    float* sums = nullptr;
    float* amax = nullptr;
    std::byte* products = nullptr;
    std::size_t bytes = 0;
  };

  /// The rounding of a row depends on the expert's other rows.
  bool rounds_together() const {
    return intermediate_.group == ScaleGroup::kTensor && !scale_.view().has_value();
  }
  DType activated_dtype() const {
    return intermediate_.is_quantized() ? products_->element() : DType::kBF16;
  }
  /// Rows of this dtype go into the product as they are.
  bool takes(DType dtype) const { return dtype == DType::kBF16 || dtype == products_->element(); }

  void require_aligned(const char* name, const TensorView& rows) const;
  Scratch carve(std::int64_t num_rows, DType rows_dtype, std::byte* base) const;
  cuda::RowRanges checked_ranges(const ExpertRows& input) const;
  void widen(const ExpertRows& rows, const cuda::RowRanges& ranges, void* to, Stream stream) const;
  void activate(const cuda::RowRanges& ranges, const Scratch& scratch, Stream stream) const;
  cuda::ExpertProduct product_of(const GpuMatrices& matrices, const cuda::RowRanges& ranges) const;
  void first_half(const ExpertRows& rows, const cuda::RowRanges& ranges, const Scratch& scratch,
                  Stream stream);
  void second_half(const TensorView& output, const cuda::RowRanges& ranges, const Scratch& scratch,
                   Stream stream);

  std::string name_;
  Device device_;
  std::unique_ptr<GpuProducts> products_;
  ExpertShape shape_;
  QuantScheme intermediate_;
  Activation activation_;
  Tensor scale_;  // absent, or [L]
  Tensor gate_bias_;
  Tensor up_bias_;
  Tensor down_bias_;
  GpuMatrices gate_up_;
  GpuMatrices down_;
};

GpuExperts::GpuExperts(std::string_view name, std::unique_ptr<GpuProducts> products,
                       const ExpertShape& shape, const ExpertWeights& weights,
                       const ExpertOptions& options, Device device)
    : name_(name),
      device_(device),
      products_(std::move(products)),
      shape_(shape),
      intermediate_(options.intermediate),
      activation_(options.activation) {
  scale_ = upload_floats(expert_scalars(options.intermediate_scale, shape.num_experts), device);
  gate_bias_ = upload_floats(widen_bias(weights.gate_bias), device);
  up_bias_ = upload_floats(widen_bias(weights.up_bias), device);
  down_bias_ = upload_floats(widen_bias(weights.down_bias), device);
  gate_up_ = products_->upload(std::array{gate_of(weights), up_of(weights)}, device);
  down_ = products_->upload(std::array{down_of(weights)}, device);
}

GpuExperts::Scratch GpuExperts::carve(std::int64_t num_rows, DType rows_dtype,
                                      std::byte* base) const {
  const std::int64_t of_x =
      takes(rows_dtype) ? 0 : checked_mul(shape_.hidden, bytes_of(products_->element()));
  const std::int64_t of_h = checked_mul(shape_.intermediate, bytes_of(activated_dtype()));
  const std::int64_t of_sums = checked_mul(gate_up_.num_columns, bytes_of(DType::kF32));
  Carver carver(base, kAlignment);
  const auto take = [&](std::int64_t row_bytes) {
    return carver.carve(static_cast<std::size_t>(checked_mul(num_rows, row_bytes)));
  };
  Scratch scratch;
  scratch.elements = take(std::max(of_x, of_h));
  scratch.sums = reinterpret_cast<float*>(take(of_sums));
  if (rounds_together()) scratch.amax = carver.carve_floats(1, shape_.num_experts);
  scratch.products = carver.carve(products_->scratch_bytes(shape_.num_experts));
  scratch.bytes = carver.used_bytes();
  return scratch;
}

std::size_t GpuExperts::workspace_bytes(const TensorView& rows) const {
  require(is_rows(rows), Errc::kInvalidArgument,
          "workspace_bytes: rows is {}, must be [N, H] or [L, C, H]", rows.describe());
  const std::int64_t num_rows =
      rows.num_dims() == 3 ? checked_mul(rows.shape(0), rows.shape(1)) : rows.shape(0);
  if (num_rows == 0) return 0;
  // The workspace may start anywhere.
  return checked_add(carve(num_rows, rows.dtype(), nullptr).bytes, kAlignment);
}

cuda::RowRanges GpuExperts::checked_ranges(const ExpertRows& input) const {
  const std::int64_t num_experts = shape_.num_experts;
  const auto check = [&](const char* name, const TensorView& tensor, DType dtype) {
    require(tensor.has_value() && tensor.dtype() == dtype && tensor.num_dims() == 1 &&
                tensor.shape(0) == num_experts && tensor.is_contiguous(),
            Errc::kInvalidArgument, "apply: {} is {}, must be contiguous {} [{}]", name,
            tensor.describe(), name_of(dtype), num_experts);
  };
  check("num_rows", input.num_rows, DType::kI32);
  cuda::RowRanges ranges;
  ranges.num_rows = input.num_rows.as<const std::int32_t>();
  ranges.num_experts = num_experts;
  if (input.rows.num_dims() == 3) {
    require(input.rows.shape(0) == num_experts, Errc::kInvalidArgument,
            "apply: rows is {}, must be {} experts", input.rows.describe(), num_experts);
    ranges.capacity = input.rows.shape(1);
    ranges.total_rows = checked_mul(num_experts, ranges.capacity);
    return ranges;
  }
  check("first_row", input.first_row, DType::kI64);
  ranges.first_row = input.first_row.as<const std::int64_t>();
  ranges.capacity = input.rows.shape(0);
  ranges.total_rows = ranges.capacity;
  return ranges;
}

void GpuExperts::widen(const ExpertRows& rows, const cuda::RowRanges& ranges, void* to,
                       Stream stream) const {
  const bool is_tensor = rows.scheme.group == ScaleGroup::kTensor;
  const TensorView& scales = rows.scales;
  cuda::DequantizeJob job;
  job.scheme = rows.scheme;
  job.stored = rows.rows.dtype();
  job.q = rows.rows.as<const std::byte>();
  job.q_row_bytes = rows.rows.stride(0) * bits_of(job.stored) / 8;
  if (is_tensor) {
    job.scales.data = scales.as<std::byte>();
    job.scales.expert_stride = scales.shape(0) == 1 ? 0 : scales.stride(0);
  } else if (has_scale_a_row(rows.scheme)) {
    job.scales = memory_of(scales);
    const bool has_blocks = scales.num_dims() == 3 || scales.num_dims() == 6;
    if (has_blocks) job.scale_block_rows = ranges.total_rows / scales.shape(0);
  }
  if (rows.tensor_scale.has_value()) {
    job.tensor_scale = rows.tensor_scale.as<const float>();
    job.tensor_scale_stride = rows.tensor_scale.shape(0) == 1 ? 0 : rows.tensor_scale.stride(0);
  }
  job.y = {to, products_->element(), 0, shape_.hidden};
  job.ranges = ranges;
  job.hidden = shape_.hidden;
  cuda_module().dequantize(job, stream);
}

void GpuExperts::activate(const cuda::RowRanges& ranges, const Scratch& scratch,
                          Stream stream) const {
  cuda::ActivationJob job;
  job.ranges = ranges;
  job.gate_up = scratch.sums;
  job.gate_up_stride = gate_up_.num_columns;
  job.gate_bias = floats_of(gate_bias_);
  job.up_bias = floats_of(up_bias_);
  job.activation = activation_;
  job.scheme = intermediate_;
  job.is_simulated = intermediate_.is_simulated();
  job.scale = floats_of(scale_);
  job.amax = scratch.amax;
  job.y = scratch.elements;
  job.y_dtype = activated_dtype();
  job.width = shape_.intermediate;
  cuda_module().activate_rows(job, stream);
}

cuda::ExpertProduct GpuExperts::product_of(const GpuMatrices& matrices,
                                           const cuda::RowRanges& ranges) const {
  cuda::ExpertProduct product;
  product.ranges = ranges;
  product.weights = matrices.memory.as<const std::byte>();
  product.weight_dtype = matrices.dtype;
  product.depth = matrices.depth;
  product.num_columns = matrices.num_columns;
  return product;
}

void GpuExperts::first_half(const ExpertRows& rows, const cuda::RowRanges& ranges,
                            const Scratch& scratch, Stream stream) {
  cuda::ExpertProduct product = product_of(gate_up_, ranges);
  product.x = rows.rows.data();
  product.x_dtype = rows.rows.dtype();
  product.x_stride = rows.rows.stride(0);
  if (!takes(product.x_dtype)) {
    widen(rows, ranges, scratch.elements, stream);
    product.x = scratch.elements;
    product.x_dtype = products_->element();
    product.x_stride = shape_.hidden;
  }
  product.y = scratch.sums;
  product.y_dtype = DType::kF32;
  product.y_stride = gate_up_.num_columns;
  product.num_outputs = gate_up_.num_columns;
  products_->run(product, stream);
  activate(ranges, scratch, stream);
}

void GpuExperts::second_half(const TensorView& output, const cuda::RowRanges& ranges,
                             const Scratch& scratch, Stream stream) {
  cuda::ExpertProduct product = product_of(down_, ranges);
  product.x = scratch.elements;
  product.x_dtype = activated_dtype();
  product.x_stride = shape_.intermediate;
  product.y = output.data();
  product.y_dtype = DType::kBF16;
  product.y_stride = output.stride(0);
  product.num_outputs = shape_.hidden;
  product.bias = floats_of(down_bias_);
  products_->run(product, stream);
}

void GpuExperts::require_aligned(const char* name, const TensorView& rows) const {
  const std::size_t alignment = products_->row_alignment();
  const auto address = reinterpret_cast<std::uintptr_t>(rows.data());
  const auto stride = static_cast<std::size_t>(rows.stride(0) * bytes_of(rows.dtype()));
  require(address % alignment == 0 && stride % alignment == 0, Errc::kNotSupported,
          "apply: {} at {:#x} has rows {} bytes apart, both must be multiples of {} for \"{}\"",
          name, address, stride, alignment, name_);
}

void GpuExperts::apply(const ExpertRows& input, const TensorView& output,
                       std::span<std::byte> workspace, Stream stream) {
  require_experts_device(device_, input, output, stream);
  require(is_rows(input.rows) && output.num_dims() == input.rows.num_dims(), Errc::kInvalidArgument,
          "apply: rows is {} and output {}, must be [N, H] or [L, C, H], alike",
          input.rows.describe(), output.describe());
  const cuda::RowRanges ranges = checked_ranges(input);
  ExpertRows rows = input;
  rows.rows = flat_rows("rows", input.rows);
  const TensorView flat_output = flat_rows("output", output);
  check_buffers(shape_, rows, flat_output, output_dtype(), workspace.size(),
                workspace_bytes(input.rows));
  if (ranges.total_rows == 0) return;
  if (takes(rows.rows.dtype())) require_aligned("rows", rows.rows);
  require_aligned("output", flat_output);
  const Scratch scratch =
      carve(ranges.total_rows, rows.rows.dtype(), aligned(workspace.data(), kAlignment));
  products_->begin(ranges, scratch.products, stream);
  first_half(rows, ranges, scratch, stream);
  second_half(flat_output, ranges, scratch, stream);
}

}  // namespace

std::unique_ptr<Experts> make_gpu_experts(const char* function, std::string_view name,
                                          std::unique_ptr<GpuProducts> products,
                                          const ExpertWeights& weights,
                                          const ExpertOptions& options, Device device) {
  const ExpertShape shape = check_weights(function, weights);
  check_options(function, shape, options);
  require(output_dtype_of(options) == DType::kBF16, Errc::kNotSupported,
          "{}: intermediate is {}, must be bf16 or a quantized scheme on a GPU, whose results are "
          "bf16",
          function, name_of(options.intermediate));
  return std::make_unique<GpuExperts>(name, std::move(products), shape, weights, options, device);
}

std::unique_ptr<Experts> make_cublas_experts(const ExpertWeights& weights,
                                             const ExpertOptions& options, Device device) {
  constexpr const char* kFunction = "make_cublas_experts";
  require(device.is_cuda(), Errc::kInvalidArgument, "{}: device is {}, must be a GPU", kFunction,
          name_of(device));
  return make_gpu_experts(kFunction, "cublas", make_cublas_products(device), weights, options,
                          device);
}

std::unique_ptr<Experts> make_cutlass_experts(const ExpertWeights& weights,
                                              const ExpertOptions& options, Device device) {
  constexpr const char* kFunction = "make_cutlass_experts";
  constexpr std::int64_t kMultiple = 8;  // CUTLASS copies 16 bytes at a time
  require(device.is_cuda(), Errc::kInvalidArgument, "{}: device is {}, must be a GPU", kFunction,
          name_of(device));
  const ExpertShape shape = check_weights(kFunction, weights);
  require(shape.hidden % kMultiple == 0 && shape.intermediate % kMultiple == 0, Errc::kNotSupported,
          "{}: hidden is {}, intermediate {}, both must be multiples of {}; use \"cublas\"",
          kFunction, shape.hidden, shape.intermediate, kMultiple);
  return make_gpu_experts(kFunction, "cutlass", make_cutlass_products(device), weights, options,
                          device);
}

}  // namespace switchyard

// SPDX-License-Identifier: Apache-2.0
//
// onednn_experts.cpp: "onednn" experts: both GEMMs use oneDNN's matmul with f32 sums. Elements are
// bf16 when the processor multiplies bf16 and the weights are bf16 or quantized: rounding element *
// scale to bf16 loses at most 2^-9, less than the rounding of the weight's own format. Otherwise,
// and for f16 and f32 weights and f32 results, they are f32.
//
// Weights are reordered once, into the layout that oneDNN prefers. A matmul is compiled for a fixed
// number of rows, so a tile is processed 256, 128, 64, 32, 16 or fewer rows at a time: at most 20
// matmuls per shape. They run on the calling thread, because a rank is a thread here.
#include <algorithm>
#include <dlfcn.h>
#include <map>
#include <vector>

#include <dnnl.hpp>

#include "core/fail.h"
#include "cpu/weights.h"
#include "moe/experts/tiled_experts.h"
#include "quant/rows.h"

namespace switchyard {
namespace {

using dnnl::memory;

constexpr std::int64_t kOneDnnTileRows = 256;

// Runs `body` with one OpenMP thread and restores the caller's setting afterwards. The functions
// are looked up at run time, because oneDNN decides which OpenMP runtime is loaded, if any.
template <typename Body>
auto on_this_thread(const Body& body) {
  static const auto get = reinterpret_cast<int (*)()>(dlsym(RTLD_DEFAULT, "omp_get_max_threads"));
  static const auto set =
      reinterpret_cast<void (*)(int)>(dlsym(RTLD_DEFAULT, "omp_set_num_threads"));
  struct Restore {
    int threads = get != nullptr && set != nullptr ? get() : 0;
    ~Restore() {
      if (threads > 0) set(threads);
    }
  };
  const Restore restore;
  if (restore.threads > 0) set(1);
  try {
    return body();
  } catch (const dnnl::error& error) {
    fail(error.status == dnnl_out_of_memory ? Errc::kOutOfMemory : Errc::kInternal,
         "onednn: {}, status {}; report it with the version line", error.what(),
         static_cast<int>(error.status));
  }
}

dnnl::matmul::primitive_desc describe_matmul(const dnnl::engine& engine, const memory::desc& x,
                                             const memory::desc& w, const memory::desc& y) {
#if DNNL_VERSION_MAJOR < 3
  return {dnnl::matmul::desc(x, w, y), engine};
#else
  return {engine, x, w, y};
#endif
}

bool multiplies_bf16() {
  constexpr auto kWanted = static_cast<unsigned>(dnnl::cpu_isa::avx512_core_bf16);
  return (static_cast<unsigned>(dnnl::get_effective_cpu_isa()) & kWanted) == kWanted;
}

memory::data_type element_type(std::span<const WeightTensor> tensors, DType output) {
  if (output == DType::kF32) return memory::data_type::f32;
  for (const WeightTensor& tensor : tensors) {
    const DType dtype = tensor.values.dtype();
    if (dtype == DType::kF16 || dtype == DType::kF32) return memory::data_type::f32;
  }
  return multiplies_bf16() ? memory::data_type::bf16 : memory::data_type::f32;
}

// y [rows, n] = x [rows, k] * w^T for one matrix w [n, k] per expert, all of the same shape.
class OneDnnGemm final : public ExpertGemm {
 public:
  OneDnnGemm(std::span<const WeightTensor> tensors, DType output)
      : engine_(dnnl::engine::kind::cpu, 0),
        stream_(engine_),
        type_(element_type(tensors, output)),
        k_(tensors.front().values.shape(2)) {
    for (const WeightTensor& tensor : tensors) n_ += tensor.values.shape(1);
    weights_desc_ =
        describe(kOneDnnTileRows, {{k_, n_}, type_, memory::format_tag::any}).weights_desc();
    for (std::int64_t e = 0; e < tensors.front().values.shape(0); ++e) add_expert(tensors, e);
  }

  std::int64_t num_columns() const override { return n_; }
  std::size_t scratch_bytes(std::int64_t num_rows) const override {
    return type_ == memory::data_type::bf16 ? static_cast<std::size_t>(num_rows * k_) * 2 : 0;
  }
  void run(std::int64_t expert, const float* x, std::int64_t num_rows, float* y,
           std::byte* scratch) override {
    on_this_thread([&] { run_rows(expert, x, num_rows, y, scratch); });
  }

 private:
  // `scratch` holds x as bf16 when that is the element type.
  void run_rows(std::int64_t expert, const float* x, std::int64_t num_rows, float* y,
                std::byte* scratch) {
    const void* elements = x;
    std::int64_t row_bytes = k_ * 4;
    if (type_ == memory::data_type::bf16) {
      f32_to_bf16(x, num_rows * k_, reinterpret_cast<std::uint16_t*>(scratch));
      elements = scratch;
      row_bytes = k_ * 2;
    }
    const auto* from = static_cast<const std::byte*>(elements);
    for (std::int64_t left = num_rows; left > 0;) {
      const std::int64_t piece = piece_of(left);
      run_piece(expert, from, piece, y);
      from += piece * row_bytes;
      y += piece * n_;
      left -= piece;
    }
    stream_.wait();
  }

  static std::int64_t piece_of(std::int64_t num_rows) {
    if (num_rows < 16) return num_rows;
    std::int64_t piece = kOneDnnTileRows;
    while (piece > num_rows) piece /= 2;
    return piece;
  }

  dnnl::matmul::primitive_desc describe(std::int64_t num_rows, const memory::desc& weights) const {
    const memory::desc x({num_rows, k_}, type_, memory::format_tag::ab);
    const memory::desc y({num_rows, n_}, memory::data_type::f32, memory::format_tag::ab);
    return describe_matmul(engine_, x, weights, y);
  }

  void add_expert(std::span<const WeightTensor> tensors, std::int64_t expert) {
    std::vector<float> rows(static_cast<std::size_t>(n_ * k_));
    float* row = rows.data();
    for (const WeightTensor& tensor : tensors) {
      WeightReader reader(tensor);
      for (std::int64_t n = 0; n < tensor.values.shape(1); ++n, row += k_) {
        reader.read(expert, n, row);
      }
    }
    void* elements = rows.data();
    std::vector<std::uint16_t> narrow;
    if (type_ == memory::data_type::bf16) {
      narrow.resize(rows.size());
      f32_to_bf16(rows.data(), n_ * k_, narrow.data());
      elements = narrow.data();
    }
    memory stored({{k_, n_}, type_, memory::format_tag::ba}, engine_, elements);
    weights_.emplace_back(weights_desc_, engine_);
    dnnl::reorder(stored, weights_.back()).execute(stream_, stored, weights_.back());
    stream_.wait();
  }

  const dnnl::matmul::primitive_desc& piece_desc(std::int64_t num_rows) {
    auto found = pieces_.find(num_rows);
    if (found == pieces_.end()) {
      auto desc = describe(num_rows, weights_desc_);
      found = pieces_.emplace(num_rows, Piece{desc, dnnl::matmul(desc)}).first;
    }
    return found->second.desc;
  }

  void run_piece(std::int64_t expert, const std::byte* x, std::int64_t num_rows, float* y) {
    const dnnl::matmul::primitive_desc& desc = piece_desc(num_rows);
    const memory from(desc.src_desc(), engine_, const_cast<std::byte*>(x));
    const memory to(desc.dst_desc(), engine_, y);
    pieces_.at(num_rows).matmul.execute(
        stream_, {{DNNL_ARG_SRC, from},
                  {DNNL_ARG_WEIGHTS, weights_[static_cast<std::size_t>(expert)]},
                  {DNNL_ARG_DST, to}});
  }

  struct Piece {
    dnnl::matmul::primitive_desc desc;
    dnnl::matmul matmul;
  };

  dnnl::engine engine_;
  dnnl::stream stream_;
  memory::data_type type_;
  std::int64_t k_;
  std::int64_t n_ = 0;
  memory::desc weights_desc_;
  std::vector<memory> weights_;
  std::map<std::int64_t, Piece> pieces_;
};

}  // namespace

std::unique_ptr<Experts> make_onednn_experts(const ExpertWeights& weights,
                                             const ExpertOptions& options) {
  const DType output = output_dtype_of(options);
  const auto make_gemm = [output](std::span<const WeightTensor> tensors) {
    return on_this_thread([&] { return std::make_unique<OneDnnGemm>(tensors, output); });
  };
  return make_tiled_experts({"onednn", "make_onednn_experts", false, kOneDnnTileRows, make_gemm},
                            weights, options);
}

}  // namespace switchyard

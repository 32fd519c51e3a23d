// SPDX-License-Identifier: Apache-2.0
//
// onednn_experts.cpp: "onednn" experts: both GEMMs by oneDNN's matmul, f32 sums. Elements are bf16
// where the processor multiplies bf16 and every weight is bf16 or e4m3 (whose 3 fraction bits times
// a scale lose 2^-9 at most, far below their own rounding); else f32, as f16 and f32 weights
// deserve.
//
// Weights are reordered once to the layout that oneDNN prefers. A matmul is compiled for a number
// of rows; a tile is cut into pieces of 256, 128, 64, 32, 16 and at most 15 rows, so that no more
// than 20 are ever compiled for a shape. They run on the calling thread: a rank is a thread here.
#include <algorithm>
#include <dlfcn.h>
#include <map>
#include <vector>

#include <dnnl.hpp>

#include "core/fail.h"
#include "cpu/weights.h"
#include "moe/tiled_experts.h"
#include "quant/rows.h"

namespace switchyard {
namespace {

using dnnl::memory;

constexpr std::int64_t kTileRows = 256;

// Runs `body` with one OpenMP thread and gives the caller's setting back after it. The runtime is
// looked up, because it is oneDNN's choice which one is loaded, or whether any is.
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

memory::data_type element_type(const ExpertWeights& weights) {
  for (const TensorView* tensor : {&weights.gate, &weights.up, &weights.down}) {
    if (tensor->dtype() == DType::kF16 || tensor->dtype() == DType::kF32) {
      return memory::data_type::f32;
    }
  }
  return multiplies_bf16() ? memory::data_type::bf16 : memory::data_type::f32;
}

// y [rows, n] = x [rows, k] * w^T for one of several matrices w [n, k] of equal shape.
class Matmul {
 public:
  Matmul(const dnnl::engine& engine, memory::data_type type, std::span<const WeightTensor> tensors)
      : engine_(engine), stream_(engine), type_(type), k_(tensors.front().values.shape(2)) {
    for (const WeightTensor& tensor : tensors) n_ += tensor.values.shape(1);
    weights_desc_ = describe(kTileRows, {{k_, n_}, type_, memory::format_tag::any}).weights_desc();
    for (std::int64_t e = 0; e < tensors.front().values.shape(0); ++e) add_expert(tensors, e);
  }

  std::int64_t num_columns() const { return n_; }
  std::int64_t depth() const { return k_; }

  // x is f32; scratch holds rows * k elements of 2 bytes when the element type is bf16.
  void run(std::int64_t expert, const float* x, std::int64_t num_rows, float* y,
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

 private:
  static std::int64_t piece_of(std::int64_t num_rows) {
    if (num_rows < 16) return num_rows;
    std::int64_t piece = kTileRows;
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

class OneDnnGemms final : public ExpertGemms {
 public:
  explicit OneDnnGemms(const ExpertWeights& weights)
      : engine_(dnnl::engine::kind::cpu, 0),
        gate_up_(engine_, element_type(weights),
                 std::array<WeightTensor, 2>{
                     {{weights.gate, weights.gate_scale}, {weights.up, weights.up_scale}}}),
        down_(engine_, element_type(weights),
              std::array<WeightTensor, 1>{{{weights.down, weights.down_scale}}}) {}

  std::int64_t max_tile_rows() const override { return kTileRows; }
  std::int64_t gate_up_stride() const override { return gate_up_.num_columns(); }
  std::int64_t down_stride() const override { return down_.num_columns(); }
  std::int64_t up_column() const override { return gate_up_.num_columns() / 2; }

  std::size_t scratch_bytes(std::int64_t tile_rows) const override {
    const std::int64_t depth = std::max(gate_up_.depth(), down_.depth());
    return static_cast<std::size_t>(tile_rows * depth) * sizeof(std::uint16_t);
  }

  void gate_up(std::int64_t expert, const float* x, std::int64_t num_rows, float* y,
               std::byte* scratch) override {
    on_this_thread([&] { gate_up_.run(expert, x, num_rows, y, scratch); });
  }
  void down(std::int64_t expert, const float* h, std::int64_t num_rows, float* y,
            std::byte* scratch) override {
    on_this_thread([&] { down_.run(expert, h, num_rows, y, scratch); });
  }

 private:
  dnnl::engine engine_;
  Matmul gate_up_;
  Matmul down_;
};

}  // namespace

std::unique_ptr<Experts> make_onednn_experts(const ExpertWeights& weights,
                                             const ExpertOptions& options) {
  const ExpertShape shape = check_weights("make_onednn_experts", weights);
  check_options("make_onednn_experts", options);
  auto gemms = on_this_thread([&] { return std::make_unique<OneDnnGemms>(weights); });
  return std::make_unique<TiledExperts>("onednn", false, shape, options, std::move(gemms));
}

}  // namespace switchyard

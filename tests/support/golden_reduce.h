// SPDX-License-Identifier: Apache-2.0
//
// golden_reduce.h: weights on input, weight_and_reduce, ep_scatter and ep_gather on either device
// against reduce.safetensors.
#pragma once

#include <string>

#include "switchyard/permute.h"
#include "switchyard/weight_and_reduce.h"

#include "device/layer_rows.h"
#include "support/golden.h"

namespace switchyard::test {

struct NamedDType {
  const char* name;
  DType dtype;
};
inline constexpr NamedDType kFloatDTypes[] = {
    {"bf16", DType::kBF16}, {"f16", DType::kF16}, {"f32", DType::kF32}};

inline void expect_golden_weigh(const Golden& golden, Stream stream) {
  const Device device = stream.device();
  const Tensor weights = copy_to(golden("weigh/weights"), device);
  for (const NamedDType& kind : kFloatDTypes) {
    const std::string path = std::string("weigh/") + kind.name;
    const Tensor x = copy_to(golden(path + "/x"), device);
    const Tensor out(kind.dtype, {x.shape(0), x.shape(1)}, device);
    weigh_rows(x, weights, out, stream);
    expect_bytes(path, out, golden(path + "/out"));
  }
}

inline void expect_golden_contiguous(const Golden& golden, Stream stream) {
  const Device device = stream.device();
  const Tensor map = copy_to(golden("contiguous/map"), device);
  for (const char* num_topk : {"1", "2", "3", "8"}) {
    const std::string path = std::string("contiguous/") + num_topk + "/";
    const Tensor weights = copy_to(golden(path + "weights"), device);
    const Tensor ids = copy_to(golden(path + "ids"), device);
    for (const NamedDType& kind : kFloatDTypes) {
      for (const std::string name : {"weighted", "plain", "skip"}) {
        const std::string at = path + kind.name + "/" + name;
        const Tensor rows = copy_to(golden(path + kind.name + "/rows"), device);
        const Tensor out(kind.dtype, {rows.shape(0), rows.shape(2)}, device);
        const bool skips = name == "skip";
        weight_and_reduce(WeightAndReduce::contiguous(skips),
                          {rows, weights, ids, skips ? map.view() : TensorView{}, name == "plain"},
                          out, stream);
        expect_bytes(at, out, golden(at + "/out"));
        if (name != "plain") expect_bytes(at + " rows", rows, golden(at + "/rows"));
        // Rows that are final are copied.
        const Tensor copy(kind.dtype, {out.shape(0), out.shape(1)}, device);
        weight_and_reduce(WeightAndReduce::no_op(), {out, {}, {}}, copy, stream);
        expect_bytes(at + " copy", copy, golden(at + "/out"));
      }
    }
  }
}

inline void expect_golden_batched(const Golden& golden, Stream stream) {
  const Device device = stream.device();
  const Tensor weights = copy_to(golden("batched/weights"), device);
  const Tensor ids = copy_to(golden("batched/ids"), device);
  const WeightAndReduce policy = WeightAndReduce::naive_batched(1);
  for (const NamedDType& kind : kFloatDTypes) {
    const std::string path = std::string("batched/") + kind.name;
    const Tensor rows = copy_to(golden(path + "/rows"), device);
    const auto bytes = static_cast<std::int64_t>(
        weight_and_reduce_workspace_bytes(policy, ids.shape(0), ids.shape(1), rows.shape(0)));
    const Tensor workspace(DType::kU8, {bytes}, device);
    for (const std::string name : {"weighted", "plain"}) {
      const Tensor out(kind.dtype, {ids.shape(0), rows.shape(2)}, device);
      weight_and_reduce(policy, {rows, weights, ids, {}, name == "plain"}, out, stream,
                        {workspace.as<std::byte>(), static_cast<std::size_t>(bytes)});
      expect_bytes(path + name, out, golden(path + "/" + name + "/out"));
    }
  }
}

/// One scatter: padding rows keep the zeros that the outputs start with.
inline void expect_golden_scatter(const Golden& golden, Stream stream, const std::string& path,
                                  const char* scales, CompatPadding padding) {
  const Device device = stream.device();
  const bool has_rows = golden.has(path + "x");
  const bool is_packed = std::string(scales) == "exponents";
  const TensorView want =
      golden(path + (padding == CompatPadding::kOwner ? "owners" : "m_indices"));
  const std::int64_t num_rows = want.shape(0);
  const Tensor ids = copy_to(golden("permute/ids"), device);
  const Tensor map = copy_to(golden("permute/map"), device);
  const Tensor x = copy_to(golden("permute/x"), device);
  const Tensor from = copy_to(golden(std::string("permute/") + scales), device);
  const Tensor to_x(x.dtype(), {num_rows, x.shape(1)}, device);
  const Tensor to_scales = is_packed ? Tensor(DType::kI32, {num_rows, 2}, device)
                                     : Tensor(DType::kF32, {num_rows, 3}, device);
  const Tensor m_indices(DType::kI32, {num_rows}, device);
  const Tensor inv_perm(DType::kI32, {ids.shape(0), ids.shape(1)}, device);
  const Tensor counts(DType::kI32, {4}, device);
  const Tensor first_row(DType::kI64, {4}, device);
  const auto bytes = static_cast<std::int64_t>(
      ep_scatter_workspace_bytes(ids.shape(0), ids.shape(1), counts.shape(0)));
  const Tensor workspace(DType::kU8, {bytes}, device);
  PermuteOptions options;
  options.expert_map = map;
  options.alignment = std::stoi(path.substr(path.find('/') + 1));
  options.compat_padding = padding;
  ep_scatter(x, from, ids, options, {to_x, to_scales, m_indices, inv_perm, first_row, counts},
             stream, {workspace.as<std::byte>(), static_cast<std::size_t>(bytes)});
  expect_bytes(path + "m_indices", m_indices, want);
  expect_bytes(path + "inv_perm", inv_perm, golden(path + "inv_perm"));
  expect_bytes(path + "counts", counts, golden(path + "counts"));
  expect_bytes(path + "first_row", first_row, golden(path + "first_row"));
  if (!has_rows) return;
  expect_bytes(path + "x", to_x, golden(path + "x"));
  expect_bytes(path + scales, to_scales, golden(path + (is_packed ? "words" : "scales")));
}

inline void expect_golden_gather(const Golden& golden, Stream stream, const std::string& path) {
  const Device device = stream.device();
  const Tensor ids = copy_to(golden("permute/ids"), device);
  const Tensor map = copy_to(golden("permute/map"), device);
  const Tensor weights = copy_to(golden("permute/weights"), device);
  const Tensor inv_perm = copy_to(golden(path + "inv_perm"), device);
  for (const NamedDType& kind : kFloatDTypes) {
    const Tensor rows = copy_to(golden(path + kind.name + "/rows"), device);
    for (const NamedDType& to : kFloatDTypes) {
      const Tensor out(to.dtype, {ids.shape(0), rows.shape(1)}, device);
      ep_gather(rows, ids, weights, inv_perm, map, out, stream);
      expect_bytes(path + kind.name + " " + to.name, out, golden(path + kind.name + "/" + to.name));
    }
  }
}

inline void expect_golden_reduce(const Golden& golden, Stream stream) {
  expect_golden_weigh(golden, stream);
  expect_golden_contiguous(golden, stream);
  expect_golden_batched(golden, stream);
  for (const std::string path : {"permute/1/", "permute/8/", "permute/128/"}) {
    for (const CompatPadding padding : {CompatPadding::kNone, CompatPadding::kOwner}) {
      for (const char* scales : {"scales", "exponents"}) {
        expect_golden_scatter(golden, stream, path, scales, padding);
      }
    }
    if (path != "permute/128/") expect_golden_gather(golden, stream, path);
  }
}

}  // namespace switchyard::test

// SPDX-License-Identifier: Apache-2.0

#include "quantize.h"

#include <cstdio>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "core/fail.h"
#include "help.h"
#include "io/output_file.h"
#include "quant/scheme.h"

namespace switchyard::cli {

CLI::App* add_quantize(CLI::App& app, QuantizeOptions& options) {
  CLI::App* verb =
      app.add_subcommand("quantize", "quantize or dequantize the matrices of a safetensors file");
  verb->footer(
      "Scales lie along rows, as of activations. The result is for kernels and tests; it is no fp8 "
      "checkpoint, and `switchyard run` does not read it.");
  verb->add_option("--in", options.input, "safetensors file to read")->required();
  verb->add_option("--out", options.output, "safetensors file to write")->required();
  verb->add_option("--scheme", options.scheme, "format of the matrices")
      ->check(
          one_of(scheme_names([](const QuantScheme& scheme) { return scheme.is_quantized(); })));
  verb->add_flag("--dequantize", options.dequantize,
                 "dequantize; the file says how it was quantized, so only --dtype may go with it");
  verb->add_option(
          "--names", options.names,
          "which tensors of two dimensions, for example '*experts*_proj.weight'; the default, *, "
          "includes the router; the others are copied")
      ->capture_default_str();
  verb->add_option("--scale-layout", options.scale_layout, "layout of the scales")
      ->check(one_of<ScaleLayout>())
      ->capture_default_str();
  verb->add_flag("--pack-ue8m0", options.pack_ue8m0,
                 "mxfp4 and mxfp8: pack four exponents into an i32");
  verb->add_option("--static-scale", options.static_scale,
                   "schemes with one scale per tensor: use this one instead of a dynamic one");
  verb->add_option("--global-scale", options.global_scale,
                   "nvfp4: use this one for all; default: 448 * 6 / largest magnitude of each");
  verb->add_option("--dtype", options.dtype,
                   "dtype of dequantized matrices; default: the original one")
      ->check(one_of({"bf16", "f16", "f32"}));
  return verb;
}

int quantize(const CLI::App& verb, const QuantizeOptions& options) {
  require(options.dequantize || !options.scheme.empty(), Errc::kInvalidArgument,
          "quantize: give --scheme or --dequantize");
  require(options.dequantize || options.dtype.empty(), Errc::kInvalidArgument,
          "quantize: --dtype is {}, but it goes with --dequantize only", options.dtype);
  require(!options.dequantize || options.scheme.empty(), Errc::kInvalidArgument,
          "quantize: --scheme is {}, but with --dequantize the file says it; leave it out",
          options.scheme);
  for (const char* name :
       {"--names", "--scale-layout", "--pack-ue8m0", "--static-scale", "--global-scale"}) {
    require(!options.dequantize || verb.count(name) == 0, Errc::kInvalidArgument,
            "quantize: {} goes with --scheme, not with --dequantize", name);
  }
  check_output_path("quantize: --out", options.output);
  const QuantizeSummary summary =
      options.dequantize ? dequantize_file(options) : quantize_file(options);
  const std::string text = fmt::format(
      "{}: {} {} {} {}, {} {} copied, {} -> {} bytes\n", options.output, summary.num_converted,
      summary.num_converted == 1 ? "matrix" : "matrices",
      options.dequantize ? "dequantized from" : "quantized to", summary.scheme, summary.num_copied,
      summary.num_copied == 1 ? "tensor" : "tensors", summary.input_bytes, summary.output_bytes);
  std::fputs(text.c_str(), stdout);
  return 0;
}

}  // namespace switchyard::cli

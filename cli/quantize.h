// SPDX-License-Identifier: Apache-2.0
//
// quantize.h: the verb `quantize` converts a file of tensors to a quantized format, and back.
#pragma once

#include "quantize_file.h"

namespace CLI {
class App;
}

namespace switchyard::cli {

/// Declares the verb and its options.
CLI::App* add_quantize(CLI::App& app, QuantizeOptions& options);

/// Returns the exit code, 0. `verb` is the parsed subcommand. Errors: kInvalidArgument: options
/// that do not go together; also those of quantize_file.
int quantize(const CLI::App& verb, const QuantizeOptions& options);

}  // namespace switchyard::cli

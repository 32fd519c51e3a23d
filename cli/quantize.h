// SPDX-License-Identifier: Apache-2.0
//
// quantize.h: the verb `quantize`: a file of tensors into a format, and back.
#pragma once

#include <CLI/CLI.hpp>

#include "quantize_file.h"

namespace switchyard::cli {

/// Declares the verb and its options.
CLI::App* add_quantize(CLI::App& app, QuantizeOptions& options);

/// Returns the exit code, 0. `verb` is the parsed one. Errors: kInvalidArgument: options that do
/// not go together; further those of quantize_file.
int quantize(const CLI::App& verb, const QuantizeOptions& options);

}  // namespace switchyard::cli

// SPDX-License-Identifier: Apache-2.0
//
// exchange_launch N COMMAND...: starts the ranks of a job with the library's launcher.

#include <cstdio>
#include <exception>
#include <string>

#include "transport/launcher.h"

int main(int argc, char** argv) {
  if (argc < 3) return 2;
  switchyard::LaunchOptions options;
  options.num_ranks = std::stoi(argv[1]);
  options.command.assign(argv + 2, argv + argc);
  try {
    return switchyard::launch(options).exit_code;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "exchange_launch: %s\n", error.what());
    return 3;
  }
}

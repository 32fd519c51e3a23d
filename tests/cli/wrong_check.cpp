// SPDX-License-Identifier: Apache-2.0
//
// `switchyard check` with some cases whose expected values are wrong; check must report them.

#include <unistd.h>

#include <CLI/CLI.hpp>

#include "check.h"

namespace {

using switchyard::Group;
using namespace switchyard::conformance;

// Each rank sends its number to all; the expected sum may have wrong bits.
CheckCase sum_case(const char* engine, int num_ranks, const char* name, std::uint32_t wrong_bits) {
  CheckCase result;
  result.group = "sums";
  result.name = std::string("sums/") + engine + "/" + name;
  result.row = name;
  result.column = engine;
  result.engine = num_ranks > 0 ? engine : "";
  result.num_ranks = num_ranks;
  result.body = [=](const Group& group, std::uint64_t seed) {
    if (num_ranks > 0) group.barrier();
    const std::uint32_t got = 0x3F800000;
    const bool is_last = num_ranks == 0 || group.rank() == num_ranks - 1;
    const std::uint32_t want = got ^ (is_last ? wrong_bits : 0u);
    expect_same_bytes("sum", std::as_bytes(std::span(&got, 1)), std::as_bytes(std::span(&want, 1)),
                      4, 1);
    if (num_ranks > 0) group.barrier();
    return Agreement{seed != 9, 0.25, 0.5};
  };
  return result;
}

CheckCase dying_case() {
  CheckCase result = sum_case("shm", 2, "dies", 0);
  result.body = [](const Group& group, std::uint64_t) {
    if (group.rank() == 1) _exit(7);
    group.barrier();
    return Agreement{};
  };
  return result;
}

// A case that passes, but skips everything or leaves a part out.
CheckCase partial_case(const char* engine, int num_ranks, bool is_skipped) {
  CheckCase result = sum_case(engine, num_ranks, is_skipped ? "part_none" : "part_most", 0);
  result.row = "part";
  result.body = [=](const Group& group, std::uint64_t) {
    if (num_ranks > 0) group.barrier();
    Agreement agreement;
    if (is_skipped) agreement.skipped = "this machine has no sums";
    if (!is_skipped) agreement.left_out = {"the last sum"};
    return agreement;
  };
  return result;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app;
  switchyard::cli::CheckOptions options;
  switchyard::cli::add_check(app, options);
  CLI11_PARSE(app, argc, argv);
  return switchyard::cli::check(
      options, argv,
      {sum_case("none", 0, "right", 0), sum_case("none", 0, "wrong", 1),
       sum_case("local", 3, "right", 0), sum_case("local", 3, "wrong", 1u << 31),
       sum_case("local", 3, "after", 0), sum_case("shm", 2, "right", 0),
       sum_case("shm", 2, "wrong", 1u << 7), dying_case(), sum_case("shm", 2, "after", 0),
       partial_case("none", 0, false), partial_case("none", 0, true),
       partial_case("local", 2, false), partial_case("local", 2, true),
       partial_case("shm", 2, false), partial_case("shm", 2, true)});
}

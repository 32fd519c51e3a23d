// SPDX-License-Identifier: Apache-2.0
//
// The C interface from a program in C11, with known answers. tests/c/symbols_test.py checks that no
// exported function is missing here.
//
// usage: c_test         everything on the CPU
//        c_test cuda    what differs on GPU 0

#include "check.h"

int main(int argc, char** argv) {
  if (argc > 1 && strcmp(argv[1], "cuda") == 0) {
    test_gpu();
    return 0;
  }
  test_base();
  test_structs();
  test_groups();
  test_config();
  test_quantize();
  test_exchange();
  test_phases();
  test_layer();
  test_experts();
  test_permute();
  test_placement();
  printf("c_test: all parts passed\n");
  return 0;
}

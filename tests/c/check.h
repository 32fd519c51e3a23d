// SPDX-License-Identifier: Apache-2.0
//
// check.h: what the parts of the C test share. The first failure ends the program.
#pragma once

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "switchyard/c.h"

#define FAIL(...)                                           \
  do {                                                      \
    fprintf(stderr, "%s:%d: ", __FILE__, __LINE__);         \
    fprintf(stderr, __VA_ARGS__);                           \
    fprintf(stderr, "; last error: %s\n", sy_last_error()); \
    exit(1);                                                \
  } while (0)

#define CHECK(condition)                      \
  do {                                        \
    if (!(condition)) FAIL("%s", #condition); \
  } while (0)

#define CHECK_OK(call) CHECK((call) == SY_OK)

// The call has this status and a sentence with this phrase.
#define CHECK_REFUSED(status, phrase, call)                                                        \
  do {                                                                                             \
    const sy_status got = (call);                                                                  \
    if (got != (status) || strstr(sy_last_error(), (phrase)) == NULL)                              \
      FAIL("%s is %s, must be %s with \"%s\"", #call, sy_status_name(got), sy_status_name(status), \
           (phrase));                                                                              \
  } while (0)

// A contiguous tensor in host memory: TENSOR(data, SY_F32, 2, 3). It lives as long as its block.
#define TENSOR(memory, type, ...)                                                     \
  ((sy_tensor){.data = (memory),                                                      \
               .device = {SY_CPU, 0},                                                 \
               .ndim = (int32_t)(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)), \
               .dtype = type,                                                         \
               .shape = (int64_t[]){__VA_ARGS__}})

#define LENGTH(array) (sizeof(array) / sizeof((array)[0]))

static inline uint16_t bf16_bits(float value) {  // of values that bf16 holds exactly
  uint32_t bits = 0;
  memcpy(&bits, &value, sizeof(bits));
  return (uint16_t)(bits >> 16);
}

static inline float float_of_bf16(uint16_t bits) {
  const uint32_t wide = (uint32_t)bits << 16;
  float value = 0;
  memcpy(&value, &wide, sizeof(value));
  return value;
}

void test_base(void);
void test_structs(void);
void test_groups(void);
void test_config(void);
void test_quantize(void);
void test_exchange(void);
void test_phases(void);
void test_layer(void);
void test_experts(void);
void test_permute(void);
void test_placement(void);
void test_gpu(void);

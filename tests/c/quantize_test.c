// SPDX-License-Identifier: Apache-2.0
//
// Schemes and quantization. The numbers are powers of two, so that scales and codes can be checked
// by eye: 448 is e4m3's largest value, 0x7E.

#include "check.h"

static void test_rows(void) {
  sy_scheme_info info = {.struct_size = sizeof(info)};
  CHECK_OK(sy_scheme_describe("fp8_block", 256, &info));
  CHECK(info.num_scales == 2 && info.block == 128 && info.element_dtype.code == 10 &&
        info.scale_dtype.code == 2 && !info.needs_tensor_scale);
  CHECK_OK(sy_scheme_describe("nvfp4", 64, &info));
  CHECK(info.num_scales == 4 && info.element_dtype.bits == 4 && info.needs_tensor_scale);
  CHECK_REFUSED(SY_INVALID_ARGUMENT, "scheme is \"fp9\"", sy_scheme_describe("fp9", 64, &info));

  // Row 0: scale 2, row 1: scale 0.5.
  float x[2][4] = {{896, -896, 2, 0}, {224, 1, 0.5f, -0.5f}};
  uint8_t q[2][4];
  float scales[2];
  float y[2][4];
  const sy_tensor tx = TENSOR(x, SY_F32, 2, 4);
  const sy_tensor tq = TENSOR(q, SY_E4M3, 2, 4);
  const sy_tensor ts = TENSOR(scales, SY_F32, 2, 1);
  const sy_tensor ty = TENSOR(y, SY_F32, 2, 4);
  CHECK_OK(sy_quantize(&tx, "fp8_token", NULL, &tq, &ts, NULL));
  CHECK(scales[0] == 2.0f && scales[1] == 0.5f);
  CHECK(q[0][0] == 0x7E && q[0][1] == 0xFE && q[0][2] == 0x38 && q[0][3] == 0);
  CHECK_OK(sy_dequantize(&tq, &ts, "fp8_token", NULL, &ty, NULL));
  CHECK(memcmp(x, y, sizeof(x)) == 0);

  // The upper bound of a row's amax: 448 instead of 896.
  const float bound = 448;
  const sy_quantize_options options = {.struct_size = sizeof(options), .scale_ub = &bound};
  CHECK_OK(sy_quantize(&tx, "fp8_token", &options, &tq, &ts, NULL));
  CHECK(scales[0] == 1.0f && scales[1] == 0.5f);
  CHECK_REFUSED(SY_INVALID_ARGUMENT, "scheme is NULL",
                sy_quantize(&tx, NULL, NULL, &tq, &ts, NULL));
  CHECK_REFUSED(SY_INVALID_ARGUMENT, "e4m3", sy_quantize(&tx, "int8_token", NULL, &tq, &ts, NULL));
}

static int num_live_arrays = 0;
static void* count_alloc(void* user, size_t bytes, size_t alignment, sy_device device,
                         void* stream) {
  (void)user, (void)device, (void)stream;
  ++num_live_arrays;
  return aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
}
static void count_free(void* user, void* data, size_t bytes, sy_device device, void* stream) {
  (void)user, (void)bytes, (void)device, (void)stream;
  --num_live_arrays;
  free(data);
}

static void test_new(void) {
  static float x[5][256];
  for (int t = 0; t < 5; ++t) {
    for (int h = 0; h < 256; ++h) x[t][h] = h < 128 ? 448.0f : 896.0f;
  }
  const sy_tensor tx = TENSOR(x, SY_F32, 5, 256);
  const sy_allocator allocator = {sizeof(allocator), NULL, count_alloc, count_free};
  sy_array* q = NULL;
  sy_array* scales = NULL;
  CHECK_OK(sy_quantize_new(&tx, "fp8_block", "column_major_aligned", NULL, &allocator, NULL, &q,
                           &scales));
  CHECK(num_live_arrays == 2);
  sy_tensor tq, ts;
  CHECK_OK(sy_array_tensor(q, &tq));
  CHECK_OK(sy_array_tensor(scales, &ts));
  CHECK(tq.shape[0] == 5 && tq.shape[1] == 256 && ((uint8_t*)tq.data)[255] == 0x7E);
  CHECK(ts.shape[0] == 5 && ts.shape[1] == 2 && ts.strides[0] == 1 && ts.strides[1] == 8);
  CHECK(((float*)ts.data)[4] == 1.0f && ((float*)ts.data)[8 + 4] == 2.0f);

  // Columns to rows.
  float rows[5][2];
  const sy_tensor tr = TENSOR(rows, SY_F32, 5, 2);
  CHECK_OK(sy_scales_relayout(&ts, &tr));
  CHECK(rows[4][0] == 1.0f && rows[4][1] == 2.0f);
  CHECK_OK(sy_array_destroy(q));
  CHECK_OK(sy_array_destroy(scales));
  CHECK(num_live_arrays == 0);

  // One scale for the tensor: 896 / 127.
  CHECK_OK(sy_quantize_new(&tx, "int8_tensor", NULL, NULL, NULL, NULL, &q, &scales));
  CHECK_OK(sy_array_tensor(q, &tq));
  CHECK_OK(sy_array_tensor(scales, &ts));
  CHECK(ts.ndim == 1 && fabsf(*(float*)ts.data - 896.0f / 127.0f) < 1e-5f);
  CHECK(((int8_t*)tq.data)[255] == 127);
  CHECK_OK(sy_array_destroy(q));
  CHECK_OK(sy_array_destroy(scales));
  CHECK_REFUSED(SY_INVALID_ARGUMENT, "swizzled",
                sy_quantize_new(&tx, "mxfp8", "swizzled", NULL, &allocator, NULL, &q, &scales));
  CHECK(num_live_arrays == 0);
}

static void test_batched(void) {
  float x[2][2][4] = {{{448, 0, 0, 0}, {9, 9, 9, 9}}, {{0, -896, 0, 0}, {0, 0, 0, 224}}};
  int32_t counts[2] = {1, 2};
  uint8_t q[2][2][4];
  float scales[2][2][1];
  memset(q, 0x11, sizeof(q));
  const sy_tensor tx = TENSOR(x, SY_F32, 2, 2, 4);
  const sy_tensor tc = TENSOR(counts, SY_I32, 2);
  const sy_tensor tq = TENSOR(q, SY_E4M3, 2, 2, 4);
  const sy_tensor ts = TENSOR(scales, SY_F32, 2, 2, 1);
  CHECK_OK(sy_quantize_batched(&tx, &tc, "fp8_token", NULL, &tq, &ts, NULL));
  CHECK(scales[0][0][0] == 1.0f && scales[0][1][0] == 0.0f && scales[1][1][0] == 0.5f);
  CHECK(q[0][0][0] == 0x7E && q[0][1][0] == 0x11 && q[1][0][1] == 0xFE);
  counts[0] = 3;
  CHECK_REFUSED(SY_INVALID_ARGUMENT, "3",
                sy_quantize_batched(&tx, &tc, "fp8_token", NULL, &tq, &ts, NULL));
}

static void test_activation(void) {
  // silu of a large gate is the gate: rows of gate * up = 448 and 224.
  float x[2][4] = {{64, 64, 7, 7}, {64, 64, 3.5f, 3.5f}};
  uint8_t q[2][2];
  float scales[2][1];
  const sy_tensor tx = TENSOR(x, SY_F32, 2, 4);
  const sy_tensor tq = TENSOR(q, SY_E4M3, 2, 2);
  const sy_tensor ts = TENSOR(scales, SY_F32, 2, 1);
  CHECK_OK(sy_silu_mul_quantize(&tx, NULL, "fp8_token", false, NULL, &tq, &ts, NULL));
  CHECK(scales[0][0] == 1.0f && scales[1][0] == 0.5f && q[0][0] == 0x7E && q[1][1] == 0x7E);

  int32_t counts[1] = {1};
  const sy_tensor tc = TENSOR(counts, SY_I32, 1);
  const sy_tensor bx = TENSOR(x, SY_F32, 1, 2, 4);
  const sy_tensor bq = TENSOR(q, SY_E4M3, 1, 2, 2);
  const sy_tensor bs = TENSOR(scales, SY_F32, 1, 2, 1);
  CHECK_OK(sy_silu_mul_quantize(&bx, &tc, "fp8_block", true, NULL, &bq, &bs, NULL));
  CHECK(fabsf(scales[0][0] - 1.0f) < 1e-6f && scales[1][0] == 0.0f);
}

void test_quantize(void) {
  test_rows();
  test_new();
  test_batched();
  test_activation();
}

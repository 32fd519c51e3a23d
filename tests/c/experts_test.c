// SPDX-License-Identifier: Apache-2.0
//
// The router, the library's experts alone, and a kernel with a shared expert.

#include "check.h"

enum { kHidden = 2, kInner = 1 };

// One token prefers expert 2, the other expert 0: logits 0, 1, 2 and 2, 1, 0.
static void test_router(void) {
  float hidden[2][kHidden] = {{1, 0}, {0, 1}};
  float gate[3][kHidden] = {{0, 2}, {1, 1}, {2, 0}};
  float logits[2][3];
  int64_t ids[2][2];
  float weights[2][2];
  const sy_tensor th = TENSOR(hidden, SY_F32, 2, kHidden);
  const sy_tensor tg = TENSOR(gate, SY_F32, 3, kHidden);
  const sy_tensor tl = TENSOR(logits, SY_F32, 2, 3);
  const sy_tensor ti = TENSOR(ids, SY_I64, 2, 2);
  const sy_tensor tw = TENSOR(weights, SY_F32, 2, 2);
  CHECK_OK(sy_router_logits(&th, &tg, &tl));
  CHECK(logits[0][0] == 0 && logits[0][2] == 2 && logits[1][0] == 2);
  sy_router_config config = {
      .struct_size = sizeof(config), .num_experts = 3, .num_topk = 2, .norm_topk_prob = true};
  CHECK_OK(sy_select_experts(&config, &tl, NULL, &ti, &tw));
  CHECK(ids[0][0] == 2 && ids[0][1] == 1 && ids[1][0] == 0 && ids[1][1] == 1);
  const float best = expf(2) / (expf(2) + expf(1));
  CHECK(fabsf(weights[0][0] - best) < 1e-6f && fabsf(weights[0][0] + weights[0][1] - 1) < 1e-6f);

  // The bias moves the choice, not the weights; sigmoid(0) is one half.
  float bias[3] = {9, 0, 0};
  const sy_tensor tb = TENSOR(bias, SY_F32, 3);
  config.norm_topk_prob = false;
  config.scoring = "sigmoid";
  CHECK_OK(sy_select_experts(&config, &tl, &tb, &ti, &tw));
  CHECK(ids[0][0] == 0 && weights[0][0] == 0.5f);
  // With the bias on the logits it counts: logits 9, 1 and 2. A divisor of no less than 4.
  config.bias_on_logits = true;
  config.norm_topk_prob = true;
  config.norm_min = 4;
  CHECK_OK(sy_select_experts(&config, &tl, &tb, &ti, &tw));
  CHECK(ids[0][0] == 0 && fabsf(weights[0][0] - 0.24996915f) < 1e-6f);
  config.bias_on_logits = config.norm_topk_prob = false;
  config.scoring = "sparse_mixer";
  config.jitter = 0.3f;  // 1 and 2 are near, 0 is not
  CHECK_OK(sy_select_experts(&config, &tl, NULL, &ti, &tw));
  CHECK(ids[0][0] == 2 && ids[0][1] == 1 && fabsf(weights[0][0] - best) < 1e-6f);
  CHECK(weights[0][1] == 1);
  config.scoring = "dice";
  CHECK_REFUSED(SY_INVALID_ARGUMENT, "scoring is \"dice\"",
                sy_select_experts(&config, &tl, NULL, &ti, &tw));
  config.scoring = NULL;
  config.group_selection = "loudest";
  CHECK_REFUSED(SY_INVALID_ARGUMENT, "group_selection is \"loudest\"",
                sy_select_experts(&config, &tl, NULL, &ti, &tw));
}

// gate and up are the first element, down doubles: a row (64, *) becomes 2 * 64 * 64 twice, because
// silu of 64 is 64.
static float w1[1][2 * kInner][kHidden] = {{{1, 0}, {1, 0}}};
static float w2[1][kHidden][kInner] = {{{2}, {2}}};

static sy_experts* make_exact(void) {
  const sy_tensor t1 = TENSOR(w1, SY_F32, 1, 2 * kInner, kHidden);
  const sy_tensor t2 = TENSOR(w2, SY_F32, 1, kHidden, kInner);
  const sy_device cpu = {SY_CPU, 0};
  sy_experts* experts = NULL;
  CHECK_OK(sy_experts_create("exact", &t1, &t2, NULL, NULL, cpu, &experts));
  return experts;
}

static void test_exact(void) {
  sy_experts* experts = make_exact();
  float row[1][kHidden] = {{64, 3}};
  int64_t first_row[1] = {0};
  int32_t num_rows[1] = {1};
  uint16_t result[1][kHidden];
  const sy_tensor tr = TENSOR(row, SY_F32, 1, kHidden);
  const sy_tensor tf = TENSOR(first_row, SY_I64, 1);
  const sy_tensor tn = TENSOR(num_rows, SY_I32, 1);
  const sy_tensor to = TENSOR(result, SY_BF16, 1, kHidden);
  size_t bytes = 0;
  CHECK_OK(sy_experts_workspace_bytes(experts, &tr, &bytes));
  void* workspace = bytes == 0 ? NULL : aligned_alloc(128, (bytes + 127) / 128 * 128);
  const sy_expert_rows rows = {
      .struct_size = sizeof(rows), .rows = &tr, .first_row = &tf, .num_rows = &tn};
  CHECK_OK(sy_experts_apply(experts, &rows, &to, workspace, bytes, NULL));
  CHECK(float_of_bf16(result[0][0]) == 8192.0f && float_of_bf16(result[0][1]) == 8192.0f);
  if (bytes > 0) {
    CHECK_REFUSED(SY_WORKSPACE_TOO_SMALL, "bytes",
                  sy_experts_apply(experts, &rows, &to, NULL, 0, NULL));
  }
  CHECK_REFUSED(SY_INVALID_ARGUMENT, "rows is NULL",
                sy_experts_apply(experts, NULL, &to, workspace, bytes, NULL));
  CHECK_REFUSED(SY_INVALID_ARGUMENT, "workspace is NULL, must be 64 bytes",
                sy_experts_apply(experts, &rows, &to, NULL, 64, NULL));
  free(workspace);
  CHECK_OK(sy_experts_destroy(experts));

  const sy_tensor t1 = TENSOR(w1, SY_F32, 1, 2 * kInner, kHidden);
  const sy_tensor t2 = TENSOR(w2, SY_F32, 1, kHidden, kInner);
  const sy_device cpu = {SY_CPU, 0};
  const sy_activation clamped = {.struct_size = sizeof(clamped),
                                 .kind = "clamped_swiglu",
                                 .alpha = 1.702f,
                                 .beta = 1.0f,
                                 .limit = 7.0f};
  CHECK_OK(sy_experts_create("exact", &t1, &t2, NULL, &clamped, cpu, &experts));
  CHECK_OK(sy_experts_destroy(experts));
  CHECK_REFUSED(SY_INVALID_ARGUMENT, "abacus",
                sy_experts_create("abacus", &t1, &t2, NULL, NULL, cpu, &experts));
}

// One rank, one routed expert of weight 0.5, and the same expert again as the shared one.
static void test_shared(void) {
  const sy_moe_config moe = {.struct_size = sizeof(moe),
                             .num_experts = 1,
                             .num_topk = 1,
                             .hidden = kHidden,
                             .max_num_tokens = 1};
  sy_prepare_finalize* prepare = NULL;
  CHECK_OK(sy_prepare_finalize_create(NULL, &moe, NULL, NULL, &prepare));
  sy_experts* routed = make_exact();
  const sy_shared_expert shared = {
      .struct_size = sizeof(shared), .experts = make_exact(), .no_overlap = true};
  sy_kernel* kernel = NULL;
  CHECK_REFUSED(SY_INVALID_ARGUMENT, "must be others",
                sy_kernel_create(prepare, shared.experts, &shared, &kernel));
  CHECK_OK(sy_kernel_create(prepare, routed, &shared, &kernel));
  uint16_t hidden[1][kHidden] = {{bf16_bits(64), 0}};
  int32_t ids[1][1] = {{0}};
  float weights[1][1] = {{0.5f}};
  uint16_t output[1][kHidden];
  const sy_tensor th = TENSOR(hidden, SY_BF16, 1, kHidden);
  const sy_tensor ti = TENSOR(ids, SY_I32, 1, 1);
  const sy_tensor tw = TENSOR(weights, SY_F32, 1, 1);
  const sy_tensor to = TENSOR(output, SY_BF16, 1, kHidden);
  const sy_prepare_arguments arguments = {
      .struct_size = sizeof(arguments), .hidden = &th, .topk_ids = &ti, .topk_weights = &tw};
  CHECK_OK(sy_kernel_apply(kernel, &arguments, &to, NULL));
  CHECK(float_of_bf16(output[0][0]) == 4096.0f + 8192.0f);
  CHECK_OK(sy_kernel_destroy(kernel));
}

void test_experts(void) {
  test_router();
  test_exact();
  test_shared();
}

// SPDX-License-Identifier: Apache-2.0
//
// Rows grouped by expert and summed again. Three tokens, two experts, alignment 4: expert 0 gets
// tokens 0 and 2 in rows 0 and 1, expert 1 tokens 0 and 1 in rows 4 and 5.

#include "check.h"

enum { kTokens = 3, kTopk = 2, kHidden = 2, kRows = 8 };

typedef struct Batch {
  float x[kTokens][kHidden];
  float scales[kTokens][1];
  int32_t ids[kTokens][kTopk];
  float weights[kTokens][kTopk];
  float output[kTokens][kHidden];
} Batch;

static const Batch kBatch = {.x = {{1, 2}, {3, 4}, {5, 6}},
                             .scales = {{10}, {20}, {30}},
                             .ids = {{0, 1}, {1, -1}, {-1, 0}},
                             .weights = {{0.5f, 0.25f}, {2, 9}, {9, 1}}};

static void check_permuted(const sy_scatter_outputs* out) {
  const float* x = out->x->data;
  const int32_t* experts = out->m_indices->data;
  const int32_t* rows = out->inv_perm->data;
  const int64_t* first_row = out->first_row->data;
  CHECK(out->x->shape[0] == kRows && out->x->shape[1] == kHidden);
  CHECK(x[0] == 1 && x[2] == 5 && x[4 * kHidden] == 1 && x[5 * kHidden + 1] == 4);
  CHECK(experts[0] == 0 && experts[2] == -1 && experts[4] == 1 && experts[5] == 1);
  CHECK(rows[0] == 0 && rows[1] == 4 && rows[2] == 5 && rows[3] == -1 && rows[5] == 1);
  CHECK(first_row[0] == 0 && first_row[1] == 4);
  CHECK(((int32_t*)out->expert_num_tokens->data)[1] == 2);
  CHECK(((int64_t*)out->num_rows->data)[0] == kRows);
}

static void check_sums(const Batch* batch) {
  CHECK(batch->output[0][0] == 0.75f && batch->output[0][1] == 1.5f);
  CHECK(batch->output[1][0] == 6 && batch->output[2][1] == 6);
}

static void test_counts(void) {
  Batch batch = kBatch;
  const sy_tensor ids = TENSOR(batch.ids, SY_I32, kTokens, kTopk);
  int32_t counts[2] = {-1, -1};
  const sy_tensor tc = TENSOR(counts, SY_I32, 2);
  CHECK_OK(sy_count_expert_tokens(&ids, &tc, NULL, NULL, NULL));
  CHECK(counts[0] == 2 && counts[1] == 2);
  int64_t rows = 0;
  CHECK_OK(sy_aligned_rows(kTokens, kTopk, 2, 4, &tc, &rows));
  CHECK(rows == kRows);
  CHECK_OK(sy_aligned_rows(kTokens, kTopk, 2, 4, NULL, &rows));
  CHECK(rows == 12);  // up(6 + 2 * 3, 4)
  CHECK_REFUSED(SY_INVALID_ARGUMENT, "alignment",
                sy_aligned_rows(kTokens, kTopk, 2, 0, NULL, &rows));
}

static void test_new(void) {
  Batch batch = kBatch;
  const sy_tensor x = TENSOR(batch.x, SY_F32, kTokens, kHidden);
  const sy_tensor scales = TENSOR(batch.scales, SY_F32, kTokens, 1);
  const sy_tensor ids = TENSOR(batch.ids, SY_I32, kTokens, kTopk);
  const sy_tensor weights = TENSOR(batch.weights, SY_F32, kTokens, kTopk);
  const sy_tensor output = TENSOR(batch.output, SY_F32, kTokens, kHidden);
  sy_permute_options options = {.struct_size = sizeof(options), .alignment = 4};
  sy_permuted* permuted = NULL;
  sy_scatter_outputs out = {.struct_size = sizeof(out)};
  CHECK_OK(sy_permute(&x, &scales, &ids, 2, &options, NULL, NULL, &permuted));
  CHECK_OK(sy_permuted_tensors(permuted, &out));
  check_permuted(&out);
  const float* row_scales = out.scales->data;
  CHECK(row_scales[1] == 30 && row_scales[4] == 10 && row_scales[2] == 0);
  CHECK_OK(sy_unpermute_and_reduce(out.x, out.inv_perm, &weights, &output, NULL, NULL));
  check_sums(&batch);
  memset(batch.output, 0, sizeof(batch.output));
  CHECK_OK(sy_gather(out.x, &ids, &weights, out.inv_perm, NULL, &output, NULL, NULL));
  check_sums(&batch);
  CHECK_OK(sy_permuted_destroy(permuted));
  options.compat_padding = "owner";
  CHECK_OK(sy_permute(&x, &scales, &ids, 2, &options, NULL, NULL, &permuted));
  CHECK_OK(sy_permuted_tensors(permuted, &out));
  const int32_t* owners = out.m_indices->data;
  CHECK(owners[3] == 0 && owners[7] == 1);  // padding behind each expert's rows
  CHECK_OK(sy_permuted_destroy(permuted));
  options.compat_padding = "zero";
  CHECK_REFUSED(SY_INVALID_ARGUMENT, "compat_padding is \"zero\", must be none or owner",
                sy_permute(&x, &scales, &ids, 2, &options, NULL, NULL, &permuted));
  CHECK_REFUSED(SY_INVALID_ARGUMENT, "sy_permuted was destroyed",
                sy_permuted_tensors(permuted, &out));
  options.scale_layout = "swizzled";
  CHECK_REFUSED(SY_INVALID_ARGUMENT, "swizzled",
                sy_permute(&x, &scales, &ids, 2, &options, NULL, NULL, &permuted));
  const sy_tensor flat = TENSOR(batch.ids, SY_I32, kTokens * kTopk);
  CHECK_REFUSED(SY_INVALID_ARGUMENT, "[T, K]",
                sy_permute(&x, NULL, &flat, 2, NULL, NULL, NULL, &permuted));
}

static void test_scatter(void) {
  Batch batch = kBatch;
  float rows[kRows][kHidden];
  int32_t experts[kRows], inv_perm[kTokens][kTopk], counts[2];
  int64_t first_row[2], num_rows[1];
  const sy_tensor x = TENSOR(batch.x, SY_F32, kTokens, kHidden);
  const sy_tensor ids = TENSOR(batch.ids, SY_I32, kTokens, kTopk);
  const sy_tensor tr = TENSOR(rows, SY_F32, kRows, kHidden);
  const sy_tensor te = TENSOR(experts, SY_I32, kRows);
  const sy_tensor tp = TENSOR(inv_perm, SY_I32, kTokens, kTopk);
  const sy_tensor tf = TENSOR(first_row, SY_I64, 2);
  const sy_tensor tc = TENSOR(counts, SY_I32, 2);
  const sy_tensor tn = TENSOR(num_rows, SY_I64, 1);
  sy_scatter_outputs out = {.struct_size = sizeof(out),
                            .x = &tr,
                            .m_indices = &te,
                            .inv_perm = &tp,
                            .first_row = &tf,
                            .expert_num_tokens = &tc,
                            .num_rows = &tn};
  const sy_permute_options options = {.struct_size = sizeof(options), .alignment = 4};
  CHECK_OK(sy_scatter(&x, NULL, &ids, &options, &out, NULL, 0, NULL, NULL));
  check_permuted(&out);
  size_t bytes = 0;
  CHECK_OK(sy_scatter_workspace_bytes(kTokens, kTopk, 2, &bytes));
  CHECK(bytes > 0);
  const sy_tensor few = TENSOR(rows, SY_F32, 4, kHidden);
  const sy_tensor few_experts = TENSOR(experts, SY_I32, 4);
  out.x = &few;
  out.m_indices = &few_experts;
  CHECK_REFUSED(SY_WORKSPACE_TOO_SMALL, "8",
                sy_scatter(&x, NULL, &ids, &options, &out, NULL, 0, NULL, NULL));
  out.m_indices = NULL;
  CHECK_REFUSED(SY_INVALID_ARGUMENT, "m_indices is NULL",
                sy_scatter(&x, NULL, &ids, &options, &out, NULL, 0, NULL, NULL));
}

// Rows (t, k) of one token: 1 and 10, weights 0.5 and 0.25.
static void test_weights(void) {
  float rows[1][2][1] = {{{1}, {10}}};
  int32_t ids[1][2] = {{0, 1}};
  float weights[1][2] = {{0.5f, 0.25f}};
  float output[1][1] = {{0}};
  const sy_tensor tr = TENSOR(rows, SY_F32, 1, 2, 1);
  const sy_tensor ti = TENSOR(ids, SY_I32, 1, 2);
  const sy_tensor tw = TENSOR(weights, SY_F32, 1, 2);
  const sy_tensor to = TENSOR(output, SY_F32, 1, 1);
  sy_weight_and_reduce_arguments arguments = {.struct_size = sizeof(arguments),
                                              .kind = "contiguous",
                                              .expert_output = &tr,
                                              .topk_weights = &tw,
                                              .topk_ids = &ti};
  CHECK_OK(sy_weight_and_reduce(&arguments, &to, NULL, 0, NULL, NULL));
  CHECK(output[0][0] == 3.0f);

  float batched[2][1][1] = {{{1}}, {{10}}};
  const sy_tensor tb = TENSOR(batched, SY_F32, 2, 1, 1);
  arguments.kind = "naive_batched";
  arguments.expert_output = &tb;
  CHECK_OK(sy_weight_and_reduce(&arguments, &to, NULL, 0, NULL, NULL));
  CHECK(output[0][0] == 3.0f);
  arguments.kind = NULL;
  CHECK_REFUSED(SY_INVALID_ARGUMENT, "delegate",
                sy_weight_and_reduce(&arguments, &to, NULL, 0, NULL, NULL));
  arguments.kind = "twice";
  CHECK_REFUSED(SY_INVALID_ARGUMENT, "kind is \"twice\"",
                sy_weight_and_reduce(&arguments, &to, NULL, 0, NULL, NULL));
  size_t contiguous = 1, batch = 0;
  CHECK_OK(sy_weight_and_reduce_workspace_bytes("contiguous", 1, 2, 2, &contiguous));
  CHECK_OK(sy_weight_and_reduce_workspace_bytes("naive_batched", 1, 2, 2, &batch));
  CHECK(contiguous == 0 && batch > 0);
}

void test_permute(void) {
  test_counts();
  test_new();
  test_scatter();
  test_weights();
}

// SPDX-License-Identifier: Apache-2.0
//
// One MoE layer in C over 1, 2 and 4 local ranks: router, prepare, experts and finalize through a
// kernel. Every number of ranks gives the same bits; the program checks that.

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <switchyard/c.h>

enum { kTokens = 8, kHidden = 128, kInner = 64, kExperts = 4, kTopk = 2 };

// A call that must succeed. A program would hand the status to its caller.
#define MUST(call)                                                          \
  do {                                                                      \
    const sy_status status = (call);                                        \
    if (status != SY_OK) {                                                  \
      fprintf(stderr, "%s: %s\n", sy_status_name(status), sy_last_error()); \
      exit(1);                                                              \
    }                                                                       \
  } while (0)

// A tensor in host memory: DLPack's struct.
#define TENSOR(memory, type, ...)                            \
  ((sy_tensor){.data = (memory),                             \
               .device = {SY_CPU, 0},                        \
               .ndim = sizeof((int64_t[]){__VA_ARGS__}) / 8, \
               .dtype = type,                                \
               .shape = (int64_t[]){__VA_ARGS__}})

// What a checkpoint would hold: numbers from -0.25 to 0.25 that follow from their place.
static void fill(float* to, size_t count, unsigned seed) {
  for (size_t i = 0; i < count; ++i) {
    seed = seed * 1664525u + 1013904223u;
    to[i] = (float)(seed >> 16) / 131072.0f - 0.25f;
  }
}

static struct {
  float gate[kExperts][kHidden];            // of the router
  float w1[kExperts][2 * kInner][kHidden];  // gate, then up
  float w2[kExperts][kHidden][kInner];      // down
  float hidden[kTokens][kHidden];           // the tokens of all ranks
} model;

typedef struct Output {
  uint16_t rows[kTokens][kHidden];  // bf16
} Output;

// The layer of one rank, which holds its share of the experts.
static sy_kernel* make_layer(sy_group* group, int32_t rank, int32_t size) {
  const sy_parallel_options parallel = {.struct_size = sizeof(parallel),
                                        .dp_size = size,
                                        .dp_rank = rank,
                                        .enable_expert_parallel = true,
                                        .all2all_backend = "deepep_low_latency"};
  const sy_moe_config moe = {.struct_size = sizeof(moe),
                             .num_experts = kExperts,
                             .num_topk = kTopk,
                             .hidden = kHidden,
                             .parallel = &parallel,
                             .in_dtype = "f32",
                             .max_num_tokens = kTokens};
  sy_prepare_finalize* prepare = NULL;
  MUST(sy_prepare_finalize_create(group, &moe, NULL, NULL, &prepare));

  const int32_t num_local = kExperts / size;
  const sy_tensor w1 = TENSOR(model.w1[rank * num_local], SY_F32, num_local, 2 * kInner, kHidden);
  const sy_tensor w2 = TENSOR(model.w2[rank * num_local], SY_F32, num_local, kHidden, kInner);
  sy_experts* experts = NULL;
  MUST(sy_experts_create("exact", &w1, &w2, NULL, NULL, (sy_device){SY_CPU, 0}, &experts));
  sy_kernel* layer = NULL;
  MUST(sy_kernel_create(prepare, experts, NULL, &layer));  // takes both
  return layer;
}

static sy_status run_rank(void* user, sy_group* group) {
  Output* output = user;
  sy_group_info info = {.struct_size = sizeof(info)};
  MUST(sy_group_describe(group, &info));
  sy_kernel* layer = make_layer(group, info.rank, info.size);

  const int64_t num_tokens = kTokens / info.size;
  const int64_t first = info.rank * num_tokens;
  float logits[kTokens][kExperts], topk_weights[kTokens][kTopk];
  int32_t topk_ids[kTokens][kTopk];
  const sy_tensor x = TENSOR(model.hidden[first], SY_F32, num_tokens, kHidden);
  const sy_tensor gate = TENSOR(model.gate, SY_F32, kExperts, kHidden);
  const sy_tensor scores = TENSOR(logits, SY_F32, num_tokens, kExperts);
  const sy_tensor ids = TENSOR(topk_ids, SY_I32, num_tokens, kTopk);
  const sy_tensor shares = TENSOR(topk_weights, SY_F32, num_tokens, kTopk);
  const sy_tensor y = TENSOR(output->rows[first], SY_BF16, num_tokens, kHidden);

  const sy_router_config router = {.struct_size = sizeof(router),
                                   .num_experts = kExperts,
                                   .num_topk = kTopk,
                                   .norm_topk_prob = true};
  MUST(sy_router_logits(&x, &gate, &scores));
  MUST(sy_select_experts(&router, &scores, NULL, &ids, &shares));
  const sy_prepare_arguments arguments = {
      .struct_size = sizeof(arguments), .hidden = &x, .topk_ids = &ids, .topk_weights = &shares};
  MUST(sy_kernel_apply(layer, &arguments, &y, NULL));
  MUST(sy_kernel_destroy(layer));
  return SY_OK;
}

int main(void) {
  fill(&model.gate[0][0], kExperts * kHidden, 1);
  fill(&model.w1[0][0][0], kExperts * 2 * kInner * kHidden, 2);
  fill(&model.w2[0][0][0], kExperts * kHidden * kInner, 3);
  fill(&model.hidden[0][0], kTokens * kHidden, 4);
  static Output alone;
  MUST(sy_run_local_ranks(1, run_rank, &alone, NULL));
  for (int size = 1; size <= 4; size *= 2) {
    static Output output;
    MUST(sy_run_local_ranks(size, run_rank, &output, NULL));
    const int is_same = memcmp(&output, &alone, sizeof(output)) == 0 && output.rows[0][0] != 0;
    printf("%d rank%s: %s bits as one rank\n", size, size == 1 ? "" : "s",
           is_same ? "same" : "OTHER");
    if (!is_same) return 1;
  }
  return 0;
}

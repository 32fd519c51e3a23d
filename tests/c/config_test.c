// SPDX-License-Identifier: Apache-2.0
//
// Parallelism, sizes and quantization of a layer.

#include "check.h"

static void test_parallel(void) {
  sy_parallel_options options = {.struct_size = sizeof(options),
                                 .dp_size = 4,
                                 .dp_rank = 3,
                                 .tp_size = 2,
                                 .tp_rank = 1,
                                 .enable_expert_parallel = true,
                                 .all2all_backend = "deepep_low_latency"};
  sy_parallel_config config = {.struct_size = sizeof(config)};
  CHECK_OK(sy_parallel_describe(&options, &config));
  CHECK(config.ep_size == 8 && config.ep_rank == 7 && config.tp_size == 1 && config.use_ep);
  CHECK(config.use_all2all_kernels && config.use_batched_activation_format);
  CHECK(strcmp(config.all2all_backend, "deepep_low_latency") == 0);
  CHECK_OK(sy_parallel_describe(NULL, &config));
  CHECK(config.ep_size == 1 && !config.use_ep && !config.use_all2all_kernels);
  options.all2all_backend = "pigeons";
  CHECK_REFUSED(SY_INVALID_ARGUMENT, "\"pigeons\"", sy_parallel_describe(&options, &config));
  options.all2all_backend = NULL;
  options.dp_rank = 4;
  CHECK_REFUSED(SY_INVALID_ARGUMENT, "4", sy_parallel_describe(&options, &config));

  sy_moe_config moe = {.struct_size = sizeof(moe), .num_experts = 8, .num_topk = 2, .hidden = 64};
  CHECK_OK(sy_moe_config_check(&moe));
  moe.in_dtype = "e4m3";
  CHECK_REFUSED(SY_INVALID_ARGUMENT, "e4m3", sy_moe_config_check(&moe));
  moe.in_dtype = "f16";
  moe.num_topk = 9;
  CHECK_REFUSED(SY_INVALID_ARGUMENT, "9", sy_moe_config_check(&moe));
  const int32_t held[] = {8, 0};
  moe.num_topk = 2;
  moe.experts_per_rank = held;
  moe.num_experts_per_rank = 2;
  CHECK_REFUSED(SY_INVALID_ARGUMENT, "num_experts_per_rank is 2, must be ep_size, 1, or 0",
                sy_moe_config_check(&moe));
  moe.num_experts_per_rank = 1;
  CHECK_OK(sy_moe_config_check(&moe));
  CHECK_REFUSED(SY_INVALID_ARGUMENT, "moe is NULL", sy_moe_config_check(NULL));
}

// The builder, what it says of itself, and an option that it does not have.
typedef struct Builder {
  const char* name;
  const char* quant_dtype;
  const char* weight_dtype;
  const char* scheme;
} Builder;

static const Builder kBuilders[] = {
    {"unquantized", "none", "none", "none"},
    {"make", "fp8_e4m3", "fp8_e4m3", "fp8_tensor"},
    {"fp8_w8a8", "fp8_e4m3", "fp8_e4m3", "fp8_tensor"},
    {"int8_w8a8", "int8", "int8", "int8_tensor"},
    {"mxfp4_w4a16", "none", "mxfp4", "none"},
    {"ocp_mx", "mxfp4", "mxfp4", "mxfp4"},
    {"nvfp4", "nvfp4", "nvfp4", "nvfp4"},
    {"int4_w4a16", "none", "int4", "none"},
    {"int8_w8a16", "none", "int8", "none"},
    {"biased", "none", "none", "none"},
    {"gptq_marlin", "none", "int4", "none"},
    {"mxfp4_mxfp8", "mxfp8", "mxfp4", "mxfp8"},
    {"mxfp4_w4a8", "fp8", "mxfp4", "fp8_tensor"},
    {"mxfp4", "mxfp4", "mxfp4", "mxfp4"},
    {"nvfp4_w4a16", "none", "nvfp4", "none"},
    {"fp8_w8a16", "none", "fp8_e4m3", "none"},
    {"int4_w4afp8", "fp8_e4m3", "int4", "fp8_tensor"},
};

static void test_builders(void) {
  for (size_t i = 0; i < LENGTH(kBuilders); ++i) {
    sy_quant_options options = {.struct_size = sizeof(options)};
    if (strcmp(kBuilders[i].name, "make") == 0) options.quant_dtype = "fp8_e4m3";
    sy_quant_config* config = NULL;
    CHECK_OK(sy_quant_config_create(kBuilders[i].name, &options, &config));
    sy_quant_info info = {.struct_size = sizeof(info)};
    CHECK_OK(sy_quant_config_describe(config, &info));
    if (strcmp(info.quant_dtype, kBuilders[i].quant_dtype) != 0 ||
        strcmp(info.weight_dtype, kBuilders[i].weight_dtype) != 0 || info.scheme == NULL ||
        strcmp(info.scheme, kBuilders[i].scheme) != 0) {
      FAIL("%s: %s %s %s", kBuilders[i].name, info.quant_dtype, info.weight_dtype,
           info.scheme == NULL ? "NULL" : info.scheme);
    }
    CHECK_OK(sy_quant_config_destroy(config));
  }
}

void test_config(void) {
  test_parallel();
  test_builders();

  const sy_quant_options blocks = {.struct_size = sizeof(blocks), .block_shape = {128, 128}};
  sy_quant_config* config = NULL;
  CHECK_OK(sy_quant_config_create("fp8_w8a8", &blocks, &config));
  sy_quant_info info = {.struct_size = sizeof(info)};
  CHECK_OK(sy_quant_config_describe(config, &info));
  CHECK(info.is_quantized && !info.is_per_tensor && strcmp(info.scheme, "fp8_block") == 0);
  CHECK(info.block_shape[0] == 128 && info.block_shape[1] == 128 && info.is_scale_swizzled);
  CHECK(info.ocp_mx_scheme == NULL);
  int64_t shape[2] = {0, 0};
  CHECK_OK(sy_quant_config_scale_shape(config, 5, 300, shape));
  CHECK(shape[0] == 5 && shape[1] == 3);
  CHECK_OK(sy_quant_config_destroy(config));

  CHECK_REFUSED(SY_INVALID_ARGUMENT, "block_shape is set",
                sy_quant_config_create("nvfp4", &blocks, &config));
  CHECK_REFUSED(SY_INVALID_ARGUMENT, "builder is \"fp7\"",
                sy_quant_config_create("fp7", NULL, &config));
  CHECK_REFUSED(SY_INVALID_ARGUMENT, "sy_quant_config was destroyed",
                sy_quant_config_scale_shape(config, 5, 300, shape));
}

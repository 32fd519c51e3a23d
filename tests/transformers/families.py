# SPDX-License-Identifier: Apache-2.0
"""The models of generate.py, one entry each: tiny, with other switches than the family's defaults.

An entry names a class of transformers, its configuration and the MoE layer whose block is compared.
"""

import dataclasses
import typing

ATTENTION = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "vocab_size": 32}
# Of DeepSeek's attention.
LATENT = {"num_attention_heads": 4, "num_key_value_heads": 4, "vocab_size": 32, "q_lora_rank": 8, "kv_lora_rank": 8,
          "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 8}
# Of Qwen's linear attention.
LINEAR = {"linear_num_key_heads": 2, "linear_num_value_heads": 2, "linear_key_head_dim": 8, "linear_value_head_dim": 8}
SIZES = {"hidden_size": 32, "intermediate_size": 40, "num_hidden_layers": 2}
VISION = {"depth": 1, "hidden_size": 16, "intermediate_size": 16, "num_heads": 2, "out_hidden_size": 32}


@dataclasses.dataclass(frozen=True)
class Model:
    architecture: str            # a class of transformers
    config: dict                 # of its configuration class; of text_config where vision is given
    layer: int = 1
    vision: dict | None = None   # a wrapper's vision_config
    relabel: dict = dataclasses.field(default_factory=dict)  # keys of config.json to replace
    fused: bool = False          # written with save_original_format=False
    mxfp4: bool = False          # the experts are written as gpt-oss publishes them: blocks and scales
    # Random weights, as (part of a name, standard deviation) with the first that fits; else 0.2.
    scales: tuple = ()
    block: typing.Callable | None = None   # from the decoder layer to its MoE block; default: .mlp


DEEPSEEK_V3 = {**SIZES, **LATENT, "moe_intermediate_size": 8, "n_routed_experts": 8, "num_experts_per_tok": 3, "n_shared_experts": 2,
               "first_k_dense_replace": 1, "n_group": 4, "topk_group": 2, "norm_topk_prob": False, "routed_scaling_factor": 1.7}
QWEN3 = {**SIZES, **ATTENTION, "moe_intermediate_size": 8, "num_experts": 8, "num_experts_per_tok": 3}
QWEN2 = {**QWEN3, "shared_expert_intermediate_size": 24}
MIXTRAL = {**SIZES, **ATTENTION, "intermediate_size": 8, "num_local_experts": 6, "num_experts_per_tok": 3}
GLM = {**SIZES, **ATTENTION, "moe_intermediate_size": 8, "n_routed_experts": 8, "num_experts_per_tok": 3, "n_shared_experts": 2,
       "first_k_dense_replace": 1, "n_group": 2, "topk_group": 1, "norm_topk_prob": False, "routed_scaling_factor": 1.8}

ERNIE = {**SIZES, **ATTENTION, "moe_intermediate_size": 16, "moe_num_experts": 8, "moe_k": 3, "moe_num_shared_experts": 1,
         "moe_norm_min": 0.4, "use_bias": True}
GPT_OSS = {**MIXTRAL, "swiglu_alpha": 1.3, "swiglu_limit": 1.25}
LLAMA4 = {**SIZES, **ATTENTION, "intermediate_size": 24, "intermediate_size_mlp": 40, "num_local_experts": 6, "interleave_moe_layer_step": 2,
          "num_experts_per_tok": 1}

MODELS = {
    "deepseek_v2": Model("DeepseekV2ForCausalLM", {
        **DEEPSEEK_V3, "topk_method": "group_limited_greedy", "routed_scaling_factor": 16.0}),
    "deepseek_v3": Model("DeepseekV3ForCausalLM", DEEPSEEK_V3),
    "deepseek_v3_fused": Model("DeepseekV3ForCausalLM", {**DEEPSEEK_V3, "norm_topk_prob": True}, fused=True),
    "deepseek_v32": Model("DeepseekV32ForCausalLM", {**DEEPSEEK_V3, "norm_topk_prob": True, "n_group": 2, "topk_group": 1}),
    # Kimi-K2 is DeepSeek-V3's block under another model_type, which only its own code on the hub has.
    "kimi_k2": Model("DeepseekV3ForCausalLM", {
        **DEEPSEEK_V3, "n_group": 1, "topk_group": 1, "norm_topk_prob": True, "routed_scaling_factor": 2.827, "n_shared_experts": 1},
        relabel={"model_type": "kimi_k2", "scoring_func": "sigmoid", "topk_method": "noaux_tc", "moe_layer_freq": 1}),
    "kimi_k25": Model("Kimi_K25ForConditionalGeneration", {
        **DEEPSEEK_V3, "model_type": "deepseek_v3", "n_group": 1, "topk_group": 1},
        vision={"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}),
    "glm4_moe": Model("Glm4MoeForCausalLM", GLM),
    "glm4v_moe": Model("Glm4vMoeForConditionalGeneration", {**GLM, "model_type": "glm4v_moe_text"}, vision=VISION),
    "dots1": Model("Dots1ForCausalLM", {**GLM, "norm_topk_prob": True, "routed_scaling_factor": 2.5}),
    "qwen2_moe": Model("Qwen2MoeForCausalLM", {**QWEN2, "norm_topk_prob": True, "mlp_only_layers": [0]}),
    "qwen2_moe_fused": Model("Qwen2MoeForCausalLM", {**QWEN2, "decoder_sparse_step": 2}, fused=True),
    "qwen3_moe": Model("Qwen3MoeForCausalLM", {**QWEN3, "norm_topk_prob": True}),
    "qwen3_vl_moe": Model("Qwen3VLMoeForConditionalGeneration", {**QWEN3, "model_type": "qwen3_vl_moe_text"},
                          vision={**VISION, "num_position_embeddings": 16, "deepstack_visual_indexes": [0]}),
    "qwen3_next": Model("Qwen3NextForCausalLM", {**QWEN2, **LINEAR, "norm_topk_prob": False}),
    "qwen3_5_moe": Model("Qwen3_5MoeForConditionalGeneration", {**QWEN2, **LINEAR, "model_type": "qwen3_5_moe_text"},
                         vision={**VISION, "num_position_embeddings": 16}),
    "olmoe": Model("OlmoeForCausalLM", {**SIZES, **ATTENTION, "intermediate_size": 8, "num_experts": 8, "num_experts_per_tok": 3,
                                        "norm_topk_prob": True}),
    "mixtral": Model("MixtralForCausalLM", MIXTRAL),
    "mixtral_fused": Model("MixtralForCausalLM", {**MIXTRAL, "num_experts_per_tok": 1}, fused=True),
    "minimax": Model("MiniMaxForCausalLM", {**MIXTRAL, "num_local_experts": 5}),
    "minimax_m2": Model("MiniMaxM2ForCausalLM", MIXTRAL),
    "minimax_m2_fused": Model("MiniMaxM2ForCausalLM", {**MIXTRAL, "num_experts_per_tok": 2}, fused=True),
    "granitemoe": Model("GraniteMoeForCausalLM", MIXTRAL, block=lambda layer: layer.block_sparse_moe),
    "granitemoe_fused": Model("GraniteMoeForCausalLM", MIXTRAL, fused=True, block=lambda layer: layer.block_sparse_moe),
    "hunyuan_v1_moe": Model("HunYuanMoEV1ForCausalLM", {
        **SIZES, **ATTENTION, "intermediate_size": 24, "num_experts": 7, "moe_topk": [3, 3]}),
    "ernie4_5_moe": Model("Ernie4_5_MoeForCausalLM", ERNIE),
    "ernie4_5_moe_fused": Model("Ernie4_5_MoeForCausalLM", {
        **ERNIE, "use_bias": False, "moe_num_shared_experts": 0, "moe_layer_interval": 2}, fused=True),
    "phimoe": Model("PhimoeForCausalLM", {**MIXTRAL, "num_experts_per_tok": 2, "router_jitter_noise": 0.2}),
    "phimoe_fused": Model("PhimoeForCausalLM", {**MIXTRAL, "num_experts_per_tok": 2}, fused=True),
    "gpt_oss": Model("GptOssForCausalLM", GPT_OSS),
    "gpt_oss_mxfp4": Model("GptOssForCausalLM", {**GPT_OSS, "hidden_size": 64, "intermediate_size": 96, "num_local_experts": 4}, mxfp4=True,
                           relabel={"quantization_config": {"quant_method": "mxfp4"}}),
    "llama4": Model("Llama4ForConditionalGeneration", {**LLAMA4, "model_type": "llama4_text"}, block=lambda layer: layer.feed_forward,
                    vision={"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
                            "vision_output_dim": 16, "projector_input_dim": 16, "projector_output_dim": 16, "image_size": 28,
                            "patch_size": 14}),
    "llama4_text": Model("Llama4ForCausalLM", {**LLAMA4, "moe_layers": [1]}, block=lambda layer: layer.feed_forward),
}

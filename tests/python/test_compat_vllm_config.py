# SPDX-License-Identifier: Apache-2.0
"""The records of vLLM's configuration, the registry that picks a class, what formats prepare returns."""
import types

import ml_dtypes
import numpy as np
import pytest

import switchyard
from switchyard import run_local
from switchyard.compat import vllm

P, E, K, H, T = 2, 4, 2, 512, 5
BF16, E4M3 = ml_dtypes.bfloat16, np.dtype(ml_dtypes.float8_e4m3fn)
SCALE = np.ones(E, np.float32)
ONE = np.array([0.05], np.float32)
W = {"w1_scale": SCALE, "w2_scale": SCALE}
ALPHAS = {"g1_alphas": SCALE, "g2_alphas": SCALE}
GSCALES = {"a1_gscale": np.array([400.0], np.float32), "a2_gscale": np.array([400.0], np.float32)}


def parallel(rank, backend, *, is_expert_parallel=True, dp=P, tp=1):
    engine = types.SimpleNamespace(enable_expert_parallel=is_expert_parallel, all2all_backend=backend, enable_eplb=False)
    return vllm.FusedMoEParallelConfig.make(tp, 1, dp, 1, engine, tp_rank=rank % tp, pcp_rank=0, dp_rank=rank // tp)


def sizes(rank, backend, **changes):
    return vllm.FusedMoEConfig(num_experts=E, experts_per_token=K, hidden_dim=H, intermediate_size=64, num_local_experts=E // P,
                               num_logical_experts=E, activation="silu", device="cpu", routing_method=vllm.RoutingMethodType.Default,
                               moe_parallel_config=parallel(rank, backend, **changes), in_dtype=BF16, max_num_tokens=8)


# maker, its arguments, (quant_dtype, weight_quant_dtype, block_shape, predicates that hold, config_name, ocp_mx_scheme)
MAKERS = [
    ("fp8_w8a8", W, (E4M3, E4M3, None, {"use_fp8_w8a8", "is_per_tensor"}, "fp8_w8a8", None)),
    ("fp8_w8a8", {**W, "block_shape": [128, 128]}, (E4M3, E4M3, [128, 128], {"use_fp8_w8a8", "is_block_quantized"}, "fp8_w8a8", None)),
    ("fp8_w8a8", {**W, "per_act_token_quant": True, "per_out_ch_quant": True},
     (E4M3, E4M3, None, {"use_fp8_w8a8", "per_act_token_quant", "is_per_act_token", "per_out_ch_quant"}, "fp8_w8a8", None)),
    ("int8_w8a8", {**W, "a1_scale": None, "a2_scale": None, "per_act_token_quant": True},
     ("int8", "int8", None, {"use_int8_w8a8", "per_act_token_quant", "is_per_act_token"}, None, None)),
    ("mxfp4_w4a16", W, (None, "mxfp4", None, {"use_mxfp4_w4a16"}, None, "w_mxfp4")),
    ("ocp_mx", {**W, "quant_dtype": "mxfp6_e3m2", "weight_dtype": "mxfp4"},
     ("mxfp6_e3m2", "mxfp4", None, {"is_per_tensor"}, None, "w_mxfp4_a_mxfp6_e3m2")),
    ("ocp_mx", {**W, "quant_dtype": "mxfp6_e3m2", "weight_dtype": "mxfp6_e2m3"},
     ("mxfp6_e3m2", "mxfp6_e2m3", None, {"is_per_tensor"}, None, None)),
    ("nvfp4", {**W, **ALPHAS, **GSCALES}, ("nvfp4", "nvfp4", None, {"use_nvfp4_w4a4", "is_per_tensor"}, None, None)),
    ("int4_w4a16", {**W, "block_shape": [1, 64]}, (None, "int4", [1, 64], {"use_int4_w4a16", "is_block_quantized"}, "int4_w4a16", None)),
    ("int8_w8a16", {**W, "block_shape": [0, 64]}, (None, "int8", [0, 64], {"use_int8_w8a16", "is_block_quantized"}, "int8_w8a16", None)),
    ("biased", {"w1_bias": SCALE, "w2_bias": SCALE}, (None, None, None, set(), None, None)),
    ("gptq_marlin", {**W, "weight_bits": 8, "group_size": -1}, (None, "int8", None, {"use_int8_w8a16"}, "int8_w8a16", None)),
    ("gptq_marlin", {**W, "weight_bits": 4, "group_size": 32},
     (None, "int4", [1, 32], {"use_int4_w4a16", "is_block_quantized"}, "int4_w4a16", None)),
    ("mxfp4_mxfp8", {**W, "mx_alignment": 64}, ("mxfp8", "mxfp4", None, set(), None, None)),
    ("mxfp4_w4a8", {**W, "a1_scale": ONE}, ("fp8", "mxfp4", None, {"use_mxfp4_w4a8"}, None, "w_mxfp4_a_fp8")),
    ("mxfp4", W, ("mxfp4", "mxfp4", None, {"use_mxfp4_w4a4", "is_per_tensor"}, None, "w_mxfp4_a_mxfp4")),
    ("nvfp4_w4a16", {**W, **ALPHAS}, (None, "nvfp4", None, {"use_nvfp4_w4a16"}, None, None)),
    ("fp8_w8a16", {**W, "block_shape": [128, 128]}, (None, E4M3, None, {"use_fp8_w8a16"}, "fp8_w8a16", None)),
    ("int4_w4afp8", {**W, **ALPHAS}, (E4M3, "int4", None, {"use_fp8_w8a8", "is_per_tensor"}, "fp8_w8a8", None)),
]
PREDICATES = ["use_fp8_w8a8", "use_int8_w8a8", "use_int8_w8a16", "use_fp8_w8a16", "use_int4_w4a16", "use_nvfp4_w4a16", "use_mxfp4_w4a16",
              "use_mxfp4_w4a4", "use_nvfp4_w4a4", "use_mxfp4_w4a8", "is_per_act_token", "per_act_token_quant", "per_out_ch_quant",
              "is_per_tensor", "is_block_quantized"]


def name_of(dtype):
    """Words, and dtypes of torch and numpy, by one name."""
    return {"float8_e4m3fn": "e4m3", "int8": "i8"}.get(str(dtype).rpartition(".")[2], dtype)


@pytest.mark.parametrize("maker, arguments, expected", MAKERS, ids=lambda value: value if isinstance(value, str) else "")
def test_makers(maker, arguments, expected):
    made = getattr(vllm, f"{maker}_moe_quant_config")(**arguments)
    quant, weights, block, holding, config_name, scheme = expected
    assert (name_of(made.quant_dtype), name_of(made.weight_quant_dtype)) == (name_of(quant), name_of(weights))
    assert made.block_shape == block and made.is_quantized == (quant is not None)
    assert {name for name in PREDICATES if getattr(made, name)} == holding
    assert made.config_name(BF16) == config_name and made.ocp_mx_scheme == scheme
    assert made.config_name(np.float32) == (config_name or (None if scheme else "float32"))
    for name, given in arguments.items():
        if hasattr(type(made), name) and name != "block_shape":
            assert getattr(made, name) is given or getattr(made, name) == given


def test_shapes_of_scales():
    assert vllm.FUSED_MOE_UNQUANTIZED_CONFIG.scale_shape(64, 7168) is None
    assert vllm.fp8_w8a8_moe_quant_config(**W).scale_shape(64, 7168) == (1, 1)
    assert vllm.fp8_w8a8_moe_quant_config(**W, per_act_token_quant=True).batched_scale_shape(4, 64, 7168) == (4, 64, 1)
    assert vllm.fp8_w8a8_moe_quant_config(**W, block_shape=[128, 128]).scale_shape(64, 7160) == (64, 56)
    with pytest.raises(switchyard.InvalidArgumentError, match=r"block_shape is \[128\], must be \[rows, columns\]"):
        vllm.fp8_w8a8_moe_quant_config(**W, block_shape=[128])
    weights_only = vllm.int8_w8a16_moe_quant_config(**W, block_shape=[1, 64])  # a block, and nothing quantized
    assert weights_only.is_block_quantized and weights_only.scale_shape(64, 128) is None


def test_makers_take_the_order_of_2025():
    fp8, int8 = vllm.fp8_w8a8_moe_quant_config, vllm.int8_w8a8_moe_quant_config
    assert fp8(SCALE, SCALE, None, None, True, True) == fp8(**W, per_act_token_quant=True, per_out_ch_quant=True)
    assert fp8(SCALE, SCALE, None, None, False, False, [128, 128]) == fp8(**W, block_shape=[128, 128])
    assert fp8(SCALE, SCALE, None, None, False, block_shape=[128, 128]) == fp8(**W, block_shape=[128, 128])
    for other in ([128, 128], SCALE):
        with pytest.raises(switchyard.InvalidArgumentError, match="per_out_ch_quant is a (list|ndarray), must be a bool"):
            fp8(SCALE, SCALE, None, None, True, other)
    assert int8(SCALE, SCALE, None, None, True) == int8(**W, a1_scale=None, a2_scale=None, per_act_token_quant=True)
    for weights_only in (vllm.int4_w4a16_moe_quant_config, vllm.int8_w8a16_moe_quant_config):
        assert weights_only(SCALE, SCALE, None, None, [1, 64]) == weights_only(**W, block_shape=[1, 64])
        assert weights_only(SCALE, SCALE, None, None, SCALE).w1_bias is SCALE


def test_group_shapes_and_opaque_scales():
    tensor, token, channel = (getattr(vllm.GroupShape, f"PER_{name}") for name in ("TENSOR", "TOKEN", "CHANNEL"))
    assert (tensor, token, channel) == ((-1, -1), (1, -1), (-1, 1))
    assert tensor.is_per_tensor() and token.is_per_token() and channel.is_per_channel() and vllm.GroupShape(1, 64).is_per_group()
    assert not (token.is_per_group() or tensor.is_per_token() or vllm.GroupShape(128, 128).is_per_group())
    opaque = vllm.mxfp4_w4a16_moe_quant_config(object(), SCALE)
    assert opaque.w1_precision is not None and opaque.w2_scale is SCALE
    for name in ("w1_scale", "w2_precision"):
        with pytest.raises(switchyard.InvalidArgumentError, match=name):
            getattr(opaque, name)


@pytest.mark.parametrize("tp, dp, is_expert_parallel, expected", [
    (1, 1, True, [((1, 0), (1, 0), (1, 0))]),
    (2, 1, False, [((2, i), (1, 0), (1, 0)) for i in range(2)]),
    (1, 2, False, [((2, i), (2, i), (1, 0)) for i in range(2)]),
    (2, 2, False, [((4, i), (2, i // 2), (1, 0)) for i in range(4)]),
    (2, 1, True, [((1, 0), (1, 0), (2, i)) for i in range(2)]),
    (1, 2, True, [((1, 0), (2, i), (2, i)) for i in range(2)]),
    (2, 2, True, [((1, 0), (2, i // 2), (4, i)) for i in range(4)]),
])
def test_parallelism(tp, dp, is_expert_parallel, expected):
    for device, (of_tp, of_dp, of_ep) in enumerate(expected):
        made = parallel(device, "deepep_low_latency", is_expert_parallel=is_expert_parallel, dp=dp, tp=tp)
        assert ((made.tp_size, made.tp_rank), (made.dp_size, made.dp_rank), (made.ep_size, made.ep_rank)) == (of_tp, of_dp, of_ep)
        assert made.use_ep == (is_expert_parallel and tp * dp > 1)
        assert made.use_all2all_kernels == made.use_deepep_ll_kernels == made.use_batched_activation_format == (made.use_ep and dp > 1)
        flat = vllm.FusedMoEParallelConfig.flatten_tp_across_dp_and_pcp(tp, dp, device // tp, 1, 0, tp_rank=device % tp)
        assert flat == (tp * dp, device)


def test_parallelism_of_older_versions():
    engine = types.SimpleNamespace(enable_expert_parallel=True, all2all_backend="naive")
    ranks = {"tp_rank": 0, "dp_rank": 1}
    made = vllm.FusedMoEParallelConfig.make(1, 1, 2, 1, engine, **ranks)
    assert made.ep_rank == 1 and not made.enable_eplb
    for older in ((1, 2, engine), (1, 1, 2, engine)):
        assert vllm.FusedMoEParallelConfig.make(*older, **ranks) == made
    assert vllm.FusedMoEParallelConfig.make(tp_size_=1, dp_size_=2, vllm_parallel_config=engine, **ranks) == made
    for sizes_alone in ((1, 1, 2, 1), (2, 4), (2,)):
        with pytest.raises(switchyard.InvalidArgumentError, match="vllm_parallel_config is absent"):
            vllm.FusedMoEParallelConfig.make(*sizes_alone)
    with pytest.raises(switchyard.InvalidArgumentError, match="dp_size_ is absent, must be given by name"):
        vllm.FusedMoEParallelConfig.make(2, 4, vllm_parallel_config=engine)
    for one in (vllm.FusedMoEParallelConfig, vllm.FusedMoEConfig):
        with pytest.raises(TypeError, match="positional argument"):
            one(1, 2, 3)


def test_sizes():
    made = sizes(1, "deepep_v2")
    assert not made.use_pplx_kernels and not made.use_flashinfer_cutlass_kernels and sizes(1, "pplx").use_pplx_kernels
    assert (made.ep_rank, made.ep_size, made.use_ep, made.use_deepep_v2_kernels, made.use_mori_kernels) == (1, 2, True, True, False)
    assert (made.hidden_dim_unpadded, made.intermediate_size_per_partition, made.router_logits_dtype) == (H, 64, BF16)
    assert made.is_act_and_mul and vllm.FusedMoEParallelConfig.make_no_parallel().ep_size == 1
    method = vllm.get_routing_method_type
    assert method("sigmoid", 8, True, 4, True).name == "DeepSeekV3" and method("softmax", 8, False, None, False) == 0
    assert method("softmax", 8, True, None, True).name == "Unspecified" and int(vllm.RoutingMethodType.DeepseekV4) == 100


def test_hidden_sizes_of_the_originals():
    low_latency = vllm.DeepEPLLPrepareAndFinalize.maybe_roundup_layer_hidden_size
    assert [low_latency(size) for size in (1, 2048, 2049, 7168)] == [2048, 2048, 2560, 7168]
    for one in (vllm.DeepEPHTPrepareAndFinalize, vllm.DeepEPV2PrepareAndFinalize):
        assert one.maybe_roundup_layer_hidden_size(2880, np.dtype(BF16)) == 3072
        assert one.maybe_roundup_layer_hidden_size(2880, np.dtype(np.int8)) == 3072
        assert one.maybe_roundup_layer_hidden_size(512, E4M3) == 512
    with pytest.raises(switchyard.InvalidArgumentError, match="at most 8192"):
        low_latency(8193)


@pytest.mark.parametrize("call, phrase", [
    (lambda: vllm.fp8_w8a8_moe_quant_config(**W, block_shape=[128, 128], per_act_token_quant=True), "False with a block"),
    (lambda: vllm.FusedMoEQuantConfig.make("fp9"), 'quant_dtype is "fp9"'),
    (lambda: vllm.FusedMoEQuantConfig.make(E4M3, block_shape=[1, -1]), r"block_shape is \[1, -1\], must be a block"),
    (lambda: vllm.FusedMoEQuantConfig.make(E4M3, block_shape=[-1, -1]), r"block_shape is \[-1, -1\], must be a block"),
    (lambda: vllm.FusedMoEQuantConfig.make("nvfp4", weight_dtype="int3"), 'weight_dtype is "int3"'),
    (lambda: vllm.ocp_mx_moe_quant_config("nvfp4", SCALE, SCALE), 'quant_dtype is "nvfp4"'),
    (lambda: vllm.gptq_marlin_moe_quant_config(SCALE, SCALE, 3, 32), "weight_bits is 3"),
    (lambda: sizes(0, "telepathy"), "telepathy"),
    (lambda: vllm.FusedMoEConfig(**{**vars(sizes(0, "naive")), "num_experts": 0}), "num_experts is 0"),
])
def test_errors(call, phrase):
    with pytest.raises(switchyard.InvalidArgumentError, match=phrase):
        call()


BACKENDS = {
    "deepep_low_latency": vllm.DeepEPLLPrepareAndFinalize, "nixl_ep": vllm.NixlEPPrepareAndFinalize,
    "deepep_high_throughput": vllm.DeepEPHTPrepareAndFinalize, "deepep_v2": vllm.DeepEPV2PrepareAndFinalize,
    "allgather_reducescatter": vllm.MoEPrepareAndFinalizeNaiveDPEPModular, "naive": vllm.MoEPrepareAndFinalizeNaiveDPEPModular,
    "flashinfer_nvlink_two_sided": vllm.FlashInferNVLinkTwoSidedPrepareAndFinalize,
    "flashinfer_all2allv": vllm.FlashInferNVLinkTwoSidedPrepareAndFinalize,
    "flashinfer_nvlink_one_sided": vllm.FlashInferNVLinkOneSidedPrepareAndFinalize, "mori_low_latency": vllm.MoriPrepareAndFinalize}


def identity_layer(one, rank, quant=vllm.FUSED_MOE_UNQUANTIZED_CONFIG, slices=1):
    """A layer whose experts return their rows, weighted and summed where rows are tokens."""
    random = np.random.default_rng(rank)
    hidden, weights = random.normal(size=(T, H)).astype(BF16), random.random((T, K)).astype(np.float32)
    ids = np.array([random.permutation(E)[:K] for _ in range(T)], np.int32 if one.topk_indices_dtype() is None else
                   str(one.topk_indices_dtype()).rpartition(".")[2])
    rows, scales, _, new_ids, new_weights = one.prepare(hidden, weights, ids, E, None, False, quant)
    assert scales is None
    output, reduce = np.zeros_like(hidden), vllm.TopKWeightAndReduceDelegate()
    rows = rows / BF16(slices)
    if len(rows.shape) == 2:
        first, count = (0, E) if slices > 1 or new_ids is None else (rank * E // P, E // P)
        new_ids, new_weights = (ids, weights) if new_ids is None else (new_ids, new_weights)
        here = (new_ids >= first) & (new_ids < first + count)
        rows = (rows * np.where(here, new_weights, 0).sum(1)[:, None]).astype(BF16)
        ids, weights, reduce = new_ids, new_weights, vllm.TopKWeightAndReduceNoOP()
    one.finalize(output, rows.copy(), weights, ids, False, reduce)
    expected = hidden.astype(np.float32) * random_weights(rank)
    np.testing.assert_allclose(output.astype(np.float32), expected, atol=0.05)


def random_weights(rank):
    random = np.random.default_rng(rank)
    random.normal(size=(T, H))
    return random.random((T, K)).astype(np.float32).sum(1)[:, None]


@pytest.mark.parametrize("backend", BACKENDS)
def test_registry(backend):
    def rank(group):
        with vllm.All2AllManager(group) as manager:
            moe = sizes(group.rank, backend)
            made = vllm.maybe_make_prepare_finalize(moe, vllm.FUSED_MOE_UNQUANTIZED_CONFIG, allow_new_interface=True,
                                                    all2all_manager=manager)
            assert type(made) is BACKENDS[backend]
            identity_layer(made, group.rank)
            older = vllm.maybe_make_prepare_finalize(moe, vllm.FUSED_MOE_UNQUANTIZED_CONFIG, all2all_manager=manager)
            assert (older is None) == (backend in ("allgather_reducescatter", "naive"))

    run_local(P, rank)


def test_registry_without_all_to_all():
    def rank(group):
        with vllm.All2AllManager(group) as manager:
            quant = vllm.FUSED_MOE_UNQUANTIZED_CONFIG
            moe = sizes(group.rank, "deepep_v2", is_expert_parallel=False)
            assert vllm.maybe_make_prepare_finalize(moe, quant) is None
            sliced = vllm.maybe_make_prepare_finalize(moe, quant, allow_new_interface=True, all2all_manager=manager)
            assert type(sliced) is vllm.MoEPrepareAndFinalizeNaiveDPEPModular
            identity_layer(sliced, group.rank, slices=P)  # each rank has a part of the result
            alone = vllm.maybe_make_prepare_finalize(sizes(0, "deepep_v2", dp=1), quant, allow_new_interface=True)
            assert type(alone) is vllm.MoEPrepareAndFinalizeNoDPEPModular
            with pytest.raises(switchyard.NotSupportedError, match="use_monolithic"):
                vllm.maybe_make_prepare_finalize(moe, quant, allow_new_interface=True, use_monolithic=True)
            with pytest.raises(switchyard.InvalidArgumentError, match=f"must have rank {1 - group.rank} of 2"):
                vllm.maybe_make_prepare_finalize(sizes(1 - group.rank, "deepep_v2"), quant, all2all_manager=manager)

    run_local(P, rank)


def values_of(rows, scales, metadata, gscale=1.0):
    """The numbers behind quantized rows, with one scale per tensor, row, or block of 128 or 32."""
    if scales is None:
        return rows.astype(np.float32)
    scales = np.asarray(scales).astype(np.float32)
    groups = rows.shape[-1] // max(scales.shape[-1], 1)
    scales = np.repeat(scales, groups, axis=-1) if scales.ndim == rows.ndim else scales.reshape(())
    del metadata
    return rows.astype(np.float32) * scales / gscale


# (backend, quant_config, use_fp8_dispatch): (dtype of rows, shape of scales)
FORMATS = [
    ("deepep_low_latency", vllm.fp8_w8a8_moe_quant_config(**W, block_shape=[128, 128]), (E4M3, (E // P, P * 8, H // 128))),
    ("deepep_low_latency", vllm.fp8_w8a8_moe_quant_config(**W), (E4M3, (E // P, 1, 1))),
    ("deepep_low_latency", vllm.fp8_w8a8_moe_quant_config(**W, a1_scale=ONE, a2_scale=ONE), (E4M3, (E // P, 1, 1))),
    ("deepep_low_latency", vllm.fp8_w8a8_moe_quant_config(**W, per_act_token_quant=True), (E4M3, (E // P, P * 8, 1))),
    ("deepep_high_throughput", vllm.fp8_w8a8_moe_quant_config(**W, block_shape=[128, 128]), (E4M3, (None, H // 128))),
    ("deepep_high_throughput", vllm.fp8_w8a8_moe_quant_config(**W), (E4M3, (1,))),
    ("deepep_v2", vllm.fp8_w8a8_moe_quant_config(**W, block_shape=[128, 128]), (E4M3, (P * 8, H // 128))),
    ("allgather_reducescatter", vllm.fp8_w8a8_moe_quant_config(**W, per_act_token_quant=True), (E4M3, (P * T, 1))),
    ("flashinfer_nvlink_two_sided", vllm.fp8_w8a8_moe_quant_config(**W, block_shape=[128, 128]), (E4M3, (None, H // 128))),
    ("flashinfer_nvlink_one_sided", vllm.int8_w8a8_moe_quant_config(SCALE, SCALE, None, None, per_act_token_quant=True),
     (np.int8, (P * 8, 1))),
    ("none", vllm.fp8_w8a8_moe_quant_config(**W, a1_scale=ONE, a2_scale=ONE), (E4M3, (1,))),
]


@pytest.mark.parametrize("backend, quant, expected", FORMATS)
def test_formats(backend, quant, expected):
    dtype, scale_shape = expected

    def rank(group):
        with vllm.All2AllManager(group) as manager:
            moe = sizes(group.rank, "naive" if backend == "none" else backend, dp=1 if backend == "none" else P)
            plain, one = (vllm.maybe_make_prepare_finalize(moe, config, allow_new_interface=True, all2all_manager=manager)
                          for config in (vllm.FUSED_MOE_UNQUANTIZED_CONFIG, quant))
            random = np.random.default_rng(group.rank)
            hidden, weights = random.normal(size=(T, H)).astype(BF16), np.ones((T, K), np.float32)
            ids = np.array([random.permutation(E)[:K] for _ in range(T)])
            ids = ids if one.topk_indices_dtype() is None else ids.astype(str(one.topk_indices_dtype()).rpartition(".")[2])
            rows, scales, *_ = one.prepare(hidden, weights, ids, E, None, False, quant)
            assert rows.dtype == dtype and len(scales.shape) == len(scale_shape)
            assert all(want in (None, have) for want, have in zip(scale_shape, scales.shape))
            expected, none, counts, *_ = plain.prepare(hidden, weights, ids, E, None, False, vllm.FUSED_MOE_UNQUANTIZED_CONFIG)
            assert none is None and rows.shape == expected.shape
            found = values_of(rows, scales, counts)
            if rows.ndim == 3:  # beyond the counts nothing is defined
                valid = np.arange(rows.shape[1]) < counts.expert_num_tokens[:, None]
                found, expected = found[valid], expected[valid]
            np.testing.assert_allclose(found, expected.astype(np.float32), atol=0.15, rtol=0.07)

    run_local(P, rank)


@pytest.mark.parametrize("dispatches_fp8", [False, True])
@pytest.mark.parametrize("quant", [vllm.FUSED_MOE_UNQUANTIZED_CONFIG, vllm.fp8_w8a8_moe_quant_config(**W, block_shape=[128, 128])])
def test_low_latency_dispatches_in_the_format_that_it_was_told(dispatches_fp8, quant):
    def rank(group):
        with vllm.All2AllManager(group) as manager:
            one = vllm.DeepEPLLPrepareAndFinalize(manager, T, P, dispatches_fp8)
            hidden, ids = np.full((T, H), 1.0 + group.rank / 3, BF16), np.tile(np.array([0, E - 1]), (T, 1))
            rows, scales, counts, *_ = one.prepare(hidden, np.ones((T, K), np.float32), ids, E, None, False, quant)
            used = 0 if group.rank == 0 else E // P - 1
            assert counts.expert_num_tokens[used] == P * T
            found = values_of(rows, scales, counts)[used]
            expected = np.repeat([1.0, BF16(1 + 1 / 3)], T)[:, None].astype(np.float32)
            np.testing.assert_allclose(found, np.broadcast_to(expected, found.shape), rtol=0.07)
        with vllm.All2AllManager(group) as manager:
            deferred = vllm.DeepEPLLPrepareAndFinalize(manager, T, P)
            rows, scales, *_ = deferred.prepare(hidden, np.ones((T, K), np.float32), ids, E, None, False, quant, defer_input_quant=True)
            assert rows.dtype == BF16 and scales is None

    run_local(P, rank)


def test_experts_that_take_packed_scales():
    def rank(group):
        quant = vllm.fp8_w8a8_moe_quant_config(**W, block_shape=[128, 128])
        with vllm.All2AllManager(group) as manager:
            one = vllm.DeepEPLLPrepareAndFinalize(manager, T, P, True)
            one.post_init_setup(types.SimpleNamespace(supports_packed_ue8m0_act_scales=lambda: True))
            hidden, ids = np.full((T, H), 3.0, BF16), np.tile(np.array([0, E - 1]), (T, 1))
            rows, scales, counts, *_ = one.prepare(hidden, np.ones((T, K), np.float32), ids, E, None, False, quant)
            used = 0 if group.rank == 0 else E // P - 1
            assert one.use_ue8m0_dispatch and scales.dtype == np.int32 and scales.shape == (E // P, P * T, 1)
            exponents = scales[used, :counts.expert_num_tokens[used]].copy().view(np.uint8).astype(int) - 127
            np.testing.assert_array_equal(rows[used, 0].astype(np.float32) * 2.0 ** exponents[0, 0], np.full(H, 3.0))

    run_local(P, rank)


def test_routing_tables():
    def rank(group):
        tables = (np.array([2, 3, 0, 1]), None, None)  # the ranks hold the other half
        with vllm.All2AllManager(group) as manager:
            one = vllm.maybe_make_prepare_finalize(sizes(group.rank, "deepep_low_latency"), vllm.FUSED_MOE_UNQUANTIZED_CONFIG, tables,
                                                   all2all_manager=manager)
            ids = np.array([[0, -1]] * (1 + group.rank))
            hidden, weights = np.full((len(ids), H), 1.0 + group.rank, BF16), np.ones((len(ids), K), np.float32)
            rows, _, counts, *_ = one.prepare(hidden, weights, ids, E, None, False, vllm.FUSED_MOE_UNQUANTIZED_CONFIG)
            assert counts.expert_num_tokens.tolist() == ([0, 0] if group.rank == 0 else [3, 0])
            output = np.zeros_like(hidden)
            one.finalize(output, rows.copy(), weights, ids, False, vllm.TopKWeightAndReduceDelegate())
            np.testing.assert_array_equal(output, hidden)

    run_local(P, rank)


def test_counts_from_a_list():
    made = vllm.ExpertTokensMetadata.make_from_list([3, 0, 2], "cpu")
    assert made.expert_num_tokens.tolist() == made.expert_num_tokens_cpu.tolist() == [3, 0, 2]
    assert str(made.expert_num_tokens.dtype).endswith("int32")

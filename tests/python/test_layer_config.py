# SPDX-License-Identifier: Apache-2.0
"""The configuration of a layer, and what the factory makes of it."""
import ml_dtypes
import numpy as np
import pytest

import switchyard
from switchyard import MoEConfig, ModularKernel, ParallelConfig, QuantConfig, run_local

E, K, H, I, T = 4, 2, 64, 32, 5
RANDOM = np.random.default_rng(7)
W1 = RANDOM.normal(scale=0.2, size=(E, 2 * I, H)).astype(ml_dtypes.bfloat16)
W2 = RANDOM.normal(scale=0.2, size=(E, H, I)).astype(ml_dtypes.bfloat16)
KINDS = {"deepep_low_latency": "low_latency", "deepep_high_throughput": "elastic_decode", "deepep_v2": "elastic_decode",
         "allgather_reducescatter": "all_gather", "flashinfer_nvlink_one_sided": "all_to_all_one_sided",
         "flashinfer_nvlink_two_sided": "all_to_all"}


def sizes(rank, backend):
    parallel = ParallelConfig.make(dp_size=2, dp_rank=rank, enable_expert_parallel=True, all2all_backend=backend)
    return MoEConfig.make(num_experts=E, num_topk=K, hidden=H, parallel=parallel, max_num_tokens=T, intermediate=I)


def plain_layer(hidden, ids, weights):
    x, w1, w2 = (array.astype(np.float32) for array in (hidden, W1, W2))
    out = np.zeros_like(x)
    for t, k in np.ndindex(ids.shape):
        gate, up = np.split(w1[ids[t, k]] @ x[t], 2)
        out[t] += weights[t, k] * (w2[ids[t, k]] @ (gate / (1 + np.exp(-gate)) * up))
    return out


@pytest.mark.parametrize("backend", KINDS)
def test_layers_from_a_configuration(backend):
    def rank(group):
        moe, quant = sizes(group.rank, backend), QuantConfig()
        kind, config = switchyard.choose_prepare_finalize(moe, quant)
        assert (kind, config.hidden, config.num_topk) == (KINDS[backend], H, K)
        prepare = switchyard.prepare_finalize_from_config(group, moe, quant)
        assert prepare.kind == kind
        mine = slice(group.rank * E // 2, (group.rank + 1) * E // 2)
        kernel = ModularKernel(prepare, switchyard.experts_from_config(W1[mine], W2[mine], quant))
        random = np.random.default_rng(group.rank)
        hidden = random.normal(size=(T, H)).astype(ml_dtypes.bfloat16)
        ids = np.array([random.permutation(E)[:K] for _ in range(T)])
        ids = ids.astype(np.int64 if kind in ("low_latency", "elastic_decode") else np.int32)
        weights = random.random((T, K)).astype(np.float32)
        np.testing.assert_allclose(kernel.apply(hidden, ids, weights).numpy().astype(np.float32), plain_layer(hidden, ids, weights),
                                   atol=0.05)

    run_local(2, rank)


def test_parallelism():
    config = sizes(1, "deepep_low_latency").parallel
    assert (config.ep_size, config.ep_rank, config.use_ep, config.use_all2all_kernels) == (2, 1, True, True)
    assert config.use_batched_activation_format and config.all2all_backend == "deepep_low_latency"
    assert repr(ParallelConfig(tp_size=2)) == "ParallelConfig(tp_size=2)" and ParallelConfig() == ParallelConfig.make()
    moe = sizes(0, "naive")
    assert (moe.num_local_experts, moe.num_logical_experts, moe.router_logits_dtype, moe.in_dtype) == (E // 2, E, "bf16", "bf16")
    assert moe == moe.replace() and moe != moe.replace(activation="gelu")


def test_builders():
    scale = np.ones(E, np.float32)
    fp8 = QuantConfig.fp8_w8a8(w1_scale=scale, w2_scale=scale, block_shape=(128, 128))
    assert (fp8.quant_dtype, fp8.block_shape, fp8.is_quantized, fp8.is_per_tensor) == ("fp8_e4m3", (128, 128), True, False)
    assert fp8.activation_scheme.name == "fp8_block" and fp8.config_name() == "fp8_w8a8"
    assert repr(fp8) == "QuantConfig(activations='fp8_e4m3', weights='fp8_e4m3')"
    row = QuantConfig.make(quant_dtype="int8", per_act_token_quant=True, w1_scale=scale, w2_scale=scale)
    assert row.per_act_token_quant and row.activation_scheme.name == "int8_token" and not row.per_out_ch_quant
    assert not QuantConfig().is_quantized and QuantConfig().quant_dtype == "none" and QuantConfig().block_shape is None
    four = QuantConfig.nvfp4(g1_alphas=scale, g2_alphas=scale, a1_gscale=scale[:1], a2_gscale=scale[:1], w1_scale=scale, w2_scale=scale,
                             is_scale_swizzled=False)
    assert four.quant_dtype == "nvfp4" == four.weight_quant_dtype
    for builder in ("int8_w8a8", "mxfp4_w4a16", "fp8_w8a16", "int8_w8a16", "mxfp4"):
        assert getattr(QuantConfig, builder)(w1_scale=scale, w2_scale=scale).weight_quant_dtype != "none", builder


def test_experts_from_quantized_weights():
    scale = np.full(E, 0.5, np.float32)
    w1, w2 = (weights.astype(ml_dtypes.float8_e4m3fn) for weights in (W1, W2))
    experts = switchyard.experts_from_config(w1, w2, QuantConfig.fp8_w8a16(w1_scale=scale, w2_scale=scale))
    rows = switchyard.expert_rows(np.ones((E, 2, H), ml_dtypes.bfloat16), np.full(E, 2, np.int32), np.arange(E, dtype=np.int64) * 2)
    assert np.isfinite(experts.apply(rows).numpy().astype(np.float32)).all()


@pytest.mark.parametrize("call, phrase", [
    (lambda: ParallelConfig.make(tp_size=0), "tp_size"),
    (lambda: ParallelConfig(all2all_backend="telepathy"), 'all2all_backend: "telepathy"'),
    (lambda: MoEConfig.make(num_experts=0), "num_experts"),
    (lambda: MoEConfig(activation="tan"), 'activation: "tan"'),
    (lambda: QuantConfig.make(quant_dtype="fp9"), 'quant_dtype: "fp9"'),
    (lambda: QuantConfig.fp8_w8a8(per_act_token_quant=True, block_shape=(128, 128)), "block"),
])
def test_errors(call, phrase):
    with pytest.raises(switchyard.InvalidArgumentError, match=phrase):
        call()


def test_unknown_keywords():
    for call in (lambda: ParallelConfig.make(colour=1), lambda: MoEConfig.make(colour=1), lambda: QuantConfig.mxfp4(colour=1),
                 lambda: switchyard.choose_prepare_finalize(sizes(0, "naive"), QuantConfig(), colour=1)):
        with pytest.raises(TypeError, match="colour"):
            call()

# SPDX-License-Identifier: Apache-2.0
"""Prepare/finalize classes, experts and ModularKernel, against plain numpy."""
import ml_dtypes
import numpy as np
import pytest

import switchyard
from switchyard import Experts, ModularKernel, make_prepare_finalize, run_local

P, E, K, H, I, T = 2, 4, 2, 32, 16, 5
KINDS = ["low_latency", "elastic_decode", "elastic_prefill", "all_gather", "all_to_all", "all_to_all_one_sided"]
RANDOM = np.random.default_rng(3)
GATE, UP = (RANDOM.normal(scale=0.2, size=(E, I, H)).astype(np.float32) for _ in range(2))
DOWN = RANDOM.normal(scale=0.2, size=(E, H, I)).astype(np.float32)
SIZES = {"num_experts": E, "num_topk": K, "hidden": H, "max_tokens_per_rank": T}


def batch(rank, ids_dtype=np.int64):
    random = np.random.default_rng(100 + rank)
    hidden = random.normal(size=(T - rank, H)).astype(ml_dtypes.bfloat16)
    ids = np.array([random.permutation(E)[:K] for _ in range(T - rank)], ids_dtype)
    return hidden, ids, random.random((T - rank, K)).astype(np.float32)


def mlp(x, expert):
    gate, up = x @ GATE[expert].T, x @ UP[expert].T
    return (gate / (1 + np.exp(-gate)) * up) @ DOWN[expert].T


def plain_layer(rank):
    hidden, ids, weights = batch(rank)
    x = hidden.astype(np.float32)
    return np.stack([sum(weights[t, k] * mlp(x[t], ids[t, k]) for k in range(K)) for t in range(len(x))])


def local_experts(rank):
    return slice(rank * E // P, (rank + 1) * E // P)


def exact_experts(rank):
    mine = local_experts(rank)
    return Experts(GATE[mine], UP[mine], DOWN[mine])


def numpy_experts(rank):
    first = rank * E // P

    def apply(rows, output):
        counts, starts = rows.num_rows.numpy(), rows.first_row.numpy()
        x = rows.rows.numpy().reshape(-1, H).astype(np.float32)
        y = output.numpy().reshape(-1, H)
        for local, (start, count) in enumerate(zip(starts, counts)):
            y[start:start + count] = mlp(x[start:start + count], first + local).astype(y.dtype)

    return Experts.from_function(apply, name="numpy")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("make_experts", [exact_experts, numpy_experts])
def test_whole_layers(kind, make_experts):
    def rank(group):
        dtype = np.int64 if kind.startswith("elastic") or kind == "low_latency" else np.int32
        kernel = ModularKernel(make_prepare_finalize(kind, group, **SIZES), make_experts(group.rank))
        hidden, ids, weights = batch(group.rank, dtype)
        for _ in range(3):
            output = kernel.apply(hidden, ids, weights)
        out = np.zeros((len(hidden), H), ml_dtypes.bfloat16)
        assert kernel.apply(hidden, ids, weights, out) is out
        np.testing.assert_array_equal(out, output.numpy())
        kernel.check()
        assert kernel.times()["experts_ns"] > 0 and kernel.workspace_bytes >= 0 and not kernel.is_capturable
        assert kind in repr(kernel) and kernel.device == "cpu"
        kernel.close()
        with pytest.raises(switchyard.InvalidArgumentError, match="it was closed"):
            kernel.apply(hidden, ids, weights)
        return out.astype(np.float32)

    for number, output in enumerate(run_local(P, rank)):
        expected = plain_layer(number)
        np.testing.assert_allclose(output, expected, atol=0.03 * np.abs(expected).max())


@pytest.mark.parametrize("counts", [(1, 3), (0, 4), (4, 0)])
@pytest.mark.parametrize("kind", KINDS)
def test_experts_per_rank(kind, counts):
    def rank(group):
        mine = slice(sum(counts[:group.rank]), sum(counts[:group.rank + 1]))
        prepare = make_prepare_finalize(kind, group, experts_per_rank=list(counts), **SIZES)
        assert prepare.num_local_experts == counts[group.rank]
        hidden, ids, weights = batch(group.rank)
        with ModularKernel(prepare, Experts(GATE[mine], UP[mine], DOWN[mine])) as kernel:
            return kernel.apply(hidden, ids, weights).numpy().astype(np.float32)

    for number, output in enumerate(run_local(P, rank)):
        expected = plain_layer(number)
        np.testing.assert_allclose(output, expected, atol=0.03 * np.abs(expected).max())


def test_experts_per_rank_of_a_configuration():
    parallel = switchyard.ParallelConfig.make(dp_size=2, dp_rank=1, enable_expert_parallel=True)
    sizes = {"num_experts": E, "num_topk": K, "hidden": H, "parallel": parallel}
    moe = switchyard.MoEConfig.make(**sizes, experts_per_rank=[1, 3])
    assert moe.num_local_experts == 3
    assert list(switchyard.choose_prepare_finalize(moe, switchyard.QuantConfig())[1].experts_per_rank) == [1, 3]
    for counts in ([4], [1, 2], [-1, 5]):
        with pytest.raises(switchyard.InvalidArgumentError, match="experts_per_rank has"):
            switchyard.MoEConfig.make(**sizes, experts_per_rank=counts)
    with pytest.raises(switchyard.InvalidArgumentError, match="experts_per_rank is given for local"):
        make_prepare_finalize("local", None, experts_per_rank=[E], **SIZES)


@pytest.mark.parametrize("kind", ["low_latency", "elastic_decode", "elastic_prefill"])
def test_copied_inputs_may_be_overwritten_once_sent(kind):
    def rank(group):
        hidden, ids, weights = batch(group.rank)
        with make_prepare_finalize(kind, group, **SIZES) as prepare:
            results = []
            for _ in range(2):
                lent = hidden.copy()
                pending = prepare.prepare_async(lent, ids, weights, copies_inputs=True)
                lent[:] = 77
                rows = pending.wait().experts.rows.numpy().copy()
                pending = prepare.finalize_async(rows, num_tokens=len(hidden), weight_and_reduce="no_op", copies_inputs=True)
                rows[:] = 77
                results.append(pending.wait().numpy().copy())
            prepared = prepare.prepare(hidden, ids, weights)
            results.append(prepare.finalize(prepared.experts.rows, num_tokens=len(hidden), weight_and_reduce="no_op").numpy())
            assert all((one == results[2]).all() for one in results)

    run_local(P, rank)


def test_rows_of_a_layer_are_not_rounded_unasked():
    with make_prepare_finalize("local", None, **SIZES) as prepare:
        hidden, ids, weights = batch(0)
        for dtype in (np.float16, np.float32):
            with pytest.raises(switchyard.InvalidArgumentError, match="set scheme to f"):
                prepare.prepare(hidden.astype(dtype), ids, weights)


def test_results_in_f32_stay_f32():
    def rank(group):
        hidden, ids, weights = batch(group.rank)
        hidden = hidden.astype(np.float32) * np.float32(1 + 2.0 ** -12)  # no bf16
        prepare = make_prepare_finalize("low_latency", group, **SIZES, scheme="f32", combine_scheme="f32")
        mine = slice(group.rank * E // P, (group.rank + 1) * E // P)
        experts = Experts(GATE[mine], UP[mine], DOWN[mine], "exact", intermediate="f32")
        results = experts.apply(prepare.prepare(hidden, ids, weights).experts)
        output = prepare.finalize(results, num_tokens=len(hidden)).numpy()
        assert results.dtype == "f32" and output.dtype == np.float32
        out = np.zeros((len(hidden), H), np.float32)
        with ModularKernel(prepare, experts) as kernel:
            layer = kernel.apply(hidden, ids, weights).numpy()
            kernel.apply(hidden, ids, weights, out)
        np.testing.assert_array_equal(layer, out)
        np.testing.assert_array_equal(layer, output)
        assert (out.astype(ml_dtypes.bfloat16).astype(np.float32) != out).any()

    run_local(P, rank)


def test_local_needs_no_group():
    with make_prepare_finalize("local", None, **SIZES) as prepare:
        assert (prepare.kind, prepare.num_local_experts, prepare.num_dispatchers) == ("local", E, 1)
        kernel = ModularKernel(prepare, Experts(GATE, UP, DOWN))
        hidden, ids, weights = batch(0)
        expected = plain_layer(0)
        np.testing.assert_allclose(kernel.apply(hidden, ids, weights).numpy().astype(np.float32), expected, atol=0.03)
        with pytest.raises(switchyard.InvalidArgumentError, match="part of a ModularKernel"):
            prepare.prepare(hidden, ids, weights)


@pytest.mark.parametrize("kind", ["low_latency", "elastic_prefill"])
@pytest.mark.parametrize("is_async", [False, True])
def test_prepare_and_finalize(kind, is_async):
    def rank(group):
        hidden, ids, weights = batch(group.rank)
        with make_prepare_finalize(kind, group, **SIZES) as prepare, exact_or_closed(group.rank) as experts:
            prepare.post_init_setup(experts)
            if is_async:
                pending = prepare.prepare_async(hidden, ids, weights)
                pending.hook()
                prepared = pending.wait()
                with pytest.raises(switchyard.InvalidArgumentError, match="fetched"):
                    pending.wait()
            else:
                prepared = prepare.prepare(hidden, ids, weights)
            assert prepared.expert_num_tokens.numpy().sum() >= prepared.total_rows.numpy()[0] and prepared.num_tokens == len(hidden)
            results = experts.apply(prepared.experts)
            if is_async:
                return prepare.finalize_async(results, num_tokens=len(hidden)).wait().numpy()
            return prepare.finalize(results, np.zeros((len(hidden), H), np.float32)).astype(np.float32)

    for number, output in enumerate(run_local(P, rank)):
        np.testing.assert_allclose(output.astype(np.float32), plain_layer(number), atol=0.03)


class exact_or_closed:  # pylint: disable=invalid-name
    """Experts of a rank, closed at the end."""

    def __init__(self, rank):
        self.experts = exact_experts(rank)

    def __enter__(self):
        return self.experts

    def __exit__(self, *_):
        self.experts.close()


@pytest.mark.parametrize("kind", KINDS)
def test_properties(kind):
    def rank(group):
        with make_prepare_finalize(kind, group, scheme="fp8_block", **SIZES) as prepare:
            assert prepare.name == kind == prepare.kind and prepare.device == "cpu" and prepare.hidden == H
            assert prepare.activation_format == ("batched" if kind == "low_latency" else "standard")
            assert (prepare.num_topk, prepare.num_local_experts) == (K, E // P) and prepare.num_dispatchers >= 1
            assert prepare.topk_indices_dtype in (None, "i32", "i64") and prepare.max_num_tokens_per_rank in (None, T)
            assert isinstance(prepare.output_is_reduced, bool) and isinstance(prepare.supports_async, bool)
            assert prepare.num_micro_batches >= 1 and prepare.max_buffer_rows > 0 and prepare.memory[0] > 0
            mine = local_experts(group.rank)
            assert prepare.expert_map.numpy()[:E][mine].tolist() == [0, 1] and prepare.expert_map.numpy()[E] == -1
            assert f"PrepareFinalize('{kind}'" in repr(prepare)

    run_local(P, rank)


def test_shared_experts():
    shared = {"gate": GATE[:1], "up": UP[:1], "down": DOWN[:1]}
    prepare = make_prepare_finalize("local", None, **SIZES)
    kernel = ModularKernel(prepare, Experts(GATE, UP, DOWN), Experts(**shared), np.zeros(H, np.float32))
    hidden, ids, weights = batch(0)
    expected = plain_layer(0) + 0.5 * np.stack([mlp(x, 0) for x in hidden.astype(np.float32)])
    np.testing.assert_allclose(kernel.apply(hidden, ids, weights).numpy().astype(np.float32), expected, atol=0.04)


def test_experts_alone():
    rows = np.ones((2, 3, H), ml_dtypes.bfloat16)
    experts = Experts(GATE[:2], UP[:2], DOWN[:2], "exact", intermediate="none", activation="silu_mul")
    assert (experts.name, experts.device, experts.is_batch_invariant) == ("exact", "cpu", True)
    made = switchyard.expert_rows(rows, np.array([3, 1], np.int32), np.array([0, 3], np.int64))
    assert made.scales is None and made.scheme.name == "none" and "bf16 [2, 3, 32]" in repr(made)
    out = experts.apply(made).numpy().astype(np.float32)
    np.testing.assert_allclose(out[0, 2], mlp(np.ones(H, np.float32), 0), atol=0.02)
    np.testing.assert_allclose(out[1, 0], mlp(np.ones(H, np.float32), 1), atol=0.02)


def test_experts_that_raise():
    def fail(rows, output):
        raise LookupError("no weights")

    def rank(group):
        kernel = ModularKernel(make_prepare_finalize("low_latency", group, **SIZES),
                               Experts.from_function(fail) if group.rank == 0 else exact_experts(1))
        kernel.apply(*batch(group.rank))

    with pytest.raises(LookupError, match="no weights"):
        run_local(P, rank)


def test_tensors_of_experts_outlive_their_call():
    kept = []
    kernel = ModularKernel(make_prepare_finalize("local", None, **SIZES), Experts.from_function(lambda rows, output: kept.append(output)))
    kernel.apply(*batch(0))
    del kernel
    assert kept[0].numpy().shape[-1] == H  # the kernel's memory is there as long as they are


@pytest.mark.parametrize("call, phrase", [
    (lambda: make_prepare_finalize("slow", None), 'kind: "slow"'),
    (lambda: make_prepare_finalize("low_latency", None, **SIZES), "must be a Group"),
    (lambda: make_prepare_finalize("local", None, **{**SIZES, "hidden": 0}), "hidden"),
    (lambda: Experts(GATE, UP[:1], DOWN), "up"),
    (lambda: Experts(GATE, UP, DOWN, "magic"), "magic"),
    (lambda: Experts(GATE, UP, DOWN, activation="tanh"), "tanh"),
    (lambda: Experts.from_function(3), "function: 3, must be callable"),
    (lambda: make_prepare_finalize("local", None, **SIZES).finalize(np.zeros((1, H), np.float32)), "neither out nor num_tokens"),
])
def test_errors(call, phrase):
    with pytest.raises(switchyard.InvalidArgumentError, match=phrase):
        call()


@pytest.mark.parametrize("scale", [float("nan"), 0.0, -1.0, float("inf")])
def test_static_scales_are_positive(scale):
    with pytest.raises(switchyard.InvalidArgumentError, match=rf"static_scale is {scale:g}, must be a positive number"):
        make_prepare_finalize("local", None, **{**SIZES, "scheme": "fp8_tensor", "static_scale": scale})


def test_unknown_keywords():
    for call in (lambda: make_prepare_finalize("local", None, colour=1), lambda: Experts(GATE, UP, DOWN, colour=1),
                 lambda: make_prepare_finalize("local", None, **SIZES).prepare(*batch(0), colour=1)):
        with pytest.raises(TypeError, match="unexpected keyword argument 'colour'"):
            call()


def test_configs():
    config = switchyard.PrepareFinalizeConfig(reduce="per_rank", static_scale=2.0, wire_scheme="fp8_block", **SIZES)
    assert repr(config).endswith("static_scale=2.0, reduce='per_rank')") and config.wire_scheme.name == "fp8_block"
    assert config.replace(reduce=None).reduce is None and config.global_to_physical == []

# SPDX-License-Identifier: Apache-2.0
"""vLLM-shaped prepare/finalize classes: whole layers against ModularKernel, hooks, properties, errors, the registry."""
import ml_dtypes
import numpy as np
import pytest

import switchyard
from switchyard import Experts, ModularKernel, make_prepare_finalize, run_local
from switchyard.compat import vllm
from switchyard.compat.vllm import _interface as interface

P, E, K, H, I, T = 2, 4, 2, 256, 32, 5
BF16 = ml_dtypes.bfloat16
RANDOM = np.random.default_rng(5)
GATE, UP = (RANDOM.normal(scale=0.2, size=(E, I, H)).astype(BF16) for _ in range(2))
DOWN = RANDOM.normal(scale=0.2, size=(E, H, I)).astype(BF16)
DELEGATE, NO_OP, CONTIGUOUS = (getattr(vllm, f"TopKWeightAndReduce{name}")() for name in ("Delegate", "NoOP", "Contiguous"))
PLAIN = vllm.FUSED_MOE_UNQUANTIZED_CONFIG
LAYER = {"num_experts": E, "num_topk": K, "hidden": H, "max_tokens_per_rank": 8}

# class, its constructor for a manager, the library's kind
CLASSES = {
    "low_latency": ("low_latency", lambda m: vllm.DeepEPLLPrepareAndFinalize(m, 8, P)),
    "nixl": ("low_latency", lambda m: vllm.NixlEPPrepareAndFinalize(m, 8, P)),
    "high_throughput": ("elastic_decode", lambda m: vllm.DeepEPHTPrepareAndFinalize(m, P, P, m.rank * E // P)),
    "v2_decode": ("elastic_decode", lambda m: vllm.DeepEPV2PrepareAndFinalize(m, P, P, m.rank * E // P, E, K, use_cudagraph=True,
                                                                              max_num_tokens=8)),
    "v2_prefill": ("elastic_prefill", lambda m: vllm.DeepEPV2PrepareAndFinalize(m, P, P, m.rank * E // P, E, K)),
    "all_gather": ("all_gather", lambda m: vllm.MoEPrepareAndFinalizeNaiveDPEPModular(num_dispatchers=P, all2all_manager=m)),
    "two_sided": ("all_to_all", lambda m: vllm.FlashInferNVLinkTwoSidedPrepareAndFinalize(P, all2all_manager=m)),
    "one_sided": ("all_to_all_one_sided", lambda m: vllm.FlashInferNVLinkOneSidedPrepareAndFinalize(8, K, E, H, P, all2all_manager=m)),
    "mori": ("all_to_all", lambda m: vllm.MoriPrepareAndFinalize(m, 8, P)),
    "no_dp_ep": ("local", lambda m: vllm.MoEPrepareAndFinalizeNoDPEPModular()),
}


def batch(rank, prepare_finalize=None, num_tokens=None):
    random = np.random.default_rng(100 + rank)
    num_tokens = T - rank if num_tokens is None else num_tokens
    ids = np.array([random.permutation(E)[:K] for _ in range(num_tokens)], np.int64).reshape(num_tokens, K)
    wanted = None if prepare_finalize is None else prepare_finalize.topk_indices_dtype()
    if wanted is not None:
        ids = ids.astype(str(wanted).rpartition(".")[2])
    return random.normal(size=(num_tokens, H)).astype(BF16), ids, random.random((num_tokens, K)).astype(np.float32)


def local_experts(rank, kind):
    mine = slice(None) if kind == "local" else slice(rank * E // P, (rank + 1) * E // P)
    return Experts(GATE[mine], UP[mine], DOWN[mine])


def expert_map(rank, kind):
    ids = np.arange(E)
    local = ids if kind == "local" else ids - rank * E // P
    return np.where((local >= 0) & (local < (E if kind == "local" else E // P)), local, -1).astype(np.int32)


def run_experts(kind, experts, rows, scales, counts, ids, experts_here, reduces):
    """What experts of vLLM do with what prepare returned: (rows, weight_and_reduce_impl)."""
    del scales
    if len(rows.shape) == 3:
        capacity = rows.shape[1]
        given = switchyard.expert_rows(rows, counts.expert_num_tokens, np.arange(len(rows), dtype=np.int64) * capacity)
        return experts.apply(given).numpy(), DELEGATE
    ids = np.where((ids >= 0) & (ids < E), ids, -1)
    permuted = switchyard.permute(rows, ids, experts_here.max() + 1, expert_map=experts_here, alignment=1)
    results = experts.apply(permuted.expert_rows()).numpy()
    if reduces is not None:
        return switchyard.unpermute_and_reduce(results, permuted, reduces).numpy(), NO_OP
    places = permuted.inv_perm.numpy()
    unreduced = np.zeros((*places.shape, H), BF16)
    unreduced[places >= 0] = results[places[places >= 0]]
    return unreduced, DELEGATE


def layer(prepare_finalize, kind, rank, hidden, ids, weights, reduces_in_experts, quant=PLAIN):
    """The orchestration of vLLM's modular kernel."""
    output = np.zeros_like(hidden)
    call = (hidden, weights, ids, E, expert_map(rank, kind), False, quant)
    if prepare_finalize.supports_async():
        rows, scales, counts, new_ids, new_weights = split(prepare_finalize.prepare_async(*call, defer_input_quant=False))
    else:
        rows, scales, counts, new_ids, new_weights = prepare_finalize.prepare(*call, defer_input_quant=False)
    ids, weights = ids if new_ids is None else new_ids, weights if new_weights is None else new_weights
    results, reduce = run_experts(kind, local_experts(rank, kind), rows, scales, counts, ids, expert_map(rank, kind),
                                  weights if reduces_in_experts else None)
    returned = (output, results, weights, ids, False, reduce)
    if prepare_finalize.supports_async():
        split(prepare_finalize.finalize_async(*returned))
    else:
        assert prepare_finalize.finalize(*returned) is None
    return output


def split(made):
    hook, receiver = made if isinstance(made, tuple) else (None, made)
    if hook is not None:
        hook()
    return receiver()


def library_layer(kind, group, hidden, ids, weights):
    made = make_prepare_finalize(kind, None if kind == "local" else group, **LAYER)
    with ModularKernel(made, local_experts(group.rank, kind)) as kernel:
        return kernel.apply(hidden, ids, weights).numpy()


@pytest.mark.parametrize("name", sorted(CLASSES.keys() - {"v2_prefill"}))  # whose rows are one per expert: nothing to reduce
@pytest.mark.parametrize("num_tokens", [None, 1, 0])
def test_whole_layers_with_experts_that_reduce(name, num_tokens):
    kind, make = CLASSES[name]

    def rank(group):
        with vllm.All2AllManager(group) as manager:
            one = make(manager)
            hidden, ids, weights = batch(group.rank, one, num_tokens)
            for _ in range(3):
                output = layer(one, kind, group.rank, hidden, ids, weights, True)
            np.testing.assert_array_equal(output, library_layer(kind, group, hidden, ids, weights))
            new_ids = one.prepare(hidden, weights, ids, E, None, False, PLAIN)[3]
            assert new_ids is None or new_ids.dtype == ids.dtype

    run_local(P, rank)


@pytest.mark.parametrize("name", ["low_latency", "high_throughput", "v2_decode", "v2_prefill", "all_gather", "no_dp_ep"])
def test_whole_layers_with_the_class_that_reduces(name):
    kind, make = CLASSES[name]

    def rank(group):
        with vllm.All2AllManager(group) as manager:
            one = make(manager)
            hidden, ids, weights = batch(group.rank, one)
            output = layer(one, kind, group.rank, hidden, ids, weights, False).astype(np.float32)
            expected = library_layer(kind, group, hidden, ids, weights).astype(np.float32)
            np.testing.assert_allclose(output, expected, atol=0.02 * np.abs(expected).max())  # vLLM rounds products too

    run_local(P, rank)


@pytest.mark.parametrize("name", ["low_latency", "nixl", "high_throughput", "v2_decode", "v2_prefill"])
def test_inputs_may_be_overwritten_once_sent(name):
    kind, make = CLASSES[name]

    def rank(group):
        with vllm.All2AllManager(group) as manager:
            one = make(manager)
            hidden, ids, weights = batch(group.rank, one)
            expected = layer(one, kind, group.rank, hidden, ids, weights, False)
            here, lent = expert_map(group.rank, kind), hidden.copy()
            made = one.prepare_async(lent, weights, ids, E, here, False, PLAIN)
            lent[:] = 77
            rows, scales, counts, new_ids, new_weights = split(made)
            ids, weights = ids if new_ids is None else new_ids, weights if new_weights is None else new_weights
            results, reduce = run_experts(kind, local_experts(group.rank, kind), rows, scales, counts, ids, here, None)
            lent, output = results.copy(), np.zeros_like(hidden)
            made = one.finalize_async(output, lent, weights, ids, False, reduce)
            lent[:] = 77
            split(made)
            np.testing.assert_array_equal(output, expected)

    run_local(P, rank)


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
@pytest.mark.parametrize("name", sorted(CLASSES))
def test_rows_keep_their_dtype(name, dtype):
    _, make = CLASSES[name]

    def rank(group):
        with vllm.All2AllManager(group) as manager:
            one = make(manager)
            _, ids, weights = batch(group.rank, one)
            hidden = np.full((len(ids), H), 1 + 2.0 ** -9, dtype)  # no bf16
            weights = np.ones_like(weights)
            rows, _, _, new_ids, new_weights = one.prepare(hidden, weights, ids, E, None, False, PLAIN)
            assert rows.dtype == dtype
            ids, weights = ids if new_ids is None else new_ids, weights if new_weights is None else new_weights
            output = np.zeros_like(hidden)
            one.finalize(output, rows, weights, ids, False, DELEGATE if len(rows.shape) == 3 else NO_OP)
            assert set(np.unique(output / hidden[0, 0])) <= {1, 2}

    run_local(P, rank)


def test_four_ranks_and_what_travels():
    def rank(group):
        with vllm.All2AllManager(group) as manager:
            one = vllm.DeepEPHTPrepareAndFinalize(manager, 4, 4, group.rank)
            hidden = np.full((2, H), group.rank + 1, BF16)
            ids, weights = np.array([[0, 3], [3, -1]]), np.array([[0.5, 0.25], [1, 0]], np.float32)
            rows, scales, counts, new_ids, new_weights = one.prepare(hidden, weights, ids, 4, None, False, PLAIN)
            assert scales is None and rows.shape[0] == {0: 4, 3: 8}.get(group.rank, 0)
            assert counts.expert_num_tokens.tolist() == [len(rows)] == counts.expert_num_tokens_cpu.tolist()
            elsewhere = 3 if group.rank == 0 else 0  # an expert that is not here, in the place of -1
            mine = new_ids == group.rank
            assert (mine.sum(axis=1) == 1).all() and set(new_ids[~mine].tolist()) <= {elsewhere}
            unreduced = rows[:, None] * mine[..., None].astype(BF16)
            output = np.empty_like(hidden)
            one.finalize(output, unreduced.reshape(-1, H), new_weights, new_ids, False, DELEGATE)
            return output[:, 0].tolist()

    assert run_local(4, rank) == [[0.75 * (r + 1), r + 1.0] for r in range(4)]


def test_layers_share_windows_and_windows_grow():
    def rank(group):
        manager = vllm.All2AllManager(group)
        layers = [vllm.DeepEPHTPrepareAndFinalize(manager, P, P, group.rank * E // P) for _ in range(3)]
        for num_tokens in (3, 130 * (group.rank + 1), 2):  # the second needs larger windows than 128 tokens
            for one in layers:
                hidden, ids, weights = batch(group.rank, one, num_tokens)
                output = layer(one, "elastic_decode", group.rank, hidden, ids, weights, True)
                assert np.isfinite(output.astype(np.float32)).all()
        assert len(manager._objects) == 2  # pylint: disable=protected-access
        manager.close()

    run_local(P, rank)


def test_shapes_follow_the_sizes_of_a_step():
    def rank(group):
        with vllm.All2AllManager(group) as manager:
            one = CLASSES["one_sided"][1](manager)
            hidden, ids, weights = batch(group.rank, one)
            with vllm.use_local_sizes([5, 4]):
                rows, *_, new_ids, _ = one.prepare(hidden, weights, ids, E, None, False, PLAIN)
            assert rows.shape == (P * 5, H) and (new_ids[5 * group.rank:][:T - group.rank] >= -1).all()
            output = np.empty_like(hidden)
            one.finalize(output, np.zeros_like(rows), weights, ids, False, NO_OP)
            assert not output.any()
            rows, *_ = one.prepare(hidden, weights, ids, E, None, False, PLAIN)
            assert rows.shape == (P * 8, H)  # the upper bound

    run_local(P, rank)


def test_hooks():
    def rank(group):
        with vllm.All2AllManager(group) as manager:
            one = CLASSES["low_latency"][1](manager)
            hidden, ids, weights = batch(group.rank)
            hook, receiver = one.prepare_async(hidden, weights, ids, E, None, False, PLAIN)
            with pytest.raises(switchyard.InvalidArgumentError, match="receiver was called before the hook"):
                receiver()
            hook()
            with pytest.raises(switchyard.InvalidArgumentError, match="hook was called twice"):
                hook()
            rows, _, counts, new_ids, new_weights = receiver()
            assert new_ids is None and new_weights is None and counts.expert_num_tokens_cpu is None
            output = np.zeros_like(hidden)
            hook, receiver = one.finalize_async(output, rows.copy(), weights, ids, False, DELEGATE)
            hook()
            assert receiver() is None
            np.testing.assert_allclose(output.astype(np.float32), (hidden.T * weights.sum(1)).T.astype(np.float32), rtol=0.01)
            high = CLASSES["high_throughput"][1](manager)
            assert callable(high.prepare_async(hidden, weights, ids, E, None, False, PLAIN))  # a receiver alone

    run_local(P, rank)


def test_two_micro_batches():
    def rank(group):
        with vllm.All2AllManager(group) as manager:
            one = CLASSES["low_latency"][1](manager)
            batches = [batch(group.rank), batch(group.rank + 7, num_tokens=3)]
            outputs, sent = [np.zeros_like(hidden) for hidden, _, _ in batches], []
            for number, (hidden, ids, weights) in enumerate(batches):
                with vllm.use_micro_batch(number):
                    sent.append(one.prepare_async(hidden, weights, ids, E, None, False, PLAIN))
            for number, (hook, receiver) in enumerate(sent):
                hook()
                rows, *_ = receiver()
                _, ids, weights = batches[number]
                with vllm.use_micro_batch(number):
                    one.finalize(outputs[number], rows.copy(), weights, ids, False, DELEGATE)
            for (hidden, _, weights), output in zip(batches, outputs):
                np.testing.assert_allclose(output.astype(np.float32), (hidden.T * weights.sum(1)).T.astype(np.float32), rtol=0.01)

    run_local(P, rank)


@pytest.mark.parametrize("name", ["low_latency", "all_gather", "two_sided"])
def test_router_weight_on_input(name):
    def rank(group):
        with vllm.All2AllManager(group) as manager:
            one = CLASSES[name][1](manager)
            hidden, ids, _ = batch(group.rank, one)
            ids, weights, before = ids[:, :1].copy(), np.full((len(ids), 1), 2, np.float32), hidden.copy()
            rows, _, _, new_ids, new_weights = one.prepare(hidden, weights, ids, E, None, True, PLAIN)
            assert (hidden == (before * 2 if name == "two_sided" else before)).all()  # FlashInfer's class weighs in place
            output = np.zeros_like(hidden)
            if name == "all_gather":
                here = new_ids // (E // P) == group.rank
                rows = rows * here.astype(BF16)
                with pytest.raises(switchyard.InvalidArgumentError, match="must be True, as in prepare"):
                    one.finalize(output, rows, new_weights, new_ids, False, NO_OP)
            one.finalize(output, rows.copy(), weights if new_weights is None else new_weights, ids if new_ids is None else new_ids, True,
                         DELEGATE if name == "low_latency" else NO_OP)
            np.testing.assert_array_equal(output, before * 2)

    run_local(P, rank)


def test_a_refused_finalize_changes_nothing():
    def rank(group):
        with vllm.All2AllManager(group) as manager:
            one = CLASSES["all_gather"][1](manager)
            hidden, ids, weights = batch(group.rank, one)
            rows, _, _, new_ids, new_weights = one.prepare(hidden, weights, ids, E, None, False, PLAIN)
            output = np.ones_like(hidden)
            with pytest.raises(switchyard.InvalidArgumentError, match="rows is bf16 \\[1, 256\\]"):
                one.finalize(output, rows[:1].copy(), new_weights, new_ids, False, NO_OP)
            assert (output == 1).all()
            one.finalize(output, np.zeros_like(rows), new_weights, new_ids, False, NO_OP)
            assert not output.any()

    run_local(P, rank)


def test_a_policy_of_the_caller():
    class Halves(vllm.TopKWeightAndReduce):
        def apply(self, output, fused_expert_output, topk_weights, topk_ids, apply_router_weight_on_input):
            assert output is None and not apply_router_weight_on_input
            return (fused_expert_output.sum(axis=1) / 2).astype(BF16)

    one = vllm.MoEPrepareAndFinalizeNoDPEPModular()
    hidden, ids, weights = batch(0)
    rows, *_ = one.prepare(hidden, weights, ids, E, None, False, PLAIN)
    output = np.zeros_like(hidden)
    one.finalize(output, np.repeat(rows[:, None], K, axis=1), weights, ids, False, Halves())
    np.testing.assert_array_equal(output, hidden)


# name: (batched, dtype of ids, bound on tokens, reduced, async)
PROPERTIES = {
    "low_latency": (True, "int64", 8, True, True), "nixl": (True, None, 8, True, True),
    "high_throughput": (False, "int64", None, True, True),
    "v2_decode": (False, "int64", None, True, True), "v2_prefill": (False, "int64", None, True, True),
    "all_gather": (False, None, None, False, False), "two_sided": (False, None, None, True, False),
    "one_sided": (False, "int32", None, True, False), "mori": (False, "int32", 8, True, False),
    "no_dp_ep": (False, None, None, False, False)}


@pytest.mark.parametrize("name", CLASSES)
def test_properties(name):
    is_batched, ids_dtype, bound, is_reduced, is_async = PROPERTIES[name]

    def rank(group):
        one = CLASSES[name][1](vllm.All2AllManager(group))
        assert isinstance(one, vllm.FusedMoEPrepareAndFinalizeModular)
        assert one.activation_format is vllm.FusedMoEActivationFormat["BatchedExperts" if is_batched else "Standard"]
        dtype = one.topk_indices_dtype()
        assert (None if dtype is None else str(dtype).rpartition(".")[2]) == ids_dtype and one.max_num_tokens_per_rank() == bound
        assert (one.output_is_reduced(), one.supports_async()) == (is_reduced, is_async)
        assert one.num_dispatchers() == (1 if name == "no_dp_ep" else P)
        if not is_async:
            with pytest.raises(NotImplementedError):
                one.prepare_async(*[None] * 8)

    run_local(P, rank)


def call_of(make, ids=None, **changes):
    def rank(group):
        one = make(vllm.All2AllManager(group))
        hidden, good_ids, weights = batch(group.rank, one)
        arguments = {"a1": hidden, "topk_weights": weights, "topk_ids": good_ids if ids is None else ids(good_ids), "num_experts": E,
                     "expert_map": None, "apply_router_weight_on_input": False, "quant_config": PLAIN, **changes}
        return one, hidden, one.prepare(**arguments)

    return rank


def finalize_with(make, rows, impl, output=None):
    def rank(group):
        one, hidden, (given, _, _, ids, weights) = call_of(make)(group)
        one.finalize(hidden if output is None else output, rows(given), weights, ids, False, impl)

    return rank


@pytest.mark.parametrize("rank, phrase", [
    (lambda group: vllm.DeepEPLLPrepareAndFinalize(group, 8, 3), "num_dispatchers is 3, must be 2"),
    (call_of(lambda m: vllm.DeepEPHTPrepareAndFinalize(m, P, P, 3)), "rank_expert_offset is 3, must be"),
    (call_of(CLASSES["v2_decode"][1], num_experts=8), "num_experts is 8, must be 4"),
    (call_of(CLASSES["low_latency"][1], ids=lambda ids: ids.astype(np.int32)), "topk_ids is i32, must be i64"),
    (call_of(CLASSES["low_latency"][1], ids=lambda ids: ids + 100), "topk_ids"),
    (finalize_with(CLASSES["low_latency"][1], lambda rows: rows, NO_OP), "must be TopKWeightAndReduceDelegate"),
    (finalize_with(CLASSES["two_sided"][1], lambda rows: rows[:, None], DELEGATE), "weighted and summed over the experts"),
    (finalize_with(CLASSES["all_gather"][1], lambda rows: rows, NO_OP, np.zeros((1, 3), BF16)), "output is \\(1, 3\\)"),
    (lambda group: CLASSES["low_latency"][1](vllm.All2AllManager(group)).finalize(np.zeros((1, H)), None, None, None, False, DELEGATE),
     "follows no prepare"),
])
def test_errors(rank, phrase):
    with pytest.raises(switchyard.InvalidArgumentError, match=phrase):
        run_local(P, rank)


@pytest.mark.parametrize("make", [vllm.MoEPrepareAndFinalizeNoDPEPModular, lambda: vllm.BatchedPrepareAndFinalize(T, E, 1, 0)],
                         ids=["no_dp_ep", "batched"])
def test_wrong_types_are_named(make):
    hidden, ids, weights = batch(0)
    one = make()
    given = {"a1": hidden, "topk_weights": weights, "topk_ids": ids, "num_experts": E, "expert_map": None,
             "apply_router_weight_on_input": False, "quant_config": PLAIN}
    for wrong in (None, [[1]]):
        for name in ("a1", "topk_ids", "num_experts"):
            with pytest.raises(switchyard.ArgumentTypeError, match=f"{name}(:| is) (None|a list), must be "):
                one.prepare(**{**given, name: wrong})
    rows = one.prepare(**given)[0]
    given = {"output": np.zeros_like(hidden), "fused_expert_output": rows, "topk_weights": weights, "topk_ids": ids,
             "apply_router_weight_on_input": False, "weight_and_reduce_impl": NO_OP if len(rows.shape) == 2 else DELEGATE}
    for name in ("output", "fused_expert_output", "weight_and_reduce_impl"):
        with pytest.raises(switchyard.ArgumentTypeError, match=f"finalize: {name} is None, must be given"):
            one.finalize(**{**given, name: None})
    with pytest.raises(TypeError, match="unexpected keyword") as raised:
        one.finalize(**given, colour=1)
    assert not isinstance(raised.value, switchyard.Error)


@pytest.mark.parametrize("call, phrase", [
    (lambda: vllm.BatchedPrepareAndFinalize(0, E, 1, 0), "max_num_tokens is 0, must be at least 1"),
    (lambda: vllm.BatchedPrepareAndFinalize(T, E, 1, None), "rank is None, must be int"),
    (lambda: vllm.FlashInferNVLinkOneSidedPrepareAndFinalize(8, 0, E, H), "top_k is 0, must be at least 1"),
    (lambda: vllm.FlashInferNVLinkOneSidedPrepareAndFinalize(8, K, E, "256"), "hidden_size is '256', must be int"),
    (lambda: vllm.BatchedPrepareAndFinalize(T, E, 1, 0).prepare(*batch(0)[:1], batch(0)[2], batch(0)[1], E, None, False, vllm.fp8_w8a8_moe_quant_config(
        *[np.ones(1, np.float32)] * 2, *[np.zeros(1, np.float32)] * 2)), "a1_scale is 0.0, must be a positive number"),
])
def test_numbers_of_constructors(call, phrase):
    with pytest.raises(switchyard.InvalidArgumentError, match=phrase):
        call()


@pytest.mark.skipif(interface.HAS_VLLM, reason="vLLM is installed, whose group stands for an absent manager")
def test_absent_managers():
    with pytest.raises(switchyard.InvalidArgumentError, match="all2all_manager: it is absent"):
        vllm.MoEPrepareAndFinalizeNaiveDPEPModular()


def test_weight_and_reduce_classes():
    rows = np.arange(12, dtype=np.float32).reshape(3, 2, 2).copy()
    ids, weights = np.array([[0, 1], [1, 0], [0, 1]]), np.full((3, 2), 0.5, np.float32)
    assert CONTIGUOUS == vllm.TopKWeightAndReduceContiguous() != NO_OP and NO_OP != DELEGATE
    assert vllm.TopKWeightAndReduceNaiveBatched(1) == vllm.TopKWeightAndReduceNaiveBatched(1) != vllm.TopKWeightAndReduceNaiveBatched(0)
    expected = rows.sum(axis=1) / 2
    np.testing.assert_array_equal(CONTIGUOUS.apply(None, rows.reshape(6, 2).copy(), weights, ids, False), expected)
    output = np.zeros((3, 2), np.float32)
    assert CONTIGUOUS.apply(output, rows.copy(), weights, ids, True) is output
    np.testing.assert_array_equal(output, expected * 2)
    assert NO_OP.apply(None, output, weights, ids, False) is output and NO_OP.apply(output, output, weights, ids, False) is output
    copied = np.zeros_like(output)
    assert NO_OP.apply(copied, output, weights, ids, False) is copied and (copied == output).all()
    with pytest.raises(switchyard.InvalidArgumentError, match="must be \\(3, 2\\)"):
        NO_OP.apply(np.zeros((1, 2)), output, weights, ids, False)
    with pytest.raises(switchyard.InvalidArgumentError, match="prepare/finalize object chooses"):
        DELEGATE.apply(None, rows, weights, ids, False)
    batched = np.ones((2, 3, 2), np.float32)
    np.testing.assert_array_equal(vllm.TopKWeightAndReduceNaiveBatched(0).apply(None, batched, weights, ids, False), np.ones((3, 2)))


@pytest.mark.parametrize("kind", ["Buffer", "ElasticBuffer"])
def test_windows_over_a_buffer_of_deep_ep_end_with_it(kind):
    from switchyard.compat import deep_ep

    def rank(group):
        x, ids, weights = batch(group.rank)
        buffer = deep_ep.Buffer(group) if kind == "Buffer" else deep_ep.ElasticBuffer(group, num_max_tokens_per_rank=8, hidden=H)
        objects = [vllm.DeepEPLLPrepareAndFinalize(buffer, 8, P) for _ in range(2)]
        assert objects[0].manager is objects[1].manager
        objects[0].prepare(x, weights, ids, E, None, False, PLAIN)
        buffer.destroy()
        with pytest.raises(switchyard.InvalidArgumentError, match="closed"):
            objects[0].prepare(x, weights, ids, E, None, False, PLAIN)

    run_local(P, rank)


def test_a_manager_that_a_rank_leaves_by_an_exception():
    def rank(group):
        x, ids, weights = batch(group.rank)
        with pytest.raises(KeyError, match="of the caller"), vllm.All2AllManager(group) as manager:
            one = vllm.DeepEPLLPrepareAndFinalize(manager, 8, P)
            one.prepare(x, weights, ids, E, None, False, PLAIN)
            raise KeyError("of the caller")
        with pytest.raises(switchyard.InvalidArgumentError, match="closed"):
            one.prepare(x, weights, ids, E, None, False, PLAIN)

    run_local(P, rank)

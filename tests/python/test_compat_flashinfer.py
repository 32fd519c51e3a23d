# SPDX-License-Identifier: Apache-2.0
"""switchyard.compat.flashinfer on threads and numpy arrays, against plain numpy."""
import subprocess
import sys

import ml_dtypes
import numpy as np
import pytest

import switchyard
from switchyard import ArgumentTypeError, InvalidArgumentError, NotSupportedError, run_local
from switchyard.compat import flashinfer

P, E, K, H, MAX = 3, 12, 2, 32, 6
L = E // P
TOKENS = [5, 0, 6]
BF16 = ml_dtypes.bfloat16


def batch(rank):
    random = np.random.default_rng(rank + 10)
    num = TOKENS[rank]
    x = random.integers(-8, 8, (num, H)).astype(BF16)
    ids = np.array([random.permutation(E)[:K] for _ in range(num)], np.int32).reshape(num, K)
    return x, ids, (random.integers(1, 5, (num, K)) / 4).astype(np.float32)


BATCHES = [batch(rank) for rank in range(P)]


def tokens_from(source, rank):
    return [t for t in range(TOKENS[source]) if any(i // L == rank for i in BATCHES[source][1][t])]


def times_ranks(rank):
    x, ids, _ = BATCHES[rank]
    return x.astype(np.float32) * np.array([[len({i // L for i in row})] for row in ids]).reshape(-1, 1)


@pytest.mark.parametrize("runtime_max", [MAX, MAX + 2])
def test_one_sided(runtime_max):
    def rank(group):
        x, ids, weights = BATCHES[group.rank]
        flashinfer.use_group(group)
        moe = flashinfer.MoeAlltoAll(flashinfer.Mapping(world_size=P, rank=group.rank), MAX + 2, K, E, hidden_size=H)
        for _ in range(2):
            rows, row_ids, row_weights = moe.dispatch(ids, [x, ids, weights], runtime_max, invalid_token_expert_id=-1,
                                                      expert_id_payload_index=1)
            assert rows.shape == (P, runtime_max, H) and rows.dtype == BF16 and row_ids.dtype == np.int32
            for s in range(P):
                tokens = tokens_from(s, group.rank)
                assert moe.recv_counts.numpy()[s] == len(tokens)
                for sent, got in zip(BATCHES[s], (rows, row_ids, row_weights)):
                    np.testing.assert_array_equal(got[s, :len(tokens)], sent[tokens])
                assert (row_ids[s, len(tokens):] == -1).all()
            with pytest.raises(InvalidArgumentError, match="combine first"):
                moe.dispatch(ids, [x], runtime_max)
            with pytest.raises(InvalidArgumentError, match="as in the dispatch"):
                moe.combine(rows, runtime_max - 1)
            memory = moe.get_combine_payload_tensor_in_workspace(runtime_max, H, "bf16")
            memory.numpy()[:] = rows
            output = moe.combine(memory.numpy(), runtime_max, payload_in_workspace=True)
            assert output.dtype == BF16 and output.shape == (len(x), H)
            np.testing.assert_array_equal(output.astype(np.float32), times_ranks(group.rank))
        with pytest.raises(InvalidArgumentError, match="must follow a dispatch"):
            moe.combine(memory, runtime_max)
        flashinfer.use_group(None)

    run_local(P, rank)


def test_two_sided():
    def rank(group):
        x, ids, weights = BATCHES[group.rank]
        workspace = flashinfer.MnnvlMoe.get_moe_workspaces(group)
        prepare = flashinfer.MnnvlMoe.get_moe_prepare_workspace(group)
        statics = np.arange(E, dtype=np.int32) + group.rank
        where = {"ep_rank": group.rank, "ep_size": P}
        for most in (MAX, 2 * MAX + 1):  # the windows grow
            info, got_ids, got_weights, gathered = flashinfer.MnnvlMoe.mnnvl_moe_alltoallv_prepare_without_allgather(
                ids, weights, statics, prepare, most, group.rank, P, E, E, K)
            assert got_ids.shape == (P * most, K) and got_ids.dtype == np.int32 and info.local_token_allocation_count == P * most
            np.testing.assert_array_equal(gathered, np.arange(E) + np.arange(P)[:, None])
            arrived = [(s, t) for s in range(P) for t in tokens_from(s, group.rank)]
            np.testing.assert_array_equal(info.recv_rank_count_cumsum, np.cumsum([len(tokens_from(s, group.rank)) for s in range(P)]))
            np.testing.assert_array_equal(info.send_rank_count_cumsum, np.cumsum([len(tokens_from(group.rank, r)) for r in range(P)]))
            assert info.local_gather_indices is None and info.recv_rank_local_indices[:len(arrived)].tolist() == list(range(len(arrived)))
            sent = [t for r in range(P) for t in tokens_from(group.rank, r)]
            assert info.send_rank_local_indices[:len(sent)].tolist() == sent
            rows = flashinfer.MnnvlMoe.mnnvl_moe_alltoallv(x, info, workspace, **where)
            assert rows.shape == (P * most, H) and rows.dtype == BF16
            for row, (s, t) in enumerate(arrived):
                np.testing.assert_array_equal(rows[row], BATCHES[s][0][t])
                np.testing.assert_array_equal(got_weights[row], BATCHES[s][2][t])
                assert got_ids[row].tolist() == [i if i // L == group.rank else E for i in BATCHES[s][1][t].tolist()]
            assert (got_ids[len(arrived):] == E).all() and not rows[len(arrived):].any()
            output = flashinfer.MnnvlMoe.mnnvl_moe_alltoallv_combine(rows, info, workspace, **where, top_k=K, token_count=len(x))
            np.testing.assert_array_equal(output.astype(np.float32), times_ranks(group.rank))
        with pytest.raises(InvalidArgumentError, match="the tokens of prepare"):
            flashinfer.MnnvlMoe.mnnvl_moe_alltoallv_combine(rows, info, workspace, **where, top_k=K, token_count=len(x) + 1)
        with pytest.raises(InvalidArgumentError, match="as the workspace's"):
            flashinfer.MnnvlMoe.mnnvl_moe_alltoallv(x, info, workspace, (group.rank + 1) % P, P)

    run_local(P, rank)


@pytest.mark.parametrize("call, phrase", [
    (lambda moe, x, ids: moe.dispatch(ids, [x], MAX, active_rank_mask=ids), "active_rank_mask without some of the ranks"),
    (lambda moe, x, ids: moe.combine(x, MAX, output_dtype="e4m3"), "output_dtype"),
    (lambda moe, x, ids: moe.combine(x, MAX, output_scales=x), "output_scales"),
    (lambda moe, x, ids: moe.combine(x, MAX, use_low_precision=True), "use_low_precision"),
    (lambda moe, x, ids: moe.combine(x, MAX, active_rank_mask=np.array([(1 << P) - 2], np.uint64)), "active_rank_mask without some of the ranks"),
])
def test_what_is_refused(call, phrase):
    def rank(group):
        with pytest.raises(NotSupportedError, match=f"{phrase} is given"):
            call(flashinfer.MoeAlltoAll(group, MAX, K, E), *BATCHES[0][:2])

    run_local(1, rank)


def test_errors_and_sizes():
    def rank(group):
        flashinfer.use_group(group)
        with pytest.raises(InvalidArgumentError, match="rank 1 of 2, but the group has rank 0 of 1"):
            flashinfer.MoeAlltoAll(flashinfer.Mapping(world_size=2, rank=1), MAX, K, E)
        flashinfer.use_group(None)
        moe = flashinfer.MoeAlltoAll(group, MAX, K, E)
        x, ids, _ = BATCHES[0]
        with pytest.raises(InvalidArgumentError, match="must come with it"):
            moe.dispatch(ids, [x], MAX, invalid_token_expert_id=-1)
        for call in (lambda: moe.recv_counts, lambda: moe.get_combine_payload_tensor_in_workspace(MAX, H, "bf16")):
            with pytest.raises(InvalidArgumentError, match="must follow a dispatch"):
                call()
        tensors = moe.dispatch(switchyard.Tensor.wrap(ids), [switchyard.Tensor.wrap(x)], MAX)
        assert isinstance(tensors[0], switchyard.Tensor)
        assert isinstance(moe.combine(tensors[0], MAX), switchyard.Tensor)
        del tensors
        moe.close()

    run_local(1, rank)
    aligned = -(-4 * 8 * (H * 2 + 8 * K) // 128) * 128 + -(-4 * 8 * H * 2 // 128) * 128
    assert flashinfer.MoeAlltoAll.get_moe_workspace_size_per_rank(4, K, 8, H) == aligned


def test_wrong_types_are_named():
    def rank(group):
        x, ids, _ = BATCHES[0]
        memory = flashinfer.MnnvlMemory(group, 1024).as_torch_strided_tensor(np.uint8)
        metainfo = flashinfer.moe_a2a_initialize(memory, 0, 1, MAX)
        where = {"workspace": memory, "metainfo": metainfo, "runtime_max_tokens_per_rank": MAX, "ep_rank": 0, "ep_size": 1}
        two_sided = flashinfer.MnnvlMoe.get_moe_workspaces(group)
        prepare = flashinfer.MnnvlMoe.mnnvl_moe_alltoallv_prepare_without_allgather
        prepared = {"expert_ids": ids, "scales": None, "expert_statics": None, "workspace": two_sided, "max_token_count_per_rank": MAX,
                    "ep_rank": 0, "ep_size": 1, "expert_count": E, "slot_count": E, "top_k": K}
        moe = flashinfer.MoeAlltoAll(group, MAX, K, E)
        functions = [
            (flashinfer.moe_a2a_dispatch, {"token_selected_experts": ids, "input_payloads": [x], **where, "top_k": K, "num_experts": E}),
            (moe.dispatch, {"token_selected_experts": ids, "input_payloads": [x], "runtime_max_tokens_per_rank": MAX}),
            (prepare, {name: value for name, value in prepared.items() if name != "top_k"}),
            (flashinfer.MnnvlMoe.mnnvl_moe_alltoallv, {"x": x, "alltoall_info": prepare(**prepared)[0], "workspace": two_sided,
                                                       "ep_rank": 0, "ep_size": 1}),
            (flashinfer.MoeAlltoAll, {"mapping": group, "max_num_tokens": MAX, "top_k": K, "num_experts": E}),
            (flashinfer.MoeAlltoAll.get_moe_workspace_size_per_rank, {"ep_size": 1, "top_k": K, "max_num_tokens": MAX, "hidden_size": H}),
        ]
        for function, arguments in functions:
            for name, value in arguments.items():
                if value is not None and name not in ("mapping", "ep_rank", "ep_size"):
                    fixed = {"top_k": K} if function is prepare else {}
                    with pytest.raises(ArgumentTypeError, match=f"{name} is None, must be "):
                        function(**{**arguments, **fixed, name: None})
        for wrong in (0, -1):
            for name in ("max_num_tokens", "top_k", "num_experts"):
                with pytest.raises(InvalidArgumentError, match=f"MoeAlltoAll: {name} is {wrong}, must be at least 1"):
                    flashinfer.MoeAlltoAll(group, **{"max_num_tokens": MAX, "top_k": K, "num_experts": E, name: wrong})
        rows = moe.dispatch(ids, [x], MAX)
        for wrong in (None, [[1.0]]):
            with pytest.raises(ArgumentTypeError, match="combine: payload is (None, must be given|a list, must be an array)"):
                moe.combine(wrong, MAX)
        with pytest.raises(TypeError, match="unexpected keyword") as raised:
            moe.combine(rows[0], MAX, colour=1)
        assert not isinstance(raised.value, switchyard.Error)
        moe.combine(rows[0], MAX)

    run_local(1, rank)


def test_install():
    source = ("import switchyard.compat\nswitchyard.compat.install('flashinfer.comm', 'deep_ep')\n"
              "import flashinfer.comm\nfrom flashinfer.comm import MoeAlltoAll, Mapping\nimport deep_ep\n"
              "print(MoeAlltoAll.__module__)\n")
    done = subprocess.run([sys.executable, "-c", source], check=True, capture_output=True, text=True, timeout=60)
    assert done.stdout.startswith("switchyard.compat")


@pytest.mark.parametrize("in_workspace", [False, True])
def test_functions(in_workspace):
    """The same rows and sums as MoeAlltoAll, through a workspace and its metainfo."""
    def rank(group):
        x, ids, weights = BATCHES[group.rank]
        flashinfer.use_group(group)
        mapping = flashinfer.Mapping(world_size=P, rank=group.rank)
        size = flashinfer.moe_a2a_get_workspace_size_per_rank(P, MAX, H * 2 + 8 * K, H * 2)
        flashinfer.MnnvlMemory.initialize()
        workspace = flashinfer.MnnvlMemory(mapping, size).as_torch_strided_tensor(np.uint8)
        assert workspace.shape == (P, size)
        where = {"ep_rank": group.rank, "ep_size": P}
        metainfo = flashinfer.moe_a2a_initialize(workspace, **where, max_num_tokens=MAX)
        with pytest.raises(InvalidArgumentError, match="must follow moe_a2a_dispatch"):
            flashinfer.moe_a2a_combine(x, len(x), workspace, metainfo, MAX, group.rank, P, K, 0)
        for _ in range(2):
            (rows, row_ids, _), offset, stats = flashinfer.moe_a2a_dispatch(
                ids, [x, ids, weights], workspace, metainfo, MAX, group.rank, P, K, E, enable_pdl=True)
            assert stats is None and rows.shape == (P, MAX, H)
            flashinfer.moe_a2a_sanitize_expert_ids(row_ids, workspace, metainfo, group.rank, -1)
            for s in range(P):
                tokens = tokens_from(s, group.rank)
                np.testing.assert_array_equal(rows[s, :len(tokens)], BATCHES[s][0][tokens])
                assert row_ids[s, :len(tokens)].tolist() == BATCHES[s][1][tokens].tolist() and (row_ids[s, len(tokens):] == -1).all()
            payload = rows
            if in_workspace:
                slices = (workspace[group.rank, :], [P, MAX], offset, offset + P * MAX * H * 2, BF16)
                payload = flashinfer.moe_a2a_wrap_payload_tensor_in_workspace(*slices)
                assert payload.shape == (P, MAX, H) and payload.dtype == BF16
                payload[:] = rows
                assert flashinfer.moe_a2a_wrap_payload_tensor_in_workspace(*slices) is payload
            output = np.zeros((len(x), H), BF16)
            got = flashinfer.moe_a2a_combine(payload, len(x), workspace, metainfo, MAX, **where, top_k=K, combine_payload_offset=offset,
                                             payload_in_workspace=in_workspace, output_dtype=np.dtype(BF16), output=output)
            assert got is output
            np.testing.assert_array_equal(output.astype(np.float32), times_ranks(group.rank))
        flashinfer.moe_a2a_dispatch(ids, [x], workspace, metainfo, MAX, group.rank, P, K, E)
        with pytest.raises(InvalidArgumentError, match=f"local_num_tokens is {len(x) + 1}, must be {len(x)}"):
            flashinfer.moe_a2a_combine(rows, len(x) + 1, workspace, metainfo, MAX, group.rank, P, K, 0)
        metainfo.close()
        with pytest.raises(InvalidArgumentError, match="closed"):
            flashinfer.moe_a2a_combine(rows, len(x), workspace, metainfo, MAX, group.rank, P, K, 0)
        flashinfer.use_group(None)

    run_local(P, rank)


def test_what_functions_refuse():
    def rank(group):
        x, ids, _ = BATCHES[0]
        workspace = flashinfer.MnnvlMemory(group, 1 << 20).as_torch_strided_tensor(None)
        metainfo = flashinfer.moe_a2a_initialize(workspace, 0, 1, MAX)
        dispatch = [ids, [x], workspace, metainfo, MAX, 0, 1, K, E]
        wrap = flashinfer.moe_a2a_wrap_payload_tensor_in_workspace
        for call, error, phrase in [
                (lambda: flashinfer.moe_a2a_initialize(np.zeros((1, 9), np.uint8), 0, 1, MAX), InvalidArgumentError, "must be what MnnvlMemory"),
                (lambda: flashinfer.moe_a2a_initialize(workspace, 1, 2, MAX), InvalidArgumentError, "must be 0 of 1"),
                (lambda: flashinfer.moe_a2a_initialize(workspace, 0, 1, MAX, 4), NotSupportedError, "eplb_stats_num_experts is given"),
                (lambda: flashinfer.moe_a2a_dispatch(*dispatch, eplb_local_stats=ids), NotSupportedError, "eplb_local_stats is given"),
                (lambda: flashinfer.moe_a2a_dispatch(*dispatch, active_rank_mask=np.zeros(1, np.uint64)), NotSupportedError,
                 "active_rank_mask without some of the ranks is given"),
                (lambda: flashinfer.moe_a2a_active_rank_mask([0, 2], 3), NotSupportedError, "cannot be masked"),
                (lambda: workspace[1], InvalidArgumentError, "must be this one's, 0"),
                (lambda: wrap(workspace, [1], 0, 4, np.float32), InvalidArgumentError, "must follow moe_a2a_dispatch"),
                (lambda: wrap(workspace, [1], 8, 12, np.float32), NotSupportedError, "slice_start 8 is given"),
                (lambda: wrap(workspace, [3], 0, 4, np.float32), InvalidArgumentError, "must be a multiple of 12")]:
            with pytest.raises(error, match=phrase):
                call()
        masks = {"enable_rank_mask": True, "active_rank_mask": flashinfer.moe_a2a_active_rank_mask([0], 1)}
        received, offset, stats = flashinfer.moe_a2a_dispatch(*dispatch, enable_pdl=True, backend="cake", recv_view_cache={}, **masks)
        output = flashinfer.moe_a2a_combine(received[0], len(x), workspace, metainfo, MAX, 0, 1, K, offset, enable_pdl=True, backend="cake", **masks)
        assert stats is None and np.array_equal(output, x)
        assert flashinfer.moe_a2a_active_rank_mask(range(3), 3).tolist() == [7] and flashinfer.MOE_A2A_RANK_MASK_WORDS == 1

    run_local(1, rank)

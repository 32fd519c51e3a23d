# SPDX-License-Identifier: Apache-2.0
"""ElasticBuffer of switchyard.compat.deep_ep on threads and numpy arrays, against plain numpy."""
import ml_dtypes
import numpy as np
import pytest

import switchyard
from switchyard import InvalidArgumentError, NotSupportedError, run_local
from switchyard.compat import _deep_ep_metadata as metadata
from switchyard.compat import deep_ep

P, E, K, H, MAX, A = 2, 4, 2, 64, 5, 4
L = E // P
TOKENS = [5, 3]
BF16 = ml_dtypes.bfloat16


def batch(rank):
    random = np.random.default_rng(rank + 20)
    num = TOKENS[rank]
    x = random.integers(-8, 8, (num, H)).astype(BF16)
    ids = np.array([random.permutation(E)[:K] for _ in range(num)], np.int64)
    ids[random.random((num, K)) < 0.2] = -1
    return x, ids, (random.integers(1, 5, (num, K)) / 4).astype(np.float32)


BATCHES = [batch(rank) for rank in range(P)]


def tokens_to(rank):
    return [(s, t) for s in range(P) for t in range(TOKENS[s]) if any(i >= 0 and i // L == rank for i in BATCHES[s][1][t])]


def rows_to(rank):
    """(local expert, source rank, token, k) by expert, rank, token."""
    return [(e, s, t, k) for e in range(L) for s in range(P) for t in range(TOKENS[s]) for k in range(K)
            if BATCHES[s][1][t, k] == rank * L + e]


def copies(rank, counts_ranks):
    """Tokens times their number of ranks, or of experts."""
    x, ids, _ = BATCHES[rank]
    number = [len({i // L if counts_ranks else i for i in row if i >= 0}) for row in ids.tolist()]
    return x.astype(np.float32) * np.array(number).reshape(-1, 1)


def check_handle(handle, rank, syncs):
    counts = [sum(row[0] == e for row in rows_to(rank)) for e in range(L)]
    aligned = [-(-count // A) * A for count in counts]
    assert (handle.num_experts, handle.expert_alignment, handle.num_max_tokens_per_rank, handle.num_sms) == (E, A, MAX, 0)
    np.testing.assert_array_equal(handle.topk_idx, BATCHES[rank][1])
    assert handle.num_recv_tokens_per_expert_list == (aligned if syncs else [])
    assert handle.num_unaligned_recv_tokens_per_expert.tolist() == counts
    per_rank = [sum(s == source for s, _ in tokens_to(rank)) for source in range(P)]
    assert handle.psum_num_recv_tokens_per_scaleup_rank.tolist() == np.cumsum(per_rank).tolist()
    ends = np.cumsum(aligned)
    starts = ends - aligned
    assert handle.psum_num_recv_tokens_per_expert.tolist() == (starts + counts if handle.do_expand else ends).tolist()
    assert handle.num_recv_tokens == (len(tokens_to(rank)) if syncs else P * MAX)
    metadata = handle.recv_src_metadata
    assert metadata.dtype == np.int32 and metadata.shape == (handle.num_recv_tokens, K + 2)
    assert metadata[:len(tokens_to(rank)), 0].tolist() == [s * MAX + t for s, t in tokens_to(rank)]
    assert handle.dst_buffer_slot_idx.shape == (TOKENS[rank], K)
    return starts


@pytest.mark.parametrize("syncs", [True, False])
@pytest.mark.parametrize("is_fp8", [False, True])
def test_one_row_per_token(syncs, is_fp8):
    def rank(group):
        x, ids, weights = BATCHES[group.rank]
        sf = np.arange(len(x), dtype=np.float32).reshape(-1, 1)
        buffer = deep_ep.ElasticBuffer(group, num_max_tokens_per_rank=MAX, hidden=H, num_topk=K)
        stats = np.full(L, 2, np.int32)
        recv_x, recv_ids, recv_weights, handle, event = buffer.dispatch(
            (x.astype(ml_dtypes.float8_e4m3fn), sf) if is_fp8 else x, ids, weights, cumulative_local_expert_recv_stats=stats,
            num_experts=E, expert_alignment=A, do_cpu_sync=syncs, async_with_compute_stream=True)
        event.current_stream_wait()
        rows = recv_x[0] if is_fp8 else recv_x
        check_handle(handle, group.rank, syncs)
        np.testing.assert_array_equal(stats - 2, handle.num_unaligned_recv_tokens_per_expert)
        expected = tokens_to(group.rank)
        assert rows.shape == (len(expected) if syncs else P * MAX, H) and recv_ids.dtype == np.int64
        for row, (s, t) in enumerate(expected):
            np.testing.assert_array_equal(rows[row].astype(np.float32), BATCHES[s][0][t].astype(np.float32))
            assert not is_fp8 or recv_x[1][row].tolist() == [t]
            local = [i - group.rank * L if i >= 0 and i // L == group.rank else -1 for i in BATCHES[s][1][t].tolist()]
            assert recv_ids[row].tolist() == local
            assert recv_weights[row].tolist() == BATCHES[s][2][t].tolist()
        back = rows.astype(BF16)
        back[len(expected):] = 0
        bias = np.ones_like(x)
        combined, combined_weights, _ = buffer.combine(back, handle, topk_weights=recv_weights, bias=bias)
        np.testing.assert_array_equal(combined.astype(np.float32), copies(group.rank, True) + 1)
        np.testing.assert_array_equal(combined_weights, np.where(ids >= 0, weights, 0))
        if not is_fp8:
            again, _, _, same, event = buffer.dispatch(x * 2, handle=handle)
            assert same is handle and event.event is None
            np.testing.assert_array_equal(again[:len(expected)], np.array([BATCHES[s][0][t] * 2 for s, t in expected]).reshape(-1, H))
        buffer.barrier()

    run_local(P, rank)


@pytest.mark.parametrize("syncs", [True, False])
@pytest.mark.parametrize("sums_once", [False, True])
def test_one_row_per_expert(syncs, sums_once):
    def rank(group):
        x, ids, weights = BATCHES[group.rank]
        buffer = deep_ep.ElasticBuffer(group, num_bytes=1 << 21, allow_multiple_reduction=not sums_once)
        recv_x, recv_ids, recv_weights, handle, _ = buffer.dispatch(
            x, ids, weights, num_experts=E, num_max_tokens_per_rank=MAX, expert_alignment=A, do_expand=True, do_cpu_sync=syncs,
            do_zero_padding=True)
        starts = check_handle(handle, group.rank, syncs)
        assert recv_ids is None and recv_weights.shape == (len(recv_x),) and handle.num_expanded_tokens == len(recv_x)
        expected = np.zeros((len(recv_x), H), np.float32)
        expected_weights = np.zeros(len(recv_x), np.float32)
        places = list(starts)
        for e, s, t, k in rows_to(group.rank):
            expected[places[e]], expected_weights[places[e]] = BATCHES[s][0][t], BATCHES[s][2][t, k]
            places[e] += 1
        np.testing.assert_array_equal(recv_x.astype(np.float32), expected)
        np.testing.assert_array_equal(recv_weights, expected_weights)
        combined, returned, _ = buffer.combine(recv_x, handle, topk_weights=None if sums_once else recv_weights)
        np.testing.assert_array_equal(combined.astype(np.float32), copies(group.rank, False))
        assert returned is None if sums_once else (returned == np.where(ids >= 0, weights, 0)).all()

    run_local(P, rank)


def test_zero_padding_and_weights_of_a_cached_dispatch():
    def rank(group):
        x, ids, weights = BATCHES[group.rank]
        buffer = deep_ep.ElasticBuffer(group, num_max_tokens_per_rank=MAX)
        recv_x, _, recv_weights, handle, _ = buffer.dispatch(x, ids, weights, num_experts=E, expert_alignment=A, do_expand=True)
        first = recv_weights.copy()
        again, _, no_weights, same, _ = buffer.dispatch(x * 2, handle=handle, do_expand=True, do_zero_padding=True)
        assert same is handle and no_weights is None
        np.testing.assert_array_equal(recv_weights, first)  # a cached dispatch leaves earlier weights alone
        valid = np.zeros(len(again), bool)
        for end, count in zip(handle.psum_num_recv_tokens_per_expert, handle.num_unaligned_recv_tokens_per_expert):
            valid[end - count:end] = True
        assert not valid.all() and (again[~valid] == 0).all()
        other, _, other_weights, _, _ = buffer.dispatch(x, topk_weights=weights * 2, handle=handle, do_zero_padding=True)
        np.testing.assert_array_equal(other_weights, np.where(valid, first * 2, 0))
        combined, returned, _ = buffer.combine(other, handle, topk_weights=recv_weights)
        np.testing.assert_array_equal(combined.astype(np.float32), copies(group.rank, False))
        np.testing.assert_array_equal(returned, np.where(ids >= 0, weights, 0))
        *_, compact, _ = buffer.dispatch(x, ids, num_experts=E)
        with pytest.raises(InvalidArgumentError, match="do_zero_padding is set, must come with an expanded handle"):
            buffer.dispatch(x, handle=compact, do_zero_padding=True)

    run_local(P, rank)


@pytest.mark.parametrize("syncs", [1, 0])
@pytest.mark.parametrize("expands", [1, 0])
def test_metadata_made_with_torch_is_that_of_the_library(syncs, expands):
    torch = pytest.importorskip("torch", reason="torch is not installed")

    def rank(group):
        x, ids, _ = BATCHES[group.rank]
        buffer = deep_ep.ElasticBuffer(group, num_max_tokens_per_rank=MAX, allow_multiple_reduction=1)
        *_, handle, _ = buffer.dispatch(x, ids, num_experts=E, expert_alignment=A, do_expand=expands, do_cpu_sync=syncs)
        sources = [source.torch() for source in handle.native.row_sources(handle.call)]
        lines = metadata.recv_src_metadata(*sources, handle.num_recv_tokens, MAX, P, K, bool(expands))
        assert lines.dtype == torch.int32
        np.testing.assert_array_equal(lines.numpy(), handle.recv_src_metadata)
        # Another number of experts than a multiple of the ranks: the first holds one more.
        for num_experts in (E, E + 1):
            *_, handle, _ = buffer.dispatch(x, ids, num_experts=num_experts)
            slots = metadata.dst_buffer_slot_idx(torch.from_numpy(ids), num_experts, group.rank, P, MAX)
            assert slots.dtype == torch.int32
            np.testing.assert_array_equal(slots.numpy(), handle.dst_buffer_slot_idx)
        buffer.combine(np.zeros((handle.num_recv_tokens, H), BF16), handle)
        with pytest.raises(InvalidArgumentError, match="the handle was combined"):
            handle.native.row_sources(handle.call)

    run_local(P, rank)


def test_the_handle_may_keep_the_callers_ids():
    def rank(group):
        x, ids, _ = BATCHES[group.rank]
        buffer = deep_ep.ElasticBuffer(group, num_max_tokens_per_rank=MAX)
        for copies_ids in (0, 1):
            *_, handle, _ = buffer.dispatch(x, ids, num_experts=E, do_handle_copy=copies_ids)
            assert (handle.topk_idx is ids) != copies_ids
            np.testing.assert_array_equal(handle.topk_idx, ids)
            buffer.combine(np.zeros((handle.num_recv_tokens, H), BF16), handle)

    run_local(P, rank)


def test_sizes():
    def rank(group):
        buffer = deep_ep.ElasticBuffer(group, num_max_tokens_per_rank=MAX, deterministic=True, num_allocated_qps=3)
        assert buffer.get_logical_domain_size() == buffer.get_physical_domain_size() == (1, P)
        assert deep_ep.get_logical_domain_size(group) == deep_ep.get_physical_domain_size(group) == (1, P)
        assert (buffer.num_scaleout_ranks, buffer.num_scaleup_ranks, buffer.num_rdma_ranks, buffer.num_nvlink_ranks) == (1, P, 1, P)
        assert (buffer.scaleout_rank_idx, buffer.scaleup_rank_idx) == (0, group.rank)
        assert buffer.deterministic and buffer.num_allocated_qps == 3
        assert buffer.get_theoretical_num_sms(E, K) == buffer.get_theoretical_num_qps(0) == 0
        assert isinstance(buffer.capture(), deep_ep.EventHandle)
        small, large = (deep_ep.ElasticBuffer.get_buffer_size_hint(group, tokens, 7168, 8) for tokens in (128, 4096))
        assert small % (2 << 20) == large % (2 << 20) == 0
        assert small >= 128 * 7168 * 2 and large > 8 * small
        assert buffer.num_bytes == 0 and deep_ep.ElasticBuffer(group, num_bytes=3).num_bytes == 3
        # The first function of DeepEP's README keeps a buffer that is large enough.
        kept = deep_ep.ElasticBuffer(group, num_max_tokens_per_rank=128, hidden=7168, num_topk=8)
        assert kept.group == group and small <= kept.num_bytes < large

    run_local(P, rank)


def test_column_major_scales():
    def rank(group):
        x, ids, _ = BATCHES[group.rank]
        buffer = deep_ep.ElasticBuffer(group, num_max_tokens_per_rank=MAX)
        (rows, sf), *_ = buffer.dispatch((x.astype(ml_dtypes.float8_e4m3fn), np.ones((len(x), 2), np.float32)), ids, num_experts=E,
                                         do_expand=True, use_tma_aligned_col_major_sf=True)
        assert [stride // 4 for stride in sf.strides] == [1, -(-len(rows) // 4) * 4] and (sf[:1] == 1).all()

    run_local(P, rank)


def test_errors():
    def rank(group):
        x, ids, _ = BATCHES[0]
        buffer = deep_ep.ElasticBuffer(group)
        with pytest.raises(InvalidArgumentError, match="num_max_tokens_per_rank is absent"):
            buffer.dispatch(x, ids, num_experts=E)
        *_, handle, _ = buffer.dispatch(x, ids, num_experts=E, num_max_tokens_per_rank=MAX)
        with pytest.raises(InvalidArgumentError, match="pass None"):
            buffer.dispatch(x, ids, handle=handle)
        with pytest.raises(InvalidArgumentError, match="leave it out"):
            buffer.dispatch(x, handle=handle, do_cpu_sync=True)
        with pytest.raises(NotSupportedError, match="cumulative_local_expert_recv_stats"):
            buffer.dispatch(x, handle=handle, cumulative_local_expert_recv_stats=switchyard.Tensor([E], "i32"))
        with pytest.raises(InvalidArgumentError, match="bias"):
            buffer.combine(x, handle, bias=(x, x, x))
        buffer.destroy()
        with pytest.raises(InvalidArgumentError, match="was destroyed"):
            buffer.dispatch(x, ids, num_experts=E, num_max_tokens_per_rank=MAX)

    run_local(1, rank)

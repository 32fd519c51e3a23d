# SPDX-License-Identifier: Apache-2.0
"""switchyard.compat.deep_ep on threads and numpy arrays, against plain numpy."""
import ml_dtypes
import numpy as np
import pytest

import switchyard
from switchyard import ArgumentTypeError, InvalidArgumentError, NotSupportedError, run_local
from switchyard.compat import deep_ep

P, E, K, H, MAX = 3, 6, 2, 256, 5
L, C = E // P, P * MAX
TOKENS = [5, 0, 3]
BF16 = ml_dtypes.bfloat16


def batch(rank):
    """Small integers, so that sums are exact; distinct experts, some of them none."""
    random = np.random.default_rng(rank)
    num = TOKENS[rank]
    x = random.integers(-8, 8, (num, H)).astype(BF16)
    ids = np.array([random.permutation(E)[:K] for _ in range(num)], np.int64).reshape(num, K)
    ids[random.random((num, K)) < 0.2] = -1
    return x, ids, (random.integers(1, 5, (num, K)) / 4).astype(np.float32)


BATCHES = [batch(rank) for rank in range(P)]


def arrivals(rank):
    """(local expert, source rank, token, weight) of what a rank receives, in the order of the rows."""
    return [(e, s, t, BATCHES[s][2][t, k]) for e in range(L) for s in range(P) for t in range(TOKENS[s]) for k in range(K)
            if BATCHES[s][1][t, k] == rank * L + e]


def tokens_to(rank):
    """(source rank, token) of the tokens that have an expert on a rank."""
    return [(s, t) for s in range(P) for t in range(TOKENS[s]) if any(i // L == rank for i in BATCHES[s][1][t] if i >= 0)]


def tokens_from(source, rank):
    """The tokens of one of them."""
    return [t for s, t in tokens_to(rank) if s == source]


def weighted(rank):
    """What a combine gives when every expert returns its input."""
    x, ids, weights = BATCHES[rank]
    return x.astype(np.float32) * (weights * (ids >= 0)).sum(axis=1, keepdims=True)


def times_ranks(rank):
    """What a combine gives that adds one copy of a token for each rank that received it."""
    x, ids, _ = BATCHES[rank]
    return x.astype(np.float32) * np.array([[len({i // L for i in row if i >= 0})] for row in ids]).reshape(-1, 1)


def on_ranks(function):
    """Calls function(buffer, group) on every rank."""

    def rank(group):
        buffer = deep_ep.Buffer(group, low_latency_mode=True)
        result = function(buffer, group)
        buffer.destroy()
        return result

    return run_local(P, rank)


@pytest.mark.parametrize("uses_hook", [False, True])
def test_low_latency_rows_and_sums(uses_hook):
    def rank(buffer, group):
        x, ids, weights = BATCHES[group.rank]
        stats = np.full(L, 3, np.int32)
        waits = np.zeros(P, np.int64)
        lent = x.copy()
        recv_x, recv_count, handle, event, hook = buffer.low_latency_dispatch(
            lent, ids, MAX, E, cumulative_local_expert_recv_stats=stats, dispatch_wait_recv_cost_stats=waits, use_fp8=False,
            return_recv_hook=uses_hook)
        assert event.event is None and (hook is not None) == uses_hook
        address = recv_x.ctypes.data
        lent[:] = 77  # DeepEP reads x at the send
        if uses_hook:
            hook()
        assert recv_x.shape == (L, C, H) and recv_x.dtype == BF16 and recv_x.ctypes.data == address
        expected = arrivals(group.rank)
        assert recv_count.dtype == np.int32 and recv_count.tolist() == [sum(a[0] == e for a in expected) for e in range(L)]
        np.testing.assert_array_equal(stats, recv_count + 3)
        src_info, layout_range, *sizes = handle
        assert sizes == [MAX, H, E] and src_info.shape == (L, C) and src_info.dtype == np.int32
        assert layout_range.shape == (L, P) and layout_range.dtype == np.int64
        for e in range(L):
            rows = [(s, t) for local, s, t, _ in expected if local == e]
            for i, (s, t) in enumerate(rows):
                np.testing.assert_array_equal(recv_x[e, i], BATCHES[s][0][t])
                assert src_info[e, i] == t
            for s in range(P):
                count, begin = int(layout_range[e, s]) & 0xFFFFFFFF, int(layout_range[e, s]) >> 32
                assert count == sum(source == s for source, _ in rows)
                assert count == 0 or [source for source, _ in rows[begin:begin + count]] == [s] * count
        out = np.zeros((len(x), H), BF16)
        lent = recv_x.copy()
        combined, event, hook = buffer.low_latency_combine(lent, ids, weights, handle, return_recv_hook=uses_hook, out=out)
        lent[:] = 77
        if uses_hook:
            hook()
        assert combined is out
        np.testing.assert_array_equal(combined.astype(np.float32), weighted(group.rank))
        again, _, hook = buffer.low_latency_combine(recv_x, ids, weights, handle, async_finish=True)
        assert again.dtype == BF16 and again.shape == (len(x), H) and hook is None
        np.testing.assert_array_equal(again, combined)

    on_ranks(rank)


def test_low_latency_rows_are_bf16():
    def rank(buffer, group):
        x, ids, weights = BATCHES[group.rank]
        with pytest.raises(InvalidArgumentError, match="x is f32 .*, must be bf16"):
            buffer.low_latency_dispatch(x.astype(np.float32), ids, MAX, E, use_fp8=False)
        recv_x, _, handle, _, _ = buffer.low_latency_dispatch(x, ids, MAX, E, use_fp8=False)
        with pytest.raises(InvalidArgumentError, match="x is f32 .*, must be bf16"):
            buffer.low_latency_combine(recv_x.astype(np.float32), ids, weights, handle)

    on_ranks(rank)


@pytest.mark.parametrize("round_scale, use_ue8m0", [(False, False), (True, False), (True, True)])
def test_low_latency_fp8(round_scale, use_ue8m0):
    def rank(buffer, group):
        x, ids, _ = BATCHES[group.rank]
        (q, scales), count, *_ = buffer.low_latency_dispatch(x, ids, MAX, E, round_scale=round_scale, use_ue8m0=use_ue8m0)
        assert q.shape == (L, C, H) and q.dtype == ml_dtypes.float8_e4m3fn
        columns = H // 512 + 1 if use_ue8m0 else H // 128
        assert scales.shape == (L, C, columns) and scales.dtype == (np.int32 if use_ue8m0 else np.float32)
        assert [stride // 4 for stride in scales.strides] == [columns * C, 1, C]
        places = dict.fromkeys(range(L), 0)
        for e, s, t, _ in arrivals(group.rank):
            row = places[e]
            places[e] += 1
            if use_ue8m0:
                exponents = np.ascontiguousarray(scales[e, row]).view(np.uint8)[:H // 128].astype(np.int32)
                values = np.exp2(exponents - 127.0)
            else:
                values = scales[e, row]
            back = q[e, row].astype(np.float32) * np.repeat(values, 128)
            np.testing.assert_allclose(back, BATCHES[s][0][t].astype(np.float32), atol=8 / 16)
        assert list(places.values()) == count.tolist()

    on_ranks(rank)


def test_low_latency_nvfp4_and_weights():
    def rank(buffer, group):
        x, ids, weights = BATCHES[group.rank]
        (q, scales), count, row_weights, source_ranks, handle, event, hook = buffer.low_latency_dispatch(
            x, ids, MAX, E, use_fp8=False, use_nvfp4=True, x_global_scale=np.array(448 * 6 / 8, np.float32), topk_weights=weights)
        assert len(handle) == 5 and event.event is None and hook is None
        with pytest.raises(NotSupportedError, match="use_ue8m0_for_sf is given"):
            buffer.low_latency_dispatch(x, ids, MAX, E, use_fp8=False, use_nvfp4=True, use_ue8m0_for_sf=True)
        assert q.shape == (C, H // 2, L) and q.dtype == np.uint8
        assert scales.shape == (32, 4, -(-C // 128), 4, H // 64, L) and scales.dtype == ml_dtypes.float8_e4m3fn
        expected = arrivals(group.rank)
        for e in range(L):
            rows = [a for a in expected if a[0] == e]
            assert source_ranks[e, :count[e]].tolist() == [s for _, s, _, _ in rows]
            assert row_weights[e, :count[e]].tolist() == [w for *_, w in rows]
            for i, (_, s, t, _) in enumerate(rows):
                # Row i, group g: scales[i % 32, i // 32 % 4, i // 128, g % 4, g // 4, e].
                group_scales = np.array([scales[i % 32, i // 32 % 4, i // 128, g % 4, g // 4, e] for g in range(H // 16)], np.float32)
                low, high = q[i, :, e] & 15, q[i, :, e] >> 4
                codes = np.stack([low, high], axis=1).reshape(H)
                values = np.array([0, .5, 1, 1.5, 2, 3, 4, 6, 0, -.5, -1, -1.5, -2, -3, -4, -6])[codes]
                back = values * np.repeat(group_scales, 16) / (448 * 6 / 8)
                np.testing.assert_allclose(back, BATCHES[s][0][t].astype(np.float32), atol=1.5)

    on_ranks(rank)


def test_zero_copy_reads_the_buffer_of_the_handle():
    def rank(buffer, group):
        x, ids, weights = BATCHES[group.rank]
        recv_x, _, handle, _, _ = buffer.low_latency_dispatch(x, ids, MAX, E, use_fp8=False)
        with pytest.raises(InvalidArgumentError, match="get_next_low_latency_combine_buffer"):
            buffer.low_latency_combine(recv_x, ids, weights, handle, zero_copy=True)
        rows = buffer.get_next_low_latency_combine_buffer(handle)
        assert rows.shape == (L, C, H) and rows.dtype == BF16
        rows[:] = recv_x * 2
        combined, _, _ = buffer.low_latency_combine(recv_x, ids, weights, handle, zero_copy=True)
        np.testing.assert_array_equal(combined.astype(np.float32), 2 * weighted(group.rank))

    on_ranks(rank)


def test_received_rows_outlive_their_handle():
    def rank(buffer, group):
        x, ids, _ = BATCHES[group.rank]
        recv_x = buffer.low_latency_dispatch(x, ids, MAX, E, use_fp8=False)[0]
        before = recv_x.copy()
        other = buffer.low_latency_dispatch(x + 1, ids, MAX, E, use_fp8=False)
        np.testing.assert_array_equal(recv_x, before)
        with pytest.raises(InvalidArgumentError, match="handles wait"):
            buffer.low_latency_dispatch(x, ids, MAX, E, use_fp8=False)
        del other
        group.barrier()

    on_ranks(rank)


def test_masks_are_taken_while_nobody_is_masked():
    def rank(buffer, _):
        status = np.ones(P, np.int32)
        buffer.low_latency_query_mask_buffer(status)
        assert not status.any()
        buffer.low_latency_update_mask_buffer(1, False)
        buffer.low_latency_clean_mask_buffer()
        buffer.clean_low_latency_buffer(MAX, H, E)
        with pytest.raises(NotSupportedError, match="rank 1 is to be masked"):
            buffer.low_latency_update_mask_buffer(1, True)
        with pytest.raises(InvalidArgumentError, match="must be \\(3,\\)"):
            buffer.low_latency_query_mask_buffer(status[:2])

    on_ranks(rank)


@pytest.mark.parametrize("is_fp8", [False, True])
@pytest.mark.parametrize("worst", [0, P * MAX])
def test_high_throughput(is_fp8, worst):
    def rank(buffer, group):
        x, ids, weights = BATCHES[group.rank]
        scales = np.arange(len(x) * 2, dtype=np.float32).reshape(len(x), 2)
        sent = (x.astype(ml_dtypes.float8_e4m3fn), scales) if is_fp8 else x
        per_rank, per_node, per_expert, is_in_rank, event = buffer.get_dispatch_layout(ids, E)
        assert per_node is None and event.event is None and is_in_rank.dtype == bool
        owners = [{int(i) // L for i in row if i >= 0} for row in ids]
        np.testing.assert_array_equal(is_in_rank, np.array([[r in own for r in range(P)] for own in owners], bool).reshape(-1, P))
        np.testing.assert_array_equal(per_rank, is_in_rank.sum(axis=0))
        np.testing.assert_array_equal(per_expert, [(ids == e).sum() for e in range(E)])
        recv_x, recv_ids, recv_weights, counts, handle, event = buffer.dispatch(
            sent, num_tokens_per_rank=per_rank, is_token_in_rank=is_in_rank, num_tokens_per_expert=per_expert, topk_idx=ids,
            topk_weights=weights, expert_alignment=4, num_worst_tokens=worst, config=buffer.get_dispatch_config(P))
        rows, row_scales = recv_x if is_fp8 else (recv_x, None)
        expected = tokens_to(group.rank)
        assert len(rows) == (worst or len(expected)) and rows.dtype == (ml_dtypes.float8_e4m3fn if is_fp8 else BF16)
        assert recv_ids.dtype == np.int64 and recv_weights.dtype == np.float32
        for row, (s, t) in enumerate(expected):
            np.testing.assert_array_equal(rows[row].astype(np.float32), BATCHES[s][0][t].astype(np.float32))
            assert row_scales is None or row_scales[row].tolist() == [2 * t, 2 * t + 1]
            local = [i % L if i >= 0 and i // L == group.rank else -1 for i in BATCHES[s][1][t].tolist()]
            assert recv_ids[row].tolist() == local
            assert recv_weights[row].tolist() == [w if i >= 0 else 0 for w, i in zip(BATCHES[s][2][t], local)]
        assert (recv_ids[len(expected):] == -1).all()
        aligned = [-(-sum(a[0] == e for a in arrivals(group.rank)) // 4) * 4 for e in range(L)]
        assert counts == ([] if worst else aligned)
        back = rows.astype(BF16)
        back[len(expected):] = 0
        bias = np.ones_like(x)
        combined, combined_weights, event = buffer.combine(back, handle, topk_weights=recv_weights, bias=(bias, bias), async_finish=True)
        event.current_stream_wait()
        np.testing.assert_array_equal(combined.astype(np.float32), times_ranks(group.rank) + 2)
        np.testing.assert_array_equal(combined_weights, np.where(ids >= 0, weights, 0))
        again, *nothing, event = buffer.dispatch(sent, handle=handle)
        assert nothing == [None] * 4 and event.event is None
        np.testing.assert_array_equal((again[0] if is_fp8 else again)[:len(expected)], rows[:len(expected)])
        plain, no_weights, _ = buffer.combine(back, handle)
        assert no_weights is None and plain.dtype == BF16
        np.testing.assert_array_equal(plain.astype(np.float32), times_ranks(group.rank))

    on_ranks(rank)


def test_the_handle_is_the_tuple_of_the_original():
    def rank(buffer, group):
        x, ids, _ = BATCHES[group.rank]
        for worst in (0, P * MAX):
            *_, handle, _ = buffer.dispatch(x, num_tokens_per_expert=np.zeros(E, np.int32), topk_idx=ids, num_worst_tokens=worst)
            prefix, channels, recv_channels, source, is_in_rank, heads = handle
            assert len(handle) == 6 and handle[3] is source and handle[-1] is heads and handle[4:] == (is_in_rank, heads)
            sent = {(r, t) for r in range(P) for t in tokens_from(group.rank, r)}
            assert is_in_rank.dtype == bool and {(r, t) for t, r in np.argwhere(is_in_rank).tolist()} == sent
            arrived = [tokens_from(s, group.rank) for s in range(P)]
            num = sum(map(len, arrived))
            assert source.dtype == np.int32 and source[:num].tolist() == sum(arrived, []) and (source[num:] == -1).all()
            assert len(source) == (worst or num)
            assert prefix.dtype == np.int32 and prefix[:, group.rank].tolist() == np.cumsum([len(tokens) for tokens in arrived]).tolist()
            assert (np.delete(prefix, group.rank, axis=1) == -1).all()
            assert channels.tolist() == [[len(tokens_from(group.rank, r))] for r in range(P)] and recv_channels.tolist() == [[0]] * P
            for r in range(P):
                assert heads[:, r].tolist() == [tokens_from(group.rank, r).index(t) if (r, t) in sent else -1 for t in range(len(x))]
            recv_x = np.zeros((len(source), x.shape[1]), BF16)
            buffer.combine(recv_x, handle)
            assert handle[0] is prefix  # kept
            *_, other, _ = buffer.dispatch(x, num_tokens_per_expert=np.zeros(E, np.int32), topk_idx=ids, num_worst_tokens=worst)
            buffer.combine(recv_x, other)
            with pytest.raises(InvalidArgumentError, match="the handle was combined, must be asked between dispatch and combine"):
                tuple(other)

    on_ranks(rank)


def test_windows_grow_with_the_largest_rank():
    def rank(group):
        with_bound, without = deep_ep.Buffer(group, max_tokens_per_rank=4), deep_ep.Buffer(group)
        for num in (1, 150, 3):
            x = np.full((num if group.rank else 1, 16), group.rank, BF16)
            ids = np.zeros((len(x), 1), np.int64)
            recv_x, _, _, counts, _, _ = without.dispatch(x, num_tokens_per_expert=np.zeros(2, np.int32), topk_idx=ids)
            expected = 1 + num if group.rank == 0 else 0
            assert len(recv_x) == expected and sum(counts) == expected
        with pytest.raises(InvalidArgumentError, match="4"):
            with_bound.dispatch(np.zeros((5, 16), BF16), num_tokens_per_expert=np.zeros(2, np.int32), topk_idx=np.zeros((5, 1), np.int64))
        return expected

    run_local(2, rank)


def test_tensors_of_the_library_come_back_as_such():
    def rank(buffer, group):
        x, ids, weights = (switchyard.Tensor.wrap(array) for array in BATCHES[group.rank])
        recv_x, count, handle, _, _ = buffer.low_latency_dispatch(x, ids, MAX, E, use_fp8=False)
        combined, _, _ = buffer.low_latency_combine(recv_x, ids, weights, handle)
        for tensor in (recv_x, count, handle[0], combined):
            assert isinstance(tensor, switchyard.Tensor)
        np.testing.assert_array_equal(combined.numpy().astype(np.float32), weighted(group.rank))

    on_ranks(rank)


@pytest.mark.parametrize("call, error, phrase", [
    (lambda b, x, i, w: b.low_latency_dispatch(x, i, MAX, E, use_ue8m0=True), InvalidArgumentError, "round_scale"),
    (lambda b, x, i, w: b.low_latency_dispatch(x, i, MAX, E, async_finish=True, return_recv_hook=True), InvalidArgumentError, "both set"),
    (lambda b, x, i, w: b.low_latency_combine(x, i, w, None), InvalidArgumentError, "nothing was dispatched"),
    (lambda b, x, i, w: b.low_latency_combine(x, i, w, None, combine_wait_recv_cost_stats=w), NotSupportedError, "not measured"),
    (lambda b, x, i, w: b.get_next_low_latency_combine_buffer(None), InvalidArgumentError, "nothing was dispatched"),
    (lambda b, x, i, w: b.dispatch(x), InvalidArgumentError, "num_tokens_per_expert is absent"),
    (lambda b, x, i, w: b.dispatch(x, handle=1, topk_idx=i), InvalidArgumentError, "pass neither"),
    (lambda b, x, i, w: b.internode_dispatch(x), NotSupportedError, "dispatch serves"),
    (lambda b, x, i, w: b.internode_combine(x), NotSupportedError, "combine serves"),
    (lambda b, x, i, w: b.get_local_buffer_tensor(None), NotSupportedError, "internal"),
    (lambda b, x, i, w: b.set_num_sms(3), InvalidArgumentError, "even"),
    (lambda b, x, i, w: b.set_num_sms("20"), InvalidArgumentError, "is '20', must be int"),
    (lambda b, x, i, w: b.set_num_sms(-2), InvalidArgumentError, "must be at least 0"),
    (lambda b, x, i, w: b.low_latency_dispatch(None, i, MAX, E), ArgumentTypeError, "low_latency_dispatch: x is None, must be given"),
    (lambda b, x, i, w: b.dispatch(x.tolist(), topk_idx=i, num_tokens_per_expert=w), ArgumentTypeError, "dispatch: x is a list, must be an array"),
    (lambda b, x, i, w: b.get_dispatch_layout(i, None), ArgumentTypeError, "num_experts is None, must be int"),
])
def test_errors(call, error, phrase):
    def rank(buffer, group):
        with pytest.raises(error, match=phrase):
            call(buffer, *BATCHES[group.rank])

    on_ranks(rank)


def test_handles_of_other_calls():
    def rank(buffer, group):
        x, ids, weights = BATCHES[group.rank]
        rows, _, handle, _, _ = buffer.low_latency_dispatch(x, ids, MAX, E, use_fp8=False)
        for wrong in (None, tuple(handle)):
            for call in (lambda: buffer.low_latency_combine(rows, ids, weights, wrong), lambda: buffer.get_next_low_latency_combine_buffer(wrong)):
                with pytest.raises(switchyard.ArgumentTypeError, match="(buffer|combine): handle is a .*, must be what dispatch returned"):
                    call()
        buffer.low_latency_combine(rows, ids, weights, handle)

    on_ranks(rank)


def test_a_destroyed_buffer():
    def rank(group):
        buffer = deep_ep.Buffer(group)
        x, ids, _ = BATCHES[0]
        buffer.low_latency_dispatch(x, ids, MAX, E)
        buffer.destroy()
        for call in (lambda: buffer.low_latency_dispatch(x, ids, MAX, E), lambda: buffer.get_dispatch_layout(ids, E),
                     lambda: buffer.dispatch(x, topk_idx=ids, num_tokens_per_expert=np.zeros(E, np.int32))):
            with pytest.raises(InvalidArgumentError, match="was destroyed"):
                call()

    run_local(1, rank)


def test_a_forked_child_leaves_the_windows_alone(run_program, tmp_path):
    code, out, errors = run_program("""
        import os
        import sys
        import ml_dtypes
        import numpy as np
        import switchyard
        from switchyard.compat import deep_ep

        buffer = deep_ep.Buffer(switchyard.Group(0, 1, sys.argv[1]))
        x, ids, weights = np.ones((1, 128), ml_dtypes.bfloat16), np.zeros((1, 1), np.int64), np.ones((1, 1), np.float32)
        rows, _, handle, _, hook = buffer.low_latency_dispatch(x, ids, 1, 1, use_fp8=False, return_recv_hook=True)
        child = os.fork()
        if child == 0:
            refused = 0
            for call in (hook, lambda: buffer.low_latency_combine(rows, ids, weights, handle)):
                try:
                    call()
                except switchyard.InvalidArgumentError as error:
                    refused += "forked" in str(error)
            del buffer, rows, handle, hook
            sys.exit(refused)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 2
        hook()
        assert (buffer.low_latency_combine(rows, ids, weights, handle)[0] == x).all()
        print("right")
    """, tmp_path / "store")
    assert (code, out) == (0, "right\n"), errors


def test_processes(start_program, tmp_path):
    source = """
        import sys
        import ml_dtypes
        import numpy as np
        import switchyard
        import switchyard.compat
        switchyard.compat.install()
        import deep_ep

        rank = int(sys.argv[1])
        buffer = deep_ep.Buffer(switchyard.Group(rank, 2, sys.argv[2]))
        x = np.full((3, 128), rank + 1, ml_dtypes.bfloat16)
        ids, weights = np.array([[0, 3]] * 3), np.full((3, 2), 0.5, np.float32)
        rows, count, handle, _, hook = buffer.low_latency_dispatch(x, ids, 3, 4, use_fp8=False, return_recv_hook=True)
        hook()
        out, _, _ = buffer.low_latency_combine(rows, ids, weights, handle)
        assert (out == x).all() and count.sum() == 6
        rows, _, _, counts, handle, _ = buffer.dispatch(x, topk_idx=ids, num_tokens_per_expert=np.zeros(4, np.int32))
        out, _, _ = buffer.combine(rows, handle)
        assert (out == 2 * x).all() and sum(counts) == 6
        print("right")
    """
    programs = [start_program(source, rank, tmp_path / "store") for rank in range(2)]
    for program in programs:
        out, errors = program.communicate(timeout=60)
        assert out == "right\n", errors


def test_logfmt_is_refused():
    def rank(buffer, group):
        x, ids, weights = BATCHES[group.rank]
        recv_x, _, handle, _, _ = buffer.low_latency_dispatch(x, ids, MAX, E, use_fp8=False)
        with pytest.raises(NotSupportedError, match="use_logfmt"):
            buffer.low_latency_combine(recv_x, ids, weights, handle, use_logfmt=True)

    on_ranks(rank)

# SPDX-License-Identifier: Apache-2.0
"""Buffer.dispatch of switchyard.compat.deep_ep without ids, and the numbers that ranks gather for it."""
import ml_dtypes
import numpy as np
import pytest
from test_compat_deep_ep import BATCHES, BF16, E, H, L, MAX, P, arrivals, on_ranks, times_ranks, tokens_to

from switchyard import InvalidArgumentError, run_local
from switchyard.compat._gather import Gather


@pytest.mark.parametrize("is_fp8", [False, True])
def test_high_throughput_without_ids(is_fp8):
    def rank(buffer, group):
        x, ids, _ = BATCHES[group.rank]
        sent = (x.astype(ml_dtypes.float8_e4m3fn), np.ones((len(x), 2), np.float32)) if is_fp8 else x
        per_rank, _, per_expert, is_in_rank, _ = buffer.get_dispatch_layout(ids, E)
        layout = {"num_tokens_per_rank": per_rank, "is_token_in_rank": is_in_rank, "num_tokens_per_expert": per_expert}
        recv_x, recv_ids, recv_weights, counts, handle, event = buffer.dispatch(sent, **layout, expert_alignment=4, async_finish=True)
        event.current_stream_wait()
        rows = recv_x[0] if is_fp8 else recv_x
        assert recv_ids is None and recv_weights is None
        assert counts == [-(-sum(a[0] == e for a in arrivals(group.rank)) // 4) * 4 for e in range(L)]
        expected = np.array([BATCHES[s][0][t] for s, t in tokens_to(group.rank)]).reshape(-1, H)
        np.testing.assert_array_equal(rows.astype(BF16), expected)
        np.testing.assert_array_equal(handle[4], is_in_rank)
        assert handle[3].tolist() == [t for _, t in tokens_to(group.rank)]
        combined, weights, _ = buffer.combine(rows.astype(BF16), handle)
        assert weights is None
        np.testing.assert_array_equal(combined.astype(np.float32), times_ranks(group.rank))
        again = buffer.dispatch(sent, handle=handle)[0]
        np.testing.assert_array_equal((again[0] if is_fp8 else again).astype(BF16), expected)
        for one in ({"topk_weights": BATCHES[group.rank][2]}, {"num_worst_tokens": P * MAX}):
            with pytest.raises(InvalidArgumentError, match="without topk_idx"):
                buffer.dispatch(x, **layout, **one)

    on_ranks(rank)


def test_counts_without_ids_are_those_of_the_callers():
    def rank(buffer, group):
        x = np.full((1, 16), group.rank, BF16)
        counts = np.arange(P + 2) * 10 + group.rank  # of 5 experts, which 3 ranks hold as 2, 2 and 1
        recv_x, *_, lists, _, _ = buffer.dispatch(x, is_token_in_rank=np.arange(P).reshape(1, P) == 0, num_tokens_per_expert=counts)
        total = [P * 10 * e + sum(range(P)) for e in range(P + 2)]
        assert lists == [total[:2], total[2:4], total[4:]][group.rank]
        assert recv_x[:, 0].tolist() == (list(range(P)) if group.rank == 0 else [])

    on_ranks(rank)


def test_numbers_of_all_ranks():
    def rank(group):
        gather = Gather(group)
        numbers = np.array([[2**31 - 1, 0, -5], [2**24 + 1, -2**31, 7], [0x7f800001, -1, 0]])  # some are not numbers as f32
        np.testing.assert_array_equal(gather(numbers[group.rank]), numbers)
        assert gather.largest(group.rank * 2**25 + 1) == 2**26 + 1
        gather.close()

    run_local(P, rank)

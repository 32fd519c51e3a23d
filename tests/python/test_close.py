# SPDX-License-Identifier: Apache-2.0
"""close() and `with` end objects at once, whoever holds shares of them; results stay."""
import gc
import threading
import time

import numpy as np
import pytest

import switchyard
from switchyard import Exchange, ModularKernel, make_prepare_finalize, run_local
from test_layer import H, K, SIZES, batch, exact_experts

CLOSED = switchyard.InvalidArgumentError


def exchange_of(group, **options):
    return Exchange(group, num_experts=4, num_topk=2, hidden=8, max_tokens_per_rank=3, scheme="f32", combine_scheme="f32", **options)


def test_close_ends_the_exchange_while_others_hold_results(run_program, tmp_path):
    """Ranks are processes: the windows are unmapped at close(), the rows stay."""
    source = f"""
        import sys
        import numpy as np
        from switchyard import Exchange, Group

        def windows():
            return sum("memfd:" in line for line in open("/proc/self/maps"))

        group = Group(int(sys.argv[1]), 2, {str(tmp_path / "store")!r})
        before = windows()
        exchange = Exchange(group, num_experts=2, num_topk=1, hidden=8, max_tokens_per_rank=2, scheme="f32")
        received = exchange.dispatch(np.full((2, 8), 3, np.float32), np.array([[0], [1]]))
        rows = received.rows.numpy()
        assert windows() > before
        exchange.close()
        assert windows() == before and (rows == 3).all() and received.host.num_rows == 2
        with Exchange(group, num_experts=2, num_topk=1, hidden=8, max_tokens_per_rank=2, scheme="f32") as second:
            again = second.dispatch(np.full((2, 8), 4, np.float32), np.array([[0], [1]]))
        assert windows() == before and (again.rows.numpy() == 4).all() and (rows == 3).all()
        print("ok")
    """
    results = [None, None]

    def start(rank):
        results[rank] = run_program(source, rank)

    threads = [threading.Thread(target=start, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [code for code, _, _ in results] == [0, 0], results
    assert [out for _, out, _ in results] == ["ok\n", "ok\n"]


def test_group_is_left_while_others_hold_results(run_program, start_program, tmp_path):
    """Rank 0 hears at once that rank 1 has left, not after the timeout."""
    source = f"""
        import sys, time
        import numpy as np
        import switchyard
        from switchyard import Exchange, Group

        group = Group(int(sys.argv[1]), 2, {str(tmp_path / "store")!r}, timeout_ms=20000)
        with Exchange(group, num_experts=2, num_topk=1, hidden=8, max_tokens_per_rank=2, scheme="f32") as exchange:
            received = exchange.dispatch(np.full((2, 8), 3, np.float32), np.array([[0], [1]]))
        if group.rank == 1:
            group.close()
            time.sleep(60)
        else:
            start = time.monotonic()
            try:
                group.barrier()
            except switchyard.PeerLostError as error:
                print("left" in str(error), time.monotonic() - start < 5)
        assert (received.rows.numpy() == 3).all()
    """
    start_program(source, 1)
    assert run_program(source, 0) == (0, "True True\n", "")


def test_phases_left_open_are_refused_afterwards():
    def rank(group):
        exchange = exchange_of(group)
        tokens, ids = np.ones((1, 8), np.float32), np.array([[0, 3]])
        handle = exchange.dispatch_send(tokens, ids)
        group.barrier()
        exchange.close()
        with pytest.raises(CLOSED, match="Exchange: it was closed"):
            exchange.dispatch_receive(handle)
        prepare = make_prepare_finalize("low_latency", group, **SIZES)
        hidden, ids, weights = batch(group.rank)
        pending = prepare.prepare_async(hidden, ids, weights)
        group.barrier()
        prepare.close()
        prepare.close()
        with pytest.raises(CLOSED, match="dispatch_receive: the exchange was closed, must be open"):
            pending.wait()
        with pytest.raises(CLOSED, match="PrepareFinalize: it was closed"):
            prepare.prepare(hidden, ids, weights)
        del handle, pending
        gc.collect()
        with exchange_of(group) as again:
            return again.dispatch(tokens, np.array([[0, 3]])).host.num_rows

    assert run_local(2, rank) == [2, 2]


def test_kernels_close_their_exchange():
    def rank(group):
        with ModularKernel(make_prepare_finalize("elastic_decode", group, **SIZES), exact_experts(group.rank)) as kernel:
            output = kernel.apply(*batch(group.rank))
        with pytest.raises(CLOSED, match="ModularKernel: it was closed"):
            kernel.apply(*batch(group.rank))
        return output.numpy().shape

    assert run_local(2, rank) == [batch(number)[0].shape for number in range(2)]


def test_an_exception_closes_too():
    def rank(group):
        with pytest.raises(ZeroDivisionError):
            with exchange_of(group) as exchange:
                exchange.dispatch(np.ones((1, 8), np.float32), np.array([[0, 3]]))
                raise ZeroDivisionError
        assert exchange.is_closed
        with exchange_of(group) as again:
            return again.dispatch(np.ones((1, 8), np.float32), np.array([[0, 3]])).host.num_rows

    assert run_local(2, rank) == [2, 2]


def test_a_call_that_runs_is_not_cut_off():
    refused = []

    def rank(group):
        tokens, ids = np.ones((1, 8), np.float32), np.array([[0, 3]])
        with exchange_of(group) as exchange:
            if group.rank == 1:
                time.sleep(0.3)
            else:
                def intrude():
                    time.sleep(0.1)
                    try:
                        exchange.close()
                    except CLOSED as error:
                        refused.append(str(error))

                threading.Thread(target=intrude).start()
            received = exchange.dispatch(tokens, ids)
            exchange.combine(received, received.rows)
            return received.host.num_rows

    assert run_local(2, rank) == [2, 2]
    assert len(refused) == 1 and "another thread is in a call" in refused[0]


def test_compat_objects_close():
    from switchyard.compat.deep_ep import Buffer  # pylint: disable=import-outside-toplevel
    from switchyard.compat.flashinfer import MoeAlltoAll  # pylint: disable=import-outside-toplevel

    def rank(group):
        x, ids = np.ones((2, H), np.float32).astype(batch(0)[0].dtype), np.array([[0, 1]] * 2, np.int64)
        buffer = Buffer(group, explicitly_destroy=True)
        recv_x, count, handle, _, _ = buffer.low_latency_dispatch(x, ids, 2, 4, use_fp8=False)
        buffer.destroy()
        assert (recv_x[0, :count[0]] == 1).all()
        with pytest.raises(CLOSED):
            buffer.low_latency_combine(recv_x, ids, np.ones((2, K), np.float32), handle)
        moe = MoeAlltoAll(group, max_num_tokens=2, top_k=2, num_experts=4)
        received = moe.dispatch(ids.astype(np.int32), [x], 2)
        moe.close()
        assert received[0].shape[0] == 2
        return True

    assert run_local(2, rank) == [True, True]

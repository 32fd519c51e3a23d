# SPDX-License-Identifier: Apache-2.0
"""Signals, forks and the end of the interpreter, each in a program of its own."""
import os
import signal
import time

import pytest

WAITS = {
    "barrier of processes": """
        import sys, switchyard
        group = switchyard.Group(int(sys.argv[1]), 2, sys.argv[2], timeout_ms=20000)
        print("ready", flush=True)
        if group.rank == 1:
            import time
            time.sleep(30)
        group.barrier()
    """,
    "rank that does not come": """
        import sys, switchyard
        print("ready", flush=True)
        switchyard.Group(int(sys.argv[1]), 3, sys.argv[2], timeout_ms=20000)
    """,
    "threads": """
        import sys, time, switchyard
        def rank(group):
            if group.rank == 1:
                print("ready", flush=True)
                for _ in range(200):
                    time.sleep(0.05)
                    if group.error():
                        return
            group.barrier()
        if sys.argv[1] == "0":
            switchyard.run_local(2, rank, timeout_ms=20000)
    """,
    "overlapped": """
        import sys, time, numpy as np, ml_dtypes, switchyard
        group = switchyard.Group(int(sys.argv[1]), 2, sys.argv[2], timeout_ms=20000)
        sizes = {"num_experts": 4, "num_topk": 2, "hidden": 128, "max_tokens_per_rank": 4}
        weights = [np.ones(shape, ml_dtypes.bfloat16) for shape in ((2, 16, 128), (2, 16, 128), (2, 128, 16))]
        kernel = switchyard.ModularKernel(switchyard.make_prepare_finalize("elastic_prefill", group, **sizes),
                                          switchyard.Experts(*weights))
        print("ready", flush=True)
        if group.rank == 1:
            time.sleep(30)
        kernel.apply_overlapped(np.ones((4, 128), ml_dtypes.bfloat16), np.tile(np.array([0, 3]), (4, 1)), np.ones((4, 2), np.float32))
    """,
}


@pytest.mark.parametrize("name", WAITS)
def test_ctrl_c_ends_a_wait(start_program, tmp_path, name):
    ranks = [start_program(WAITS[name], rank, tmp_path / "store") for rank in range(1 if name == "threads" else 2)]
    for process in ranks:
        assert process.stdout.readline() == "ready\n"
    time.sleep(0.3)
    begin = time.monotonic()
    ranks[0].send_signal(signal.SIGINT)
    _, errors = ranks[0].communicate(timeout=30)
    assert "KeyboardInterrupt" in errors and time.monotonic() - begin < 5, errors
    assert ranks[0].returncode == -signal.SIGINT


def test_a_handler_that_goes_on(start_program, tmp_path):
    source = """
        import signal, sys, time, switchyard
        seen = []
        signal.signal(signal.SIGUSR1, lambda *_: seen.append(1))
        group = switchyard.Group(int(sys.argv[1]), 2, sys.argv[2], timeout_ms=20000)
        print("ready", flush=True)
        if group.rank == 1:
            time.sleep(1)
        group.barrier()
        print(len(seen))
    """
    ranks = [start_program(source, rank, tmp_path / "store") for rank in range(2)]
    assert [process.stdout.readline() for process in ranks] == ["ready\n"] * 2
    time.sleep(0.3)
    ranks[0].send_signal(signal.SIGUSR1)
    assert ranks[0].communicate(timeout=30) == ("1\n", "") and ranks[1].communicate(timeout=30) == ("0\n", "")


def test_a_handler_that_raises(start_program, tmp_path):
    """The usual way to bound a call: the wait ends with what the handler raised."""
    source = """
        import signal, sys, time, switchyard
        class Late(Exception):
            pass
        def handler(*_):
            raise Late("too late")
        signal.signal(signal.SIGALRM, handler)
        group = switchyard.Group(int(sys.argv[1]), 2, sys.argv[2], timeout_ms=20000)
        print("ready", flush=True)
        if group.rank == 1:
            time.sleep(30)
        signal.alarm(1)
        try:
            group.barrier()
        except Late as error:
            print(error, error.__cause__)
    """
    ranks = [start_program(source, rank, tmp_path / "store") for rank in range(2)]
    assert [process.stdout.readline() for process in ranks] == ["ready\n"] * 2
    assert ranks[0].communicate(timeout=30) == ("too late None\n", "")


def test_ctrl_c_waits_for_the_ranks_of_run_local(run_program):
    code, output, errors = run_program("""
        import os, signal, threading, time, switchyard
        ended = []
        def rank(group):
            if group.rank == 0:
                time.sleep(2)
                ended.append(group.rank)
            else:
                group.barrier()
        threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
        try:
            switchyard.run_local(2, rank)
        except KeyboardInterrupt:
            print(ended)
    """)
    assert (code, output, errors) == (0, "[0]\n", "")


def test_ctrl_c_in_a_callback(run_program):
    code, _, errors = run_program("""
        import signal, switchyard
        def get(key, timeout_ms):
            signal.raise_signal(signal.SIGINT)
        switchyard.Group(0, 2, (lambda key, value: None, get), timeout_ms=5000)
    """)
    assert code == -signal.SIGINT and "KeyboardInterrupt" in errors


FORK = """
    import os, sys, threading, numpy as np, switchyard
    def rank(group):
        exchange = switchyard.Exchange(group, num_experts=2, num_topk=1, hidden=8, max_tokens_per_rank=4, scheme="f32", combine_scheme="f32")
        tokens, ids = np.ones((2, 8), np.float32), np.array([[0], [1]], np.int32)
        received = exchange.dispatch(tokens, ids)
        child = os.fork()
        if child == 0:
            for use in (lambda: exchange.dispatch(tokens, ids), group.barrier, lambda: exchange.combine(received, tokens)):
                try:
                    use()
                    os._exit(1)
                except switchyard.InvalidArgumentError as error:
                    assert "forked" in str(error)
            exchange.close()
            group.close()
            del exchange, received
            own = switchyard.Group.from_env()  # a new one works
            own.barrier()
            if sys.argv[3] == "exit":
                sys.exit(0)
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        group.barrier()  # the child took nothing along
        return exchange.combine(received, received.rows).numpy().astype(np.float32).sum()
    group = switchyard.Group(int(sys.argv[1]), 2, sys.argv[2], timeout_ms=20000)
    print(rank(group))
"""


@pytest.mark.parametrize("how", ["exit", "_exit"])
def test_fork_leaves_the_parent_alone(start_program, tmp_path, how):
    ranks = [start_program(FORK, rank, tmp_path / "store", how) for rank in range(2)]
    outputs = [process.communicate(timeout=60) for process in ranks]
    assert [process.returncode for process in ranks] == [0, 0], outputs
    assert [output for output, _ in outputs] == ["16.0\n"] * 2


@pytest.mark.parametrize("ending", ["pass", "sys.exit(0)", "raise SystemExit(0)"])
def test_exit_with_work_in_flight(run_program, ending):
    """Daemon threads wait, and exchange in a loop, while the interpreter ends."""
    code, out, errors = run_program(f"""
        import sys, threading, time, numpy as np, switchyard
        from switchyard._native import local_groups
        def exchange(group):
            with switchyard.Exchange(group, num_experts=2, num_topk=1, hidden=8, max_tokens_per_rank=4, scheme="f32", combine_scheme="f32") as exchange:
                tokens, ids = np.ones((2, 8), np.float32), np.array([[0], [1]], np.int32)
                while True:
                    received = exchange.dispatch(tokens, ids)
                    exchange.combine(received, received.rows)
        waiting = local_groups(2, 200)[0]
        threads = [threading.Thread(target=exchange, args=(group,), daemon=True) for group in local_groups(2, 60000)]
        threads += [threading.Thread(target=waiting.barrier, daemon=True)]
        for thread in threads:
            thread.start()
        time.sleep(0.3)
        kept = switchyard.Tensor([4], "f32").numpy()
        print("end", flush=True)
        {ending}
    """)
    assert (code, out) == (0, "end\n"), errors


def test_exit_with_objects_alive(run_program):
    code, _, errors = run_program("""
        import numpy as np, switchyard
        group = switchyard.Group.from_env()
        exchange = switchyard.Exchange(group, num_experts=2, num_topk=1, hidden=8, max_tokens_per_rank=4, scheme="f32", combine_scheme="f32")
        handle = exchange.dispatch_send(np.ones((2, 8), np.float32), np.array([[0], [1]], np.int32))
        class Late:
            def __del__(self):
                group.barrier()
        late = Late()
        cycle = [switchyard.Tensor([2], "bf16").numpy()]
        cycle.append(cycle)
    """)
    assert (code, errors) == (0, "")


def test_a_killed_rank_is_an_error_elsewhere(start_program, tmp_path):
    source = WAITS["barrier of processes"]
    ranks = [start_program(source, rank, tmp_path / "store") for rank in range(2)]
    assert [process.stdout.readline() for process in ranks] == ["ready\n"] * 2
    os.kill(ranks[1].pid, signal.SIGKILL)
    _, errors = ranks[0].communicate(timeout=30)
    assert "PeerLostError" in errors and "rank 1 was lost" in errors and ranks[0].returncode == 1


def test_nothing_of_ours_is_stdin_stdout_or_stderr(start_program, tmp_path):
    """A program that has closed them: what it prints must not go into a socket or a window."""
    source = """
        import os, sys, switchyard
        for number in range(3):
            os.close(number)
        group = switchyard.Group(int(sys.argv[1]), 2, sys.argv[2], timeout_ms=20000)
        exchange = switchyard.Exchange(group, num_experts=2, num_topk=1, hidden=8, max_tokens_per_rank=2)
        num_open = sum(os.path.exists(f"/proc/self/fd/{number}") for number in range(3))
        group.barrier()
        os._exit(10 + num_open)
    """
    ranks = [start_program(source, rank, tmp_path / "store") for rank in range(2)]
    assert [process.wait(timeout=30) for process in ranks] == [10, 10]

# SPDX-License-Identifier: Apache-2.0
"""switchyard.compat.deep_ep between ranks of two hosts, which mpirun starts, against plain numpy."""
import shutil
import textwrap

import pytest

# Each of 4 ranks, 2 to a host, is a process; every expert returns its input.
RANK = """
    import os

    os.environ["SWITCHYARD_HOST_ID"] = f"host {int(os.environ['OMPI_COMM_WORLD_RANK']) // 2}"
    import ml_dtypes
    import numpy as np

    import switchyard
    from switchyard.compat import deep_ep

    E, K, H, MAX = 8, 2, 256, 5

    def is_right(combined, expected):
        return bool((np.asarray(combined).astype(np.float32) == expected).all())

    def main():
        group = switchyard.Group.from_env(timeout_ms=20000)
        random = np.random.default_rng(group.rank)
        x = random.integers(-8, 8, (3, H)).astype(ml_dtypes.bfloat16)  # small integers, so that sums are exact
        ids = np.array([random.permutation(E)[:K] for _ in x], np.int64)
        weights = (random.integers(1, 5, (len(x), K)) / 4).astype(np.float32)
        buffer = deep_ep.Buffer(group, low_latency_mode=True)
        recv_x, count, handle, _, _ = buffer.low_latency_dispatch(x, ids, MAX, E, use_fp8=False)
        combined, _, _ = buffer.low_latency_combine(recv_x, ids, weights, handle)
        low_latency = is_right(combined, x.astype(np.float32) * weights.sum(axis=1, keepdims=True))
        per_rank, _, per_expert, is_in_rank, _ = buffer.get_dispatch_layout(ids, E)
        recv_x, *_, handle, _ = buffer.dispatch(x, num_tokens_per_rank=per_rank, is_token_in_rank=is_in_rank,
                                                num_tokens_per_expert=per_expert, topk_idx=ids, topk_weights=weights)
        combined, _, _ = buffer.combine(recv_x, handle)
        high_throughput = is_right(combined, x.astype(np.float32) * np.asarray(is_in_rank).sum(axis=1, keepdims=True))
        # One write: lines of ranks that share mpirun's output would mix otherwise.
        os.write(1, f"{group.engine} {group.host_size} {len(count)} {low_latency} {high_throughput}\\n".encode())
        buffer.destroy()
        group.close()

    try:
        main()
    except switchyard.NotAvailableError as error:
        if "MPI module is missing" not in str(error) or "libswitchyard_mpi.so" in os.listdir(os.path.dirname(switchyard.__file__)):
            raise
        print("no MPI:", error)
"""


def test_two_hosts_of_two(start_program):
    if shutil.which("mpirun") is None:
        pytest.skip("mpirun is not installed")
    launcher = start_program("""
        import os, sys
        command = ["mpirun", "--allow-run-as-root", "--oversubscribe", "--mca", "btl", "tcp,self", "--mca", "btl_tcp_if_include", "lo",
                   "-n", "4", sys.executable, "-c", sys.argv[1]]
        os.execvp(command[0], command)
    """, textwrap.dedent(RANK))
    out, errors = launcher.communicate(timeout=100)
    assert launcher.returncode == 0, errors
    if "no MPI" in out:
        pytest.skip(out.splitlines()[0])
    assert out.splitlines() == ["mpi 2 2 True True"] * 4, errors

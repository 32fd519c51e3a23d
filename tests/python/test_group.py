# SPDX-License-Identifier: Apache-2.0
"""Groups: threads, processes over every kind of store, errors of ranks."""
import importlib.util
import os
import pathlib
import shutil
import threading
import time

import pytest

import switchyard
from switchyard import Group, run_local

PROCESS = """
    import sys
    import switchyard
    rank, size, store = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    with switchyard.Group(rank, size, store, timeout_ms=20000, secret="test") as group:
        group.barrier()
        part = group.split(rank % 2)
        print(group.engine, group.rank, group.size, part.rank, part.size, group.host_size)
        part.barrier()
"""


def test_threads():
    def rank(group, factor):
        group.barrier()
        assert group.error() is None and group.engine == "local" and group.timeout_ms == 5000
        return group.rank * factor, group.size, repr(group)

    assert run_local(3, rank, 10, timeout_ms=5000) == [(r * 10, 3, f"Group(rank={r}, size=3, engine='local')") for r in range(3)]


@pytest.mark.parametrize("kind", ["file", "unix"])
def test_processes(start_program, tmp_path, kind):
    store = str(tmp_path / "store") if kind == "file" else f"unix:@switchyard-test-{time.time_ns()}"
    ranks = [start_program(PROCESS, rank, 3, store) for rank in range(3)]
    outputs = [process.communicate(timeout=60) for process in ranks]
    assert [process.returncode for process in ranks] == [0, 0, 0], outputs
    assert [out.split() for out, _ in outputs] == [["shm", "0", "3", "0", "2", "3"], ["shm", "1", "3", "0", "1", "3"],
                                                   ["shm", "2", "3", "1", "2", "3"]]


@pytest.mark.parametrize("kind", [pathlib.Path, str, os.fsencode])
def test_paths_of_the_system(tmp_path, kind):
    folder = os.fsdecode(os.fsencode(tmp_path) + b"/\xff")  # not UTF-8
    os.mkdir(folder)
    made = []
    ranks = [threading.Thread(target=lambda rank=rank: made.append(Group(rank, 2, kind(f"{folder}/store"), timeout_ms=20000)))
             for rank in range(2)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join()
    assert sorted(group.rank for group in made) == [0, 1]
    with pytest.raises(switchyard.Error, match="No such file or directory"):
        Group(0, 2, kind(f"{folder}/absent/store"), timeout_ms=1000)


@pytest.mark.parametrize("as_pair", [True, False])
def test_store_of_functions(as_pair):
    values, keys = {}, []

    class Store:
        """A dictionary behind a lock."""

        def set(self, key, value):
            keys.append(key)
            values[key] = value

        def get(self, key, timeout_ms):
            assert 0 <= timeout_ms <= 50
            return values.get(key)

    store = Store()
    with Group(0, 1, (store.set, store.get) if as_pair else store) as group:
        group.barrier()
        assert group.size == 1


def test_environment():
    with Group.from_env() as group:
        assert (group.rank, group.size, group.host_rank) == (0, 1, 0)


def test_a_store_that_raises():
    def fail(*_):
        raise KeyError("no store today")

    with pytest.raises(switchyard.SystemCallError, match="no store today") as raised:
        Group(0, 2, (fail, fail), timeout_ms=500)
    assert isinstance(raised.value.__cause__, KeyError)


@pytest.mark.parametrize("arguments, phrase", [
    ((2, 2, "/tmp/x"), "rank is 2, but size is 2"),
    ((0, 2, "nowhere"), "must be host:port"),
    ((0, 2, 7), "must be an address"),
    ((0, 2, (print,)), "1 functions"),
])
def test_wrong_arguments(arguments, phrase):
    with pytest.raises(switchyard.InvalidArgumentError, match=phrase):
        Group(*arguments)


def test_ranks_that_do_not_come(tmp_path):
    with pytest.raises(switchyard.TimeoutError, match="no sign of rank 1"):
        Group(0, 2, str(tmp_path / "store"), timeout_ms=200)


def test_the_first_error_of_a_rank_is_raised():
    seen = []

    def rank(group):
        if group.rank == 1:
            raise ZeroDivisionError("mine")
        try:
            group.barrier()
        except switchyard.AbortedError as error:
            seen.append((str(error), group.error().code))
            raise

    with pytest.raises(ZeroDivisionError, match="mine"):
        run_local(3, rank)
    assert len(seen) == 2 and all("ZeroDivisionError: mine" in text and code == "aborted" for text, code in seen)


def test_a_rank_that_is_late_is_a_timeout():
    def rank(group):
        if group.rank == 0:
            group.barrier()
        else:
            time.sleep(2.5)

    with pytest.raises(switchyard.TimeoutError, match="no answer from rank 1") as raised:
        run_local(2, rank, timeout_ms=1000)
    assert isinstance(raised.value, TimeoutError) and raised.value.code == "timeout"


def test_waits_let_other_threads_run():
    ticks = []

    def rank(group):
        if group.rank == 0:
            group.barrier()
            return len(ticks)
        for _ in range(20):
            ticks.append(0)
            time.sleep(0.001)
        group.barrier()
        return 20

    assert run_local(2, rank) == [20, 20]


def test_abort_from_another_thread():
    def rank(group):
        if group.rank == 0:
            threading.Timer(0.1, group.abort, ["enough"]).start()
        group.barrier() if group.rank == 0 else time.sleep(0.3)

    with pytest.raises(switchyard.AbortedError, match="enough"):
        run_local(2, rank)


def test_closed_groups():
    with Group.from_env() as group:
        assert not group.is_closed
    assert group.is_closed and repr(group) == "Group(closed)"
    group.close()
    for use in (lambda: group.rank, group.barrier, lambda: group.split(0), lambda: group.abort("x"), group.error):
        with pytest.raises(switchyard.InvalidArgumentError, match="it was closed"):
            use()


def test_close_during_a_wait():
    def rank(group):
        if group.rank == 0:
            threading.Timer(0.1, group.close).start()
            group.barrier()
            return group.is_closed
        time.sleep(0.3)
        return group.barrier()

    assert run_local(2, rank) == [True, None]


def test_split_without_a_part():
    assert run_local(2, lambda group: group.split(-1)) == [None, None]


def test_torch_process_groups():
    torch = pytest.importorskip("torch", reason="torch is not installed")
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    with Group.from_torch() as group:
        assert group.size == 1


def test_mpi_communicators(run_program):
    if importlib.util.find_spec("mpi4py") is None or shutil.which("mpirun") is None:
        pytest.skip("mpi4py or mpirun is not installed")
    code, out, errors = run_program("""
        import subprocess, sys
        source = ("from mpi4py import MPI; import os, switchyard; group = switchyard.Group.from_mpi(MPI.COMM_WORLD); "
                  "os.write(1, b'%d %d\\\\n' % (group.rank, group.size))")
        sys.exit(subprocess.run(["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", "2", sys.executable, "-c", source]).returncode)
    """)
    assert code == 0 and sorted(out.split()) == ["0", "1", "2", "2"], errors


class OneOfTwo:
    """As a communicator of mpi4py with two ranks, which are threads."""

    def __init__(self, rank, shared):
        self.rank, self.shared = rank, shared

    def Get_rank(self):
        return self.rank

    def Get_size(self):
        return 2

    def Barrier(self):
        self.shared["barrier"].wait(20)

    def allgather(self, value):
        self.shared[self.rank] = value
        self.Barrier()
        values = [self.shared[0], self.shared[1]]
        self.Barrier()
        return values

    def bcast(self, value, root):
        return self.allgather(value)[root]


    def py2f(self):
        raise AssertionError("a rank goes on alone")


def errors_of_two(options_of):
    """What Group.from_mpi raises on each of two ranks, and how long it takes."""
    shared, errors = {"barrier": threading.Barrier(2)}, {}

    def join(rank):
        try:
            Group.from_mpi(OneOfTwo(rank, shared), **options_of(rank))
        except Exception as error:  # pylint: disable=broad-except
            errors[rank] = error

    ranks = [threading.Thread(target=join, args=(rank,)) for rank in range(2)]
    start = time.monotonic()
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join(30)
    return errors, time.monotonic() - start


def test_mpi_ranks_of_one_host_hear_why_rank_0_has_no_folder(monkeypatch):
    monkeypatch.setattr(switchyard.groups, "why_no_communicators", lambda: "no module")
    monkeypatch.setattr("tempfile.tempdir", "/nothing/here")
    errors, _ = errors_of_two(lambda rank: {})
    for rank in range(2):
        assert isinstance(errors[rank], switchyard.errors.SystemCallError)
        assert "rank 0 has no folder" in str(errors[rank]) and "/nothing/here" in str(errors[rank])


@pytest.mark.parametrize("why_not", ["", "no module"])
@pytest.mark.parametrize("options, words", [({"engine": "carrier"}, 'engine "carrier" is not in this build'),
                                            ({"timeout_ms": -5}, "timeout_ms is -5, must be from 1 to"),
                                            ({"speed": 3}, "require_mpi_options(): incompatible function arguments")])
def test_mpi_option_that_one_rank_passes_wrong_is_told_to_all(monkeypatch, why_not, options, words):
    monkeypatch.setattr(switchyard.groups, "why_no_communicators", lambda: why_not)
    errors, seconds = errors_of_two(lambda rank: {"timeout_ms": 15000, **(options if rank == 1 else {})})
    assert seconds < 5
    assert words in str(errors[1]) and "cannot join" not in str(errors[1])
    assert isinstance(errors[0], switchyard.errors.InvalidArgumentError)
    assert str(errors[0]).startswith("group: rank 1 cannot join: ") and words in str(errors[0])
    assert str(errors[0]).endswith(" (rank 0 of 2)") and str(errors[0]).count("(rank ") == 1


def test_mpi_file_that_one_rank_cannot_open_is_told_to_all(monkeypatch):
    monkeypatch.setattr(switchyard.groups, "why_no_communicators", lambda: "no module")
    open_file = os.open

    def open_on_rank_0(path, *args, **kwargs):
        if threading.current_thread().name == "rank 1":
            raise OSError(24, "Too many open files")
        return open_file(path, *args, **kwargs)

    monkeypatch.setattr("os.open", open_on_rank_0)

    def name_thread(rank):
        threading.current_thread().name = f"rank {rank}"
        return {"timeout_ms": 15000}

    errors, seconds = errors_of_two(name_thread)
    assert seconds < 5
    for rank, opening in [(0, "group: rank 1 cannot join: the file"), (1, "group: the file")]:
        assert isinstance(errors[rank], switchyard.errors.SystemCallError)
        assert str(errors[rank]).startswith(opening) and "Too many open files" in str(errors[rank])


def test_mpi_communicators_of_several_hosts(run_program):
    if importlib.util.find_spec("mpi4py") is None or shutil.which("mpirun") is None:
        pytest.skip("mpi4py or mpirun is not installed")
    code, out, errors = run_program("""
        import subprocess, sys
        source = '''
        import os
        from mpi4py import MPI
        import switchyard
        from switchyard import groups
        world = MPI.COMM_WORLD
        switchyard.set_setting("SWITCHYARD_HOST_ID", f"host {world.rank // 2}")
        why_not = groups.why_no_communicators()
        if why_not:
            print("no MPI:", why_not)
        else:
            with switchyard.Group.from_mpi(world.Split(0, -world.rank), timeout_ms=20000) as group:
                group.barrier()
                os.write(1, f"{group.engine} {group.rank == 3 - world.rank} {group.host_size}\\\\n".encode())
        '''
        import textwrap
        command = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", "4", sys.executable, "-c", textwrap.dedent(source)]
        sys.exit(subprocess.run(command).returncode)
    """)
    assert code == 0, errors
    if "no MPI" in out:
        pytest.skip(out.splitlines()[0])
    assert out.splitlines() == ["mpi True 2"] * 4, errors

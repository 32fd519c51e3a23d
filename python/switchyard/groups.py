# SPDX-License-Identifier: Apache-2.0
"""Groups of ranks over torch.distributed, mpi4py and threads."""
from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, TypeVar

from switchyard._native import (Group, group_from_mpi_handle, local_groups, require_mpi_options, set_log_rank,
                                why_no_communicators)
from switchyard.errors import ArgumentTypeError, NotAvailableError, SystemCallError, make_error

Result = TypeVar("Result")
_PREFIX = "switchyard/"
_num_torch_groups = 0


def from_torch(process_group=None, **options) -> Group:
    """See Group.from_torch."""
    from torch import distributed  # pylint: disable=import-outside-toplevel

    if not distributed.is_available() or not distributed.is_initialized():
        raise NotAvailableError("from_torch: torch.distributed is not initialized, must be; call init_process_group first")
    if not (process_group is None or isinstance(process_group, distributed.ProcessGroup)):
        raise ArgumentTypeError(f"from_torch: process_group is a {type(process_group).__name__}, must be a ProcessGroup of torch or None")
    ranks = distributed.get_process_group_ranks(process_group or distributed.group.WORLD)
    rank = distributed.get_rank(process_group)
    # Every rank must use the same prefix, and every group another one: rank 0 chooses.
    global _num_torch_groups  # pylint: disable=global-statement
    _num_torch_groups += 1
    name = [f"{_PREFIX}{ranks[0]}/{_num_torch_groups}/"]
    distributed.broadcast_object_list(name, src=ranks[0], group=process_group)
    store = distributed.distributed_c10d._get_default_store()  # pylint: disable=protected-access
    return Group(rank, len(ranks), _TorchStore(store, name[0]), **options)


class _TorchStore:
    """A torch.distributed store as Group wants it."""

    def __init__(self, store, prefix: str):
        self._store, self._prefix = store, prefix

    def set(self, key: str, value: str) -> None:
        self._store.set(self._prefix + key, value)

    def get(self, key: str, timeout_ms: int) -> str | None:  # pylint: disable=unused-argument
        """The value, or None; Group asks again."""
        if not self._store.check([self._prefix + key]):
            return None
        return self._store.get(self._prefix + key).decode()


def from_mpi(communicator, **options) -> Group:
    """See Group.from_mpi."""
    refusal = _refusal_of(lambda: require_mpi_options(communicator.Get_rank(), communicator.Get_size(), **options))
    _raise_refusals(communicator, refusal)
    reasons = communicator.allgather(why_no_communicators() if hasattr(communicator, "py2f") else "its communicator is not MPI's")
    if not any(reasons):
        return group_from_mpi_handle(communicator.py2f(), **options)
    import socket  # pylint: disable=import-outside-toplevel

    if len(set(communicator.allgather(socket.gethostname()))) > 1:
        rank = next(rank for rank, reason in enumerate(reasons) if reason)
        raise NotAvailableError(f"group: the ranks are on several hosts, and rank {rank} has no MPI for them: {reasons[rank]}")
    return _from_mpi_on_one_host(communicator, **options)


def _refusal_of(action: Callable[[], Any]) -> Exception | None:
    try:
        action()
    except Exception as error:  # pylint: disable=broad-except
        return error
    return None


def _raise_refusals(communicator, refusal: Exception | None) -> None:
    """Collective: what one rank cannot do, all ranks raise, so that nobody waits for it."""
    told = refusal and (getattr(refusal, "code", "invalid_argument"), str(refusal).removeprefix("group: ").partition("\n")[0])
    refusals = communicator.allgather(told)
    if refusal:
        raise refusal
    for rank, other in enumerate(refusals):
        if other:
            code, reason = other
            own = f"rank {communicator.Get_rank()} of {communicator.Get_size()}"
            raise make_error(code, f"group: rank {rank} cannot join: {reason} ({own})")


def _from_mpi_on_one_host(communicator, **options) -> Group:
    """Without the MPI module."""
    import os  # pylint: disable=import-outside-toplevel
    import secrets  # pylint: disable=import-outside-toplevel
    import shutil  # pylint: disable=import-outside-toplevel
    import tempfile  # pylint: disable=import-outside-toplevel

    # The ranks of one host meet over a file that nobody else can read and that is gone afterwards.
    folder, reason = None, None
    if communicator.Get_rank() == 0:
        try:
            folder = tempfile.mkdtemp(prefix="switchyard-")
        except OSError as error:  # the others wait for the path, or for this
            reason = f"group: rank 0 has no folder for the file at which the ranks would meet: {error}"
    path, reason = communicator.bcast((folder and os.path.join(folder, secrets.token_hex(8)), reason), root=0)
    if reason:
        raise SystemCallError(reason)

    def open_file() -> None:
        try:
            os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
        except OSError as error:
            raise SystemCallError(f"group: the file at which the ranks would meet does not open: {error}") from None

    try:
        _raise_refusals(communicator, _refusal_of(open_file))
        group = Group(communicator.Get_rank(), communicator.Get_size(), path, **options)
    finally:
        communicator.Barrier()
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)
    return group


def run_local(size: int, function: Callable[..., Result], *args: Any, timeout_ms: int = 0) -> list[Result]:
    """Calls ``function(group, *args)`` once per rank, each rank a thread of this process.

    Returns the results by rank. The first exception of a rank ends the others and is raised here. Threads
    of Python run one at a time except inside calls of this library and of numpy or torch.
    """
    if not callable(function):
        raise ArgumentTypeError(f"run_local: function is a {type(function).__name__}, must be callable")
    groups = local_groups(size, timeout_ms)
    results: list[Any] = [None] * size
    errors: list[tuple[bool, int, BaseException]] = []  # (caused by another rank, rank, error) by time
    ends = [threading.Event() for _ in groups]
    ranks = [threading.Thread(target=_run_rank, args=(group, function, args, results, errors, end), daemon=True,
                              name=f"switchyard rank {rank}") for rank, (group, end) in enumerate(zip(groups, ends))]
    for thread in ranks:
        thread.start()
    try:
        _join(ranks, ends)
    except BaseException:  # Ctrl-C: nobody may wait for ranks that end
        for group in groups:
            if not group.is_closed:
                group.abort("it was interrupted")
                break
        _join(ranks, ends)
        raise
    if errors:
        raise min(errors, key=lambda entry: entry[0])[2]
    return results


def _join(ranks, ends) -> None:
    """Waits for the events first: in CPython 3.11 a thread whose join a signal interrupted counts as ended."""
    for thread, end in zip(ranks, ends):
        end.wait()
        thread.join()


def _run_rank(group, function, args, results, errors, end) -> None:
    rank = group.rank
    set_log_rank(rank)
    try:
        results[rank] = function(group, *args)
    except BaseException as error:  # pylint: disable=broad-except
        is_secondary = not group.is_closed and group._has_seen_abort()  # pylint: disable=protected-access
        errors.append((is_secondary, rank, error))
        if not group.is_closed:
            text = str(error).encode(errors="backslashreplace").decode()
            group.abort(f'it ended with the error "{type(error).__name__}: {text}"')
    finally:
        try:
            group.close()
        finally:
            end.set()

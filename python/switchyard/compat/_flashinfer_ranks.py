# SPDX-License-Identifier: Apache-2.0
"""Which ranks exchange: FlashInfer's Mapping has only numbers."""
from __future__ import annotations

import dataclasses
import sys
import threading
from typing import Any

from switchyard import Group, InvalidArgumentError
from switchyard._native import local_groups
from switchyard.compat._arrays import group_of

_current = threading.local()


def use_group(group: Any) -> None:
    """The ranks of what this thread makes from a mapping: a Group, a torch process group or an mpi4py
    communicator. Collective. None: torch's default process group, or without one mpi4py's COMM_WORLD."""
    _current.group = None if group is None else group_of(group)[0]


class CommBackend:
    """Base class of programs' own communicators. As comm_backend of MnnvlConfig one names the ranks, by Get_rank(), Get_size()
    and allgather() of any object; all of them on one host."""


class TorchDistBackend(CommBackend):
    """A torch process group, or None for the default one, as comm_backend of MnnvlConfig."""

    def __init__(self, group: Any = None):
        self.group = group


@dataclasses.dataclass
class MnnvlConfig:
    """comm_backend names the ranks; the sizes have no effect."""

    comm_backend: Any = None
    allocation_granularity: int = 0
    fabric_page_size: int = 1 << 29


@dataclasses.dataclass(frozen=True)
class Mapping:
    """The numbers of flashinfer.comm.Mapping. An all-to-all needs rank and size of those that hold experts: all ranks, or
    moe_ep_size of them. The other numbers have no effect."""

    world_size: int = 1
    rank: int = 0
    gpus_per_node: int = 8
    _: dataclasses.KW_ONLY
    cp_size: int = 1
    tp_size: int = 1
    pp_size: int = 1
    moe_cluster_size: int = -1
    moe_tp_size: int = -1
    moe_ep_size: int = -1
    enable_attention_dp: bool = False

    @property
    def moe_ep_rank(self) -> int:
        """This rank's number among those that hold experts."""
        return self.rank % self.num_expert_ranks

    @property
    def num_expert_ranks(self) -> int:
        """moe_ep_size, or all ranks."""
        return self.world_size if self.moe_ep_size < 1 else self.moe_ep_size


def ranks_of(mapping: Any, config: MnnvlConfig | None = None) -> Group:
    """The group of a mapping, which must agree with it about rank and size."""
    if isinstance(mapping, Group) or hasattr(mapping, "Get_rank"):
        return group_of(mapping)[0]
    if not hasattr(mapping, "moe_ep_rank"):
        return group_of(mapping)[0]  # a process group
    size = mapping.moe_ep_size if mapping.moe_ep_size > 0 else mapping.world_size
    backend = getattr(config, "comm_backend", None)
    if isinstance(backend, TorchDistBackend):
        group = group_of(backend.group)[0]
    elif hasattr(backend, "allgather"):
        group = Group.from_mpi(_Communicator(backend))
        if (group.rank, group.size) == (mapping.rank, mapping.world_size):
            return group  # FlashInfer's own Mapping has moe_ep_size 1 where a program gives tp_size alone, as vLLM does
    else:
        group = _default_group(size)
    if (group.rank, group.size) != (mapping.moe_ep_rank, size):
        raise InvalidArgumentError(f"mapping: rank {mapping.moe_ep_rank} of {size}, but the group has rank {group.rank} of {group.size}; "
                                   "pass use_group() the ranks that hold the experts")
    return group


class _Communicator:
    """A CommBackend as from_mpi wants a communicator. Its own bcast is not called: vLLM's takes the root for a rank of the world."""

    def __init__(self, backend: Any):
        self.Get_rank, self.Get_size, self.allgather = backend.Get_rank, backend.Get_size, backend.allgather  # pylint: disable=invalid-name

    def bcast(self, value: Any, root: int) -> Any:
        """From one rank to all."""
        return self.allgather(value)[root]

    def Barrier(self) -> None:  # pylint: disable=invalid-name
        """Returns once every rank has called it."""
        self.allgather(None)


def _default_group(size: int) -> Group:
    group = getattr(_current, "group", None)
    if group is not None:
        return group
    torch = sys.modules.get("torch")
    if torch is not None and torch.distributed.is_available() and torch.distributed.is_initialized():
        return group_of(None)[0]
    if size == 1:
        return local_groups(1, 0)[0]
    mpi = sys.modules.get("mpi4py.MPI")
    if mpi is None:
        raise InvalidArgumentError(f"mapping: {size} ranks, but there is no process group of torch and no mpi4py; call use_group()")
    return group_of(mpi.COMM_WORLD)[0]

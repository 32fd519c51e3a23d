# SPDX-License-Identifier: Apache-2.0
"""Which ranks exchange: FlashInfer's Mapping has only numbers."""
from __future__ import annotations

import dataclasses
import threading
from typing import Any

from switchyard import Group, InvalidArgumentError
from switchyard.compat._arrays import group_of

_current = threading.local()


def use_group(group: Any) -> None:
    """The ranks of what this thread makes from a mapping: a Group, a torch process group or an mpi4py
    communicator. Collective. None: torch's default process group."""
    _current.group = None if group is None else group_of(group)[0]


@dataclasses.dataclass(frozen=True)
class Mapping:
    """The numbers of flashinfer.comm.Mapping that an all-to-all needs: all ranks hold experts."""

    world_size: int = 1
    rank: int = 0
    gpus_per_node: int = 8
    tp_size: int = 1
    moe_ep_size: int = -1

    @property
    def moe_ep_rank(self) -> int:
        """This rank's number among those that hold experts."""
        return self.rank % self.num_expert_ranks

    @property
    def num_expert_ranks(self) -> int:
        """moe_ep_size, or all ranks."""
        return self.world_size if self.moe_ep_size < 1 else self.moe_ep_size


def ranks_of(mapping: Any) -> Group:
    """The group of a mapping, which must agree with it about rank and size."""
    if isinstance(mapping, Group) or hasattr(mapping, "Get_rank"):
        return group_of(mapping)[0]
    if not hasattr(mapping, "moe_ep_rank"):
        return group_of(mapping)[0]  # a process group
    group = getattr(_current, "group", None) or group_of(None)[0]
    size = mapping.moe_ep_size if mapping.moe_ep_size > 0 else mapping.world_size
    if (group.rank, group.size) != (mapping.moe_ep_rank, size):
        raise InvalidArgumentError(f"mapping: rank {mapping.moe_ep_rank} of {size}, but the group has rank {group.rank} of {group.size}; "
                                   "pass use_group() the ranks that hold the experts")
    return group

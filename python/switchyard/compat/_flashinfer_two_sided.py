# SPDX-License-Identifier: Apache-2.0
"""flashinfer.comm.MnnvlMoe."""
from __future__ import annotations

import dataclasses
from typing import Any

from switchyard import Group, InvalidArgumentError
from switchyard._native import TwoSidedAllToAll
from switchyard.compat._arrays import device_of, like, names_wrong_types
from switchyard.compat._flashinfer_ranks import ranks_of


class Workspace:
    """The ranks and their windows, which grow with max_token_count_per_rank. Not a tensor."""

    def __init__(self, group: Group):
        self.group = group
        self._native: TwoSidedAllToAll | None = None
        self._outgrown: list[TwoSidedAllToAll] = []  # earlier calls may still need them
        self._max_tokens = 0

    def native(self, device: Any, max_tokens: int) -> TwoSidedAllToAll:
        """The windows for a call of this size; collective when they grow."""
        if self._native is None or max_tokens > self._max_tokens:
            if self._native is not None:
                self._outgrown.append(self._native)
            self._max_tokens = 1 << max(max_tokens - 1, 0).bit_length()
            self._native = TwoSidedAllToAll(self.group, device, self._max_tokens)
        return self._native

    def close(self) -> None:
        """Frees the windows. Every rank calls it, or none."""
        for native in (*self._outgrown, self._native):
            if native is not None:
                native.close()


@dataclasses.dataclass
class MoEAlltoallInfo:
    """What the calls behind prepare need. On GPUs the three lists of indices are None."""

    local_gather_indices: None
    send_rank_count_cumsum: Any
    send_rank_local_indices: Any
    recv_rank_count_cumsum: Any
    recv_rank_local_indices: Any
    backward_recv_rank_local_indices: Any
    local_token_allocation_count: int
    native: Any = dataclasses.field(default=None, repr=False)
    prepared: Any = dataclasses.field(default=None, repr=False)
    token_count: int = 0


class MnnvlMoe:
    """Two-sided: prepare sends the routing, then one alltoallv per payload, then a combine."""

    @staticmethod
    def get_moe_workspaces(mapping: Any, config: Any = None) -> Workspace:
        """A workspace over the ranks of `mapping`; it takes memory when a call first needs it."""
        return Workspace(ranks_of(mapping, config))

    get_moe_prepare_workspace = get_moe_workspaces

    @staticmethod
    @names_wrong_types
    def mnnvl_moe_alltoallv_prepare_without_allgather(expert_ids: Any, scales: Any | None, expert_statics: Any | None,
                                                      workspace: Workspace,
                                                      max_token_count_per_rank: int, ep_rank: int, ep_size: int, expert_count: int,
                                                      slot_count: int, top_k: int) -> tuple:
        """Returns (info, expert_ids i32 [P * Tm, K], scales f32 [P * Tm, K] or None, statics i32 [P, expert_count] or None).

        expert_ids [T, K] i32, scales [T, K] f32 router weights or None on every rank. Ids of other ranks and
        of rows without a token are slot_count.
        """
        _check_ranks("prepare", workspace.group, ep_rank, ep_size)
        if expert_ids.shape[1] != top_k:
            raise InvalidArgumentError(f"prepare: expert_ids has {expert_ids.shape[1]} columns, must have top_k = {top_k}")
        native = workspace.native(device_of(expert_ids), max_token_count_per_rank)
        made = native.prepare(expert_ids, scales, expert_statics, max_token_count_per_rank, expert_count, slot_count)
        info = MoEAlltoallInfo(
            None, *(like(getattr(made, name), expert_ids) for name in (
                "send_rank_count_cumsum", "send_rank_local_indices", "recv_rank_count_cumsum", "recv_rank_local_indices",
                "backward_recv_rank_local_indices")),
            made.local_token_allocation_count, native, made, expert_ids.shape[0])
        return info, like(made.expert_ids, expert_ids), like(made.scales, expert_ids), like(made.gathered_expert_statics, expert_ids)

    @staticmethod
    @names_wrong_types
    def mnnvl_moe_alltoallv(x: Any, alltoall_info: MoEAlltoallInfo, workspace: Workspace, ep_rank: int, ep_size: int) -> Any:
        """[P * Tm, cols] of x's dtype: rows by (source rank, token), 0 where none came. x [T, cols], contiguous."""
        _check_ranks("mnnvl_moe_alltoallv", workspace.group, ep_rank, ep_size)
        return like(alltoall_info.native.alltoallv(x, alltoall_info.prepared), x)

    @staticmethod
    @names_wrong_types
    def mnnvl_moe_alltoallv_combine(x: Any, alltoall_info: MoEAlltoallInfo, workspace: Workspace, ep_rank: int, ep_size: int, top_k: int,
                                    token_count: int) -> Any:
        """[token_count, cols]: the sum of one row from each rank that received the token. x [P * Tm, cols]."""
        del top_k
        _check_ranks("mnnvl_moe_alltoallv_combine", workspace.group, ep_rank, ep_size)
        if token_count != alltoall_info.token_count:
            raise InvalidArgumentError(f"mnnvl_moe_alltoallv_combine: token_count is {token_count}, must be {alltoall_info.token_count}, "
                                       "the tokens of prepare")
        return like(alltoall_info.native.alltoallv_combine(x, alltoall_info.prepared), x)


def _check_ranks(function: str, group: Group, ep_rank: int, ep_size: int) -> None:
    if (ep_rank, ep_size) != (group.rank, group.size):
        raise InvalidArgumentError(f"{function}: ep_rank is {ep_rank} of {ep_size}, must be {group.rank} of {group.size}, as the workspace's")

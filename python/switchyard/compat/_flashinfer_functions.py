# SPDX-License-Identifier: Apache-2.0
"""The functions moe_a2a_* of flashinfer.comm, over MoeAlltoAll, and the workspace that they take.

`enable_pdl`, `backend` and `recv_view_cache` choose or tune kernels of the original: they are accepted, without effect.
"""
from __future__ import annotations

import math
import sys
from typing import Any

import numpy

from switchyard import Device, InvalidArgumentError, Tensor
from switchyard._native import one_sided_workspace_size
from switchyard.compat._arrays import device_of, is_torch, like, names_wrong_types, refuse, require_counts
from switchyard.compat._flashinfer_one_sided import MoeAlltoAll
from switchyard.compat._flashinfer_ranks import TorchDistBackend, ranks_of, use_group
from switchyard.errors import ArgumentTypeError

MOE_A2A_RANK_MASK_WORDS = 1
_COMBINE_OFFSET = 0  # of the only slice of a workspace that callers see


class OneSidedWorkspace:
    """What stands in the place of the shared tensor [P, bytes]: the ranks, and memory for the rows of combine.
    `workspace[ep_rank]` and `workspace[ep_rank, :]` are the workspace itself."""

    def __init__(self, mapping: Any, size_per_rank: int):
        self.group = ranks_of(mapping)
        self.shape = (self.group.size, size_per_rank)
        self.device: Device | None = None  # of the last dispatch
        self._rows: dict[tuple, Any] = {}

    def __getitem__(self, index: Any) -> OneSidedWorkspace:
        rank = index[0] if isinstance(index, tuple) else index
        if rank != self.group.rank:
            raise InvalidArgumentError(f"workspace[{rank}]: memory of a rank, must be this one's, {self.group.rank}")
        return self

    def rows(self, shape: tuple[int, ...], dtype: Any) -> Any:
        """The same memory in each call with these arguments, where the last dispatch was."""
        if self.device is None:
            raise InvalidArgumentError("moe_a2a_wrap_payload_tensor_in_workspace: nothing was dispatched, must follow moe_a2a_dispatch")
        key = (shape, str(dtype), str(self.device))
        if key not in self._rows:
            self._rows[key] = _empty(shape, dtype, str(self.device))
        return self._rows[key]


class MetaInfo:
    """Of moe_a2a_initialize: the calls over a workspace. Opaque."""

    def __init__(self, workspace: OneSidedWorkspace, max_num_tokens: int):
        self.workspace, self._max_num_tokens = workspace, max_num_tokens
        self._calls: dict[tuple[int, int], MoeAlltoAll] = {}
        self.last: MoeAlltoAll | None = None  # of the last dispatch

    def calls(self, top_k: int, num_experts: int) -> MoeAlltoAll:
        """Windows are taken at the first dispatch."""
        key = (top_k, num_experts)
        if key not in self._calls:
            self._calls[key] = MoeAlltoAll(self.workspace.group, self._max_num_tokens, top_k, num_experts)
        return self._calls[key]

    def close(self) -> None:
        """Frees the windows. An addition."""
        for calls in self._calls.values():
            calls.close()


class MnnvlMemory:
    """flashinfer.comm.mnnvl.MnnvlMemory, as far as the functions here need it: where a workspace comes from."""

    def __init__(self, mapping: Any, size: int):
        require_counts("MnnvlMemory", 0, size=size)
        self.mapping, self.segment_size = mapping, size
        self._workspace = OneSidedWorkspace(mapping, size)

    @staticmethod
    def initialize() -> None:
        """Does nothing."""

    @staticmethod
    def supports_mnnvl() -> bool:
        """True: memory is the library's, on any machine."""
        return True

    @staticmethod
    def set_comm_from_config(mapping: Any, config: Any = None) -> None:
        """As use_group with the group of a TorchDistBackend; other backends have no effect."""
        backend = getattr(config, "comm_backend", None)
        if isinstance(backend, TorchDistBackend):
            use_group(ranks_of(mapping, config))

    def as_torch_strided_tensor(self, dtype: Any) -> OneSidedWorkspace:
        """The workspace; it is no tensor."""
        del dtype
        return self._workspace


@names_wrong_types
def moe_a2a_get_workspace_size_per_rank(ep_size: int, max_num_tokens: int, total_dispatch_payload_size_per_token: int,
                                        combine_payload_size_per_token: int, eplb_stats_num_experts: int = 0, *,
                                        backend: str = "trtllm") -> int:
    """Bytes that the original wants for rows, without its control words. No call here needs the number."""
    del eplb_stats_num_experts, backend
    return one_sided_workspace_size(ep_size, max_num_tokens, total_dispatch_payload_size_per_token, combine_payload_size_per_token, 0)


@names_wrong_types
def moe_a2a_initialize(workspace: OneSidedWorkspace, ep_rank: int, ep_size: int, max_num_tokens: int,
                       eplb_stats_num_experts: int = 0, *, backend: str = "trtllm") -> MetaInfo:
    """What the other functions take as `metainfo`. `workspace` is that of MnnvlMemory."""
    del backend
    if eplb_stats_num_experts:
        raise refuse("moe_a2a_initialize", "eplb_stats_num_experts", "statistics do not travel with a dispatch; see switchyard.ExpertLoad")
    if not isinstance(workspace, OneSidedWorkspace):
        raise InvalidArgumentError(f"moe_a2a_initialize: workspace is a {type(workspace).__name__}, must be what "
                                   "MnnvlMemory(mapping, size).as_torch_strided_tensor(dtype) returned; memory is the library's")
    _check_ranks("moe_a2a_initialize", workspace, ep_rank, ep_size)
    require_counts("moe_a2a_initialize", 1, max_num_tokens=max_num_tokens)
    return MetaInfo(workspace, max_num_tokens)


@names_wrong_types
def moe_a2a_dispatch(token_selected_experts: Any, input_payloads: list[Any], workspace: OneSidedWorkspace, metainfo: MetaInfo,
                     runtime_max_tokens_per_rank: int, ep_rank: int, ep_size: int, top_k: int, num_experts: int,
                     enable_pdl: bool | None = None, eplb_local_stats: Any = None, enable_rank_mask: bool = False,
                     active_rank_mask: Any = None, *, backend: str = "trtllm",
                     recv_view_cache: dict | None = None) -> tuple[list[Any], int, None]:
    """(payloads [P, runtime_max_tokens_per_rank, ...], combine_payload_offset, None); see MoeAlltoAll.dispatch."""
    del enable_pdl, enable_rank_mask, backend, recv_view_cache
    _check_ranks("moe_a2a_dispatch", workspace, ep_rank, ep_size)
    moe = metainfo.calls(top_k, num_experts)
    received = moe.dispatch(token_selected_experts, input_payloads, runtime_max_tokens_per_rank, eplb_local_stats=eplb_local_stats,
                            active_rank_mask=active_rank_mask)
    metainfo.last, workspace.device = moe, device_of(token_selected_experts)
    return received, _COMBINE_OFFSET, None


@names_wrong_types
def moe_a2a_combine(payload: Any, local_num_tokens: int, workspace: OneSidedWorkspace, metainfo: MetaInfo,
                    runtime_max_tokens_per_rank: int, ep_rank: int, ep_size: int, top_k: int, combine_payload_offset: int,
                    payload_in_workspace: bool = False, output_dtype: Any = None, output_scales: Any = None,
                    output_scalar_scale: float = 1.0, sf_layout: Any = None, output: Any = None, *, use_low_precision: bool = False,
                    enable_pdl: bool | None = None, enable_rank_mask: bool = False, active_rank_mask: Any = None,
                    backend: str = "trtllm") -> Any:
    """[local_num_tokens, H]; see MoeAlltoAll.combine. `output`: the result is copied there."""
    del top_k, combine_payload_offset, enable_pdl, enable_rank_mask, backend
    _check_ranks("moe_a2a_combine", workspace, ep_rank, ep_size)
    moe = _dispatched("moe_a2a_combine", metainfo)
    if moe.num_tokens is not None and local_num_tokens != moe.num_tokens:
        raise InvalidArgumentError(f"moe_a2a_combine: local_num_tokens is {local_num_tokens}, must be {moe.num_tokens}, as in the dispatch")
    return moe.combine(payload, runtime_max_tokens_per_rank, payload_in_workspace, output_dtype, output_scales, output_scalar_scale,
                       sf_layout, output, use_low_precision=use_low_precision, active_rank_mask=active_rank_mask)


@names_wrong_types
def moe_a2a_sanitize_expert_ids(expert_ids: Any, workspace: OneSidedWorkspace, metainfo: MetaInfo, ep_rank: int, invalid_expert_id: int,
                                enable_pdl: bool | None = None, *, backend: str = "trtllm") -> None:
    """Writes invalid_expert_id into the rows of expert_ids [P, runtime_max_tokens_per_rank, K] i32 that have no token."""
    del enable_pdl, backend
    _check_ranks("moe_a2a_sanitize_expert_ids", workspace, ep_rank, workspace.group.size)
    counts = _dispatched("moe_a2a_sanitize_expert_ids", metainfo).recv_counts
    if is_torch(expert_ids):
        import torch  # pylint: disable=import-outside-toplevel

        place = torch.arange(expert_ids.shape[1], device=expert_ids.device)
        expert_ids.masked_fill_((place >= like(counts, expert_ids)[:, None])[..., None], invalid_expert_id)
        return
    ids = expert_ids.numpy() if isinstance(expert_ids, Tensor) else expert_ids
    ids[numpy.arange(ids.shape[1]) >= counts.numpy()[:, None]] = invalid_expert_id


@names_wrong_types
def moe_a2a_wrap_payload_tensor_in_workspace(workspace: OneSidedWorkspace, leading_shape: list[int], slice_start: int,
                                             slice_end: int, dtype: Any) -> Any:
    """[*leading_shape, ...] of a dtype of torch or numpy: memory for the rows of a combine.

    slice_start is the combine_payload_offset of a dispatch, and slice_end - slice_start the bytes. Other
    slices are not supported: received payloads are what dispatch returned.
    """
    if slice_start != _COMBINE_OFFSET:
        raise refuse("moe_a2a_wrap_payload_tensor_in_workspace", f"slice_start {slice_start}", "windows are internal; only the rows of a "
                     "combine, at combine_payload_offset, have memory that callers may write")
    if dtype is None:
        raise ArgumentTypeError("moe_a2a_wrap_payload_tensor_in_workspace: dtype is None, must be one of torch or numpy")
    num_bytes, row = slice_end - slice_start, _element_size(dtype) * math.prod(leading_shape)
    if row == 0 or num_bytes % row:
        raise InvalidArgumentError(f"moe_a2a_wrap_payload_tensor_in_workspace: {num_bytes} bytes, must be a multiple of {row} for "
                                   f"{list(leading_shape)} of {dtype}")
    return workspace.rows((*leading_shape, num_bytes // row), dtype)


@names_wrong_types
def moe_a2a_active_rank_mask(active_ranks: Any, ep_size: int) -> Any:
    """The mask in which all of ep_size ranks are active; fewer are not supported. uint64 [1] on the CPU, of torch
    where torch is imported, else of numpy."""
    ranks = {int(rank) for rank in active_ranks}
    if ranks != set(range(ep_size)):
        raise refuse("moe_a2a_active_rank_mask", f"active_ranks {sorted(ranks)} of {ep_size} ranks", "ranks cannot be masked")
    mask = numpy.array([(1 << ep_size) - 1], numpy.uint64)
    torch = sys.modules.get("torch")
    return mask if torch is None else torch.from_numpy(mask)


def _check_ranks(function: str, workspace: OneSidedWorkspace, ep_rank: int, ep_size: int) -> None:
    group = workspace.group
    if (ep_rank, ep_size) != (group.rank, group.size):
        raise InvalidArgumentError(f"{function}: ep_rank is {ep_rank} of {ep_size}, must be {group.rank} of {group.size}, as the workspace's")


def _dispatched(function: str, metainfo: MetaInfo) -> MoeAlltoAll:
    if metainfo.last is None:
        raise InvalidArgumentError(f"{function}: nothing was dispatched, must follow moe_a2a_dispatch")
    return metainfo.last


def _is_torch_dtype(dtype: Any) -> bool:
    return type(dtype).__module__ == "torch"


def _element_size(dtype: Any) -> int:
    return dtype.itemsize if _is_torch_dtype(dtype) else numpy.dtype(dtype).itemsize


def _empty(shape: tuple[int, ...], dtype: Any, device: str) -> Any:
    if not _is_torch_dtype(dtype):
        return numpy.empty(shape, dtype)
    import torch  # pylint: disable=import-outside-toplevel

    return torch.empty(shape, dtype=dtype, device=device)

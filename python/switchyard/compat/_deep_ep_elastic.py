# SPDX-License-Identifier: Apache-2.0
"""deep_ep.ElasticBuffer and its handles."""
from __future__ import annotations

import functools
from typing import Any

from switchyard import Device, ExchangeConfig, Group, InvalidArgumentError, Tensor
from switchyard._native import ElasticCalls
from switchyard.compat import _deep_ep_metadata as metadata
from switchyard.compat._arrays import device_of, group_of, is_torch, like, names_wrong_types, refuse, require_counts, require_handle, rows_and_scales
from switchyard.compat._deep_ep_values import EventHandle, EventOverlap, event_of, wait_for

_FROM_CALL = ("num_max_tokens_per_rank", "num_recv_tokens", "num_expanded_tokens", "num_recv_tokens_per_expert_list")
_TENSORS = ("topk_idx", "psum_num_recv_tokens_per_scaleup_rank", "psum_num_recv_tokens_per_expert",
            "num_unaligned_recv_tokens_per_expert")
_SIZE_UNIT = 2 << 20
_MAX_TOPK = 64


class EPHandle:
    """What combine and later dispatches with the same routing need, with the original's fields. Those of its
    hybrid mode are None."""

    num_sms = 0
    token_metadata_at_forward = None
    channel_linked_list = None

    def __init__(self, native: ElasticCalls, call: Any, group: Group, sample: Any, options: dict[str, Any]):
        self.native, self.call = native, call
        self._group, self._sample = group, sample
        for name in ("do_expand", "num_experts", "expert_alignment"):
            setattr(self, name, options[name])
        for name in _FROM_CALL:
            setattr(self, name, getattr(call, name))
        for name in _TENSORS:
            setattr(self, name, like(getattr(call, name), sample))

    @functools.cached_property
    def recv_src_metadata(self) -> Any:
        """i32 [R, K + 2], one line per received token by (rank, token): rank * num_max_tokens_per_rank + token; rank * K +
        the highest k that is served here; and, if expanded, the row of each k or -1. Without do_cpu_sync there are lines
        for the largest R, -1 where unused. On GPUs it is made, for torch, when it is first looked at, which must be between
        dispatch and combine; None for other arrays."""
        if not self._is_made_here():
            return like(self.call.recv_src_metadata, self._sample)
        sources = (like(source, self._sample) for source in self.native.row_sources(self.call))
        return metadata.recv_src_metadata(*sources, self.num_recv_tokens, self.num_max_tokens_per_rank, self._group.size,
                                          self.topk_idx.shape[1], self.do_expand)

    @functools.cached_property
    def dst_buffer_slot_idx(self) -> Any:
        """i32 [T, K], at the highest k of each rank, -1 elsewhere: own rank * num_max_tokens_per_rank + the token's index
        among those that go to the rank of k. On GPUs for torch; None for other arrays."""
        if not self._is_made_here():
            return like(self.call.dst_buffer_slot_idx, self._sample)
        return metadata.dst_buffer_slot_idx(self.topk_idx, self.num_experts, self._group.rank, self._group.size,
                                            self.num_max_tokens_per_rank)

    def _is_made_here(self) -> bool:
        return is_torch(self._sample) and device_of(self._sample).is_cuda


def get_physical_domain_size(group: Any) -> tuple[int, int]:
    """(1, P): the ranks of one NVLink host."""
    if hasattr(group, "Get_size"):
        return 1, group.Get_size()
    return 1, group.size() if callable(group.size) else group.size


def get_logical_domain_size(group: Any, allow_hybrid_mode: bool = True) -> tuple[int, int]:
    """(1, P): there is one level of ranks."""
    del allow_hybrid_mode
    return get_physical_domain_size(group)


class ElasticBuffer:
    """deep_ep.ElasticBuffer over the ranks of one host or of several. Rows always have the order of deterministic=True.

    Byte counts, SMs, queue pairs and timeouts are accepted and ignored. Every rank makes the same calls in
    the same order, with equal sizes and options.
    """

    def __init__(self, group: Any, num_bytes: int | None = None, num_cpu_bytes: int = 0, num_max_tokens_per_rank: int = 0,
                 hidden: int = 0, num_topk: int = 0, use_fp8_dispatch: bool = False, deterministic: bool = False,
                 allow_hybrid_mode: bool = True, allow_multiple_reduction: bool = True, prefer_overlap_with_compute: bool = True,
                 sl_idx: int = 3, num_allocated_qps: int = 0, num_cpu_timeout_secs: int = 300, num_gpu_timeout_secs: int = 100,
                 explicitly_destroy: bool = False):
        require_counts("ElasticBuffer", 0, num_bytes=num_bytes or 0, num_cpu_bytes=num_cpu_bytes, hidden=hidden, num_topk=num_topk,
                       num_max_tokens_per_rank=num_max_tokens_per_rank, num_allocated_qps=num_allocated_qps,
                       num_cpu_timeout_secs=num_cpu_timeout_secs, num_gpu_timeout_secs=num_gpu_timeout_secs)
        del num_cpu_bytes, use_fp8_dispatch, sl_idx, num_cpu_timeout_secs, num_gpu_timeout_secs
        self.group = group
        self._group, self._owns_group = group_of(group)
        if num_bytes is None:  # programs compare it with the hint to see whether a buffer suffices
            num_bytes = self.get_buffer_size_hint(self._group, num_max_tokens_per_rank, hidden, num_topk,
                                                  allow_multiple_reduction=allow_multiple_reduction) if hidden else 0
        self.rank_idx, self.num_ranks = self._group.rank, self._group.size
        self.num_rdma_ranks, self.num_nvlink_ranks = self.num_scaleout_ranks, self.num_scaleup_ranks = 1, self.num_ranks
        self.scaleout_rank_idx, self.scaleup_rank_idx = 0, self.rank_idx
        self.num_bytes, self.num_allocated_qps = num_bytes, num_allocated_qps
        self.deterministic, self.explicitly_destroy = deterministic, explicitly_destroy
        self.num_max_tokens_per_rank = num_max_tokens_per_rank
        self.allow_hybrid_mode, self.allow_multiple_reduction = bool(allow_hybrid_mode), bool(allow_multiple_reduction)
        self.prefer_overlap_with_compute = bool(prefer_overlap_with_compute)
        self._native: ElasticCalls | None = None
        self._outgrown: list[ElasticCalls] = []  # handles may still need them
        self._max_tokens = 0
        self._device = Device("cpu")
        self.vllm_manager: Any = None  # of classes of switchyard.compat.vllm over this buffer
        self._is_destroyed = False

    def destroy(self) -> None:
        """Frees the windows; what was received stays. Every rank calls it, or none."""
        for part in (*self._outgrown, self._native, self.vllm_manager):
            if part is not None:
                part.close()
        self._outgrown.clear()
        self._native = None
        self._is_destroyed = True
        if self._owns_group:
            self._group.close()

    @staticmethod
    def get_buffer_size_hint(group: Any, num_max_tokens_per_rank: int, hidden: int, num_topk: int = 0, use_fp8_dispatch: bool = False,
                             allow_hybrid_mode: bool = True, allow_multiple_reduction: bool = True) -> int:
        """Bytes of windows that one rank shares for expanded bf16 rows, a multiple of 2 MiB. No call here needs the number.
        num_topk 0: the number of ranks, at most 64."""
        del use_fp8_dispatch, allow_hybrid_mode
        _, num_ranks = get_physical_domain_size(group)
        config = ExchangeConfig(layout="expanded", num_experts=num_ranks, num_topk=num_topk or min(num_ranks, _MAX_TOPK), hidden=hidden,
                                max_tokens_per_rank=num_max_tokens_per_rank, max_in_flight=2,
                                reduce="per_rank" if allow_multiple_reduction else "per_expert")
        window_bytes, _ = config.memory(num_ranks)
        return -(-window_bytes // _SIZE_UNIT) * _SIZE_UNIT

    def get_physical_domain_size(self) -> tuple[int, int]:
        """(1, P): the ranks of one NVLink host."""
        return self.num_rdma_ranks, self.num_nvlink_ranks

    def get_logical_domain_size(self) -> tuple[int, int]:
        """(1, P): there is one level of ranks."""
        return self.num_scaleout_ranks, self.num_scaleup_ranks

    @staticmethod
    def get_theoretical_num_sms(num_experts: int, num_topk: int, *_: Any, **__: Any) -> int:
        """0, which dispatch and combine take as automatic: the grid of a kernel follows the size of the call."""
        del num_experts, num_topk
        return 0

    @staticmethod
    def get_theoretical_num_qps(num_sms: int) -> int:
        """0: there are no queue pairs."""
        del num_sms
        return 0

    def get_comm_stream(self) -> Any:
        """torch's current stream: calls work in the stream of the caller."""
        import torch  # pylint: disable=import-outside-toplevel

        return (torch.cuda if torch.cuda.is_available() else torch.cpu).current_stream()

    @staticmethod
    def capture() -> EventHandle:
        """An event behind what the current stream has so far."""
        return EventHandle()

    def barrier(self, use_comm_stream: bool = True, with_cpu_sync: bool = False, sequential: bool = True) -> None:
        """Returns when every rank has called it: a barrier of the hosts, which streams do not see. with_cpu_sync: first
        waits for what this rank's GPU has so far."""
        del use_comm_stream, sequential
        if with_cpu_sync and self._native is not None and self._device.is_cuda:
            import torch  # pylint: disable=import-outside-toplevel

            torch.cuda.synchronize(self._device.index)
        self._group.barrier()

    @names_wrong_types
    def dispatch(self, x: Any, topk_idx: Any = None, topk_weights: Any = None, cumulative_local_expert_recv_stats: Any = None,
                 num_experts: int | None = None, num_max_tokens_per_rank: int | None = None, expert_alignment: int | None = None,
                 num_sms: int = 0, num_qps: int = 0, previous_event: Any = None, previous_event_before_epilogue: Any = None,
                 async_with_compute_stream: bool = False, allocate_on_comm_stream: bool = False, handle: EPHandle | None = None,
                 do_handle_copy: bool = True, do_cpu_sync: bool | None = None, do_expand: bool = False, do_zero_padding: bool = False,
                 use_tma_aligned_col_major_sf: bool = False) -> tuple[Any, Any, Any, EPHandle, EventOverlap]:
        """Returns (recv_x, recv_topk_idx, recv_topk_weights, handle, event).

        x is bf16 [T, H], or (e4m3 [T, H], sf [T, S]); then recv_x is a pair too. With a handle the routing
        and the options are those of its dispatch, and topk_idx must be None; do_zero_padding may be set again.
        """
        del num_sms, num_qps, allocate_on_comm_stream
        rows, sf = rows_and_scales(x)
        for event in (previous_event, previous_event_before_epilogue):
            wait_for(event)
        if handle is not None:
            if topk_idx is not None:
                raise InvalidArgumentError("dispatch: topk_idx is given with a handle, which has the routing; pass None")
            if do_cpu_sync:
                raise InvalidArgumentError("dispatch: do_cpu_sync is set with a handle, whose counts are known; leave it out")
            require_handle("dispatch", handle, EPHandle)
            call = handle.native.dispatch_again(rows, handle.call, sf, topk_weights, bool(do_zero_padding))
        else:
            call, handle = self._dispatch_new(rows, sf, topk_idx, topk_weights, num_experts, num_max_tokens_per_rank, {
                "expert_alignment": 1 if expert_alignment is None else expert_alignment, "do_expand": bool(do_expand),
                "do_cpu_sync": do_cpu_sync is None or bool(do_cpu_sync), "do_zero_padding": bool(do_zero_padding),
                "use_tma_aligned_col_major_sf": bool(use_tma_aligned_col_major_sf)})
            if not do_handle_copy:
                handle.topk_idx = topk_idx
        _add_counts(cumulative_local_expert_recv_stats, handle)
        recv_x = like(call.recv_x, rows)
        return (recv_x if sf is None else (recv_x, like(call.recv_sf, sf)), like(call.recv_topk_idx, rows),
                like(call.recv_topk_weights, rows), handle, event_of(call.event, async_with_compute_stream))

    def _dispatch_new(self, rows: Any, sf: Any, topk_idx: Any, topk_weights: Any, num_experts: int | None, max_tokens: int | None,
                      options: dict[str, Any]) -> tuple[Any, EPHandle]:
        max_tokens = max_tokens or self.num_max_tokens_per_rank
        if topk_idx is None or num_experts is None or not max_tokens:
            raise InvalidArgumentError("dispatch: topk_idx, num_experts or num_max_tokens_per_rank is absent, must all be given without a "
                                       "handle, the last here or to the constructor")
        if self._native is None or max_tokens > self._max_tokens:
            if self._is_destroyed:
                raise InvalidArgumentError("ElasticBuffer: it was destroyed, must be open")
            if self._native is not None:
                self._outgrown.append(self._native)
            self._max_tokens = max(max_tokens, self.num_max_tokens_per_rank)
            self._device = device_of(rows)
            self._native = ElasticCalls(self._group, self._device, self._max_tokens, self.allow_multiple_reduction)
        call = self._native.dispatch(rows, topk_idx, num_experts, sf, topk_weights, {"num_max_tokens_per_rank": max_tokens, **options})
        return call, EPHandle(self._native, call, self._group, rows, {"num_experts": num_experts, **options})

    @names_wrong_types
    def combine(self, x: Any, handle: EPHandle, topk_weights: Any = None, bias: Any = None, num_sms: int = 0, num_qps: int = 0,
                previous_event: Any = None, previous_event_before_epilogue: Any = None, async_with_compute_stream: bool = False,
                allocate_on_comm_stream: bool = False) -> tuple[Any, Any, EventOverlap]:
        """Returns (combined_x bf16 [T, H], combined_topk_weights f32 [T, K] or None, event).

        x is bf16 [N, H]. topk_weights travel back and are not applied. `bias` is bf16 [T, H], a pair, or None.
        """
        del num_sms, num_qps, allocate_on_comm_stream
        for event in (previous_event, previous_event_before_epilogue):
            wait_for(event)
        require_handle("combine", handle, EPHandle)
        terms = [] if bias is None else [one for one in bias if one is not None] if isinstance(bias, tuple) else [bias]
        call = handle.native.combine(x, handle.call, topk_weights, terms)
        return like(call.combined_x, x), like(call.combined_topk_weights, x), event_of(call.event, async_with_compute_stream)


def _add_counts(stats: Any, handle: EPHandle) -> None:
    if stats is None:
        return
    if isinstance(stats, Tensor):
        raise refuse("dispatch", "cumulative_local_expert_recv_stats as a switchyard.Tensor", "it cannot be added to; pass numpy or torch")
    stats += handle.num_unaligned_recv_tokens_per_expert

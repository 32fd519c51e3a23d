# SPDX-License-Identifier: Apache-2.0
"""deep_ep.ElasticBuffer and its handles."""
from __future__ import annotations

from typing import Any

from switchyard import InvalidArgumentError, Tensor
from switchyard._native import ElasticCalls
from switchyard.compat._arrays import device_of, group_of, like, refuse
from switchyard.compat._deep_ep_values import EventHandle, EventOverlap, event_of, wait_for

_FROM_CALL = ("num_max_tokens_per_rank", "num_recv_tokens", "num_expanded_tokens", "num_recv_tokens_per_expert_list")
_TENSORS = ("topk_idx", "psum_num_recv_tokens_per_scaleup_rank", "psum_num_recv_tokens_per_expert",
            "num_unaligned_recv_tokens_per_expert", "recv_src_metadata", "dst_buffer_slot_idx")


class EPHandle:
    """What combine and later dispatches with the same routing need, with the original's fields but for the
    two of its hybrid mode. On GPUs recv_src_metadata and dst_buffer_slot_idx are None."""

    num_sms = 0

    def __init__(self, native: ElasticCalls, call: Any, sample: Any, do_expand: bool, num_experts: int, expert_alignment: int):
        self.native, self.call = native, call
        self.do_expand, self.num_experts, self.expert_alignment = do_expand, num_experts, expert_alignment
        for name in _FROM_CALL:
            setattr(self, name, getattr(call, name))
        for name in _TENSORS:
            setattr(self, name, like(getattr(call, name), sample))


class ElasticBuffer:
    """deep_ep.ElasticBuffer over the ranks of one host. Rows always have the order of deterministic=True.

    Byte counts, SMs, queue pairs and timeouts are accepted and ignored. Every rank makes the same calls in
    the same order, with equal sizes and options.
    """

    def __init__(self, group: Any, num_bytes: int | None = None, num_cpu_bytes: int = 0, num_max_tokens_per_rank: int = 0,
                 hidden: int = 0, num_topk: int = 0, use_fp8_dispatch: bool = False, deterministic: bool = False,
                 allow_hybrid_mode: bool = True, allow_multiple_reduction: bool = True, prefer_overlap_with_compute: bool = True,
                 sl_idx: int = 3, num_allocated_qps: int = 0, num_cpu_timeout_secs: int = 300, num_gpu_timeout_secs: int = 100,
                 explicitly_destroy: bool = False):
        del num_bytes, num_cpu_bytes, hidden, num_topk, use_fp8_dispatch, deterministic, sl_idx, num_allocated_qps
        del num_cpu_timeout_secs, num_gpu_timeout_secs, explicitly_destroy
        self.group = group
        self._group, self._owns_group = group_of(group)
        self.rank_idx, self.num_ranks = self._group.rank, self._group.size
        self.num_max_tokens_per_rank = num_max_tokens_per_rank
        self.allow_hybrid_mode, self.allow_multiple_reduction = allow_hybrid_mode, allow_multiple_reduction
        self.prefer_overlap_with_compute = prefer_overlap_with_compute
        self._native: ElasticCalls | None = None
        self._outgrown: list[ElasticCalls] = []  # handles may still need them
        self._max_tokens = 0
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
    def capture() -> EventOverlap:
        """An event behind what the current stream has so far."""
        return EventOverlap(EventHandle())

    def barrier(self, *_: Any, **__: Any) -> None:
        """Returns when every rank has called it."""
        self._group.barrier()

    def dispatch(self, x: Any, topk_idx: Any = None, topk_weights: Any = None, cumulative_local_expert_recv_stats: Any = None,
                 num_experts: int | None = None, num_max_tokens_per_rank: int | None = None, expert_alignment: int | None = None,
                 num_sms: int = 0, num_qps: int = 0, previous_event: Any = None, previous_event_before_epilogue: Any = None,
                 async_with_compute_stream: bool = False, allocate_on_comm_stream: bool = False, handle: EPHandle | None = None,
                 do_handle_copy: bool = True, do_cpu_sync: bool | None = None, do_expand: bool = False, do_zero_padding: bool = False,
                 use_tma_aligned_col_major_sf: bool = False) -> tuple[Any, Any, Any, EPHandle, EventOverlap]:
        """Returns (recv_x, recv_topk_idx, recv_topk_weights, handle, event).

        x is bf16 [T, H], or (e4m3 [T, H], sf [T, S]); then recv_x is a pair too. With a handle the routing
        and the options are those of its dispatch, and topk_idx must be None.
        """
        del num_sms, num_qps, allocate_on_comm_stream, do_handle_copy
        rows, sf = x if isinstance(x, tuple) else (x, None)
        for event in (previous_event, previous_event_before_epilogue):
            wait_for(event)
        if handle is not None:
            if topk_idx is not None:
                raise InvalidArgumentError("dispatch: topk_idx is given with a handle, which has the routing; pass None")
            if do_cpu_sync:
                raise InvalidArgumentError("dispatch: do_cpu_sync is set with a handle, whose counts are known; leave it out")
            call = handle.native.dispatch_again(rows, handle.call, sf, topk_weights)
        else:
            call, handle = self._dispatch_new(rows, sf, topk_idx, topk_weights, num_experts, num_max_tokens_per_rank, {
                "expert_alignment": 1 if expert_alignment is None else expert_alignment, "do_expand": do_expand,
                "do_cpu_sync": do_cpu_sync is None or do_cpu_sync, "do_zero_padding": do_zero_padding,
                "use_tma_aligned_col_major_sf": use_tma_aligned_col_major_sf})
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
            self._native = ElasticCalls(self._group, device_of(rows), self._max_tokens, self.allow_multiple_reduction)
        call = self._native.dispatch(rows, topk_idx, num_experts, sf, topk_weights, {"num_max_tokens_per_rank": max_tokens, **options})
        return call, EPHandle(self._native, call, rows, options["do_expand"], num_experts, options["expert_alignment"])

    def combine(self, x: Any, handle: EPHandle, topk_weights: Any = None, bias: Any = None, num_sms: int = 0, num_qps: int = 0,
                previous_event: Any = None, previous_event_before_epilogue: Any = None, async_with_compute_stream: bool = False,
                allocate_on_comm_stream: bool = False) -> tuple[Any, Any, EventOverlap]:
        """Returns (combined_x bf16 [T, H], combined_topk_weights f32 [T, K] or None, event).

        x is bf16 [N, H]. topk_weights travel back and are not applied. `bias` is bf16 [T, H], a pair, or None.
        """
        del num_sms, num_qps, allocate_on_comm_stream
        for event in (previous_event, previous_event_before_epilogue):
            wait_for(event)
        terms = [] if bias is None else [one for one in bias if one is not None] if isinstance(bias, tuple) else [bias]
        call = handle.native.combine(x, handle.call, topk_weights, terms)
        return like(call.combined_x, x), like(call.combined_topk_weights, x), event_of(call.event, async_with_compute_stream)


def _add_counts(stats: Any, handle: EPHandle) -> None:
    if stats is None:
        return
    if isinstance(stats, Tensor):
        raise refuse("dispatch", "cumulative_local_expert_recv_stats as a switchyard.Tensor", "it cannot be added to; pass numpy or torch")
    stats += handle.num_unaligned_recv_tokens_per_expert

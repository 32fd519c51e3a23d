# SPDX-License-Identifier: Apache-2.0
"""deep_ep.Buffer: low-latency and high-throughput calls."""
from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy

from switchyard import InvalidArgumentError, NotSupportedError
from switchyard._native import HighThroughputBuffer, LowLatencyBuffer, low_latency_rdma_size_hint
from switchyard.compat._arrays import (as_bool, device_of, group_of, like, names_wrong_types, permuted, rank_ids, refuse,
                                       require_counts, require_handle, rows_and_scales, to_list)
from switchyard.compat._deep_ep_handle import HighThroughputHandle
from switchyard.compat._deep_ep_values import Config, EventHandle, EventOverlap, event_of, wait_for
from switchyard.compat._gather import Gather

_MASKS = ("ranks cannot be masked, because without their rows a result would look complete; "
          "a rank that does not come ends the group")
_MIN_TOKENS = 128


def _make_sources(buffer: LowLatencyBuffer, call: Any, sample: Any) -> tuple:
    buffer.set_source_info(call)
    return like(call.src_info, sample), like(call.layout_range, sample)


class LowLatencyHandle(tuple):
    """(src_info, layout_range, num_max_dispatch_tokens_per_rank, hidden, num_experts), and the dispatch.

    On GPUs the first two are made when they are first asked for, in the current stream, which must be before the
    combine: few programs want them, and their kernels would take longer than a small dispatch.
    """

    call: Any
    has_combine_buffer = False
    make_sources: Callable[[], tuple] | None = None
    _sources: tuple | None = None

    def _all(self) -> tuple:
        if self.make_sources is None:
            return tuple(super().__iter__())
        if self._sources is None:
            self._sources = self.make_sources()
        return (*self._sources, *super().__getitem__(slice(2, None)))

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, int) and (index >= 2 or -3 <= index < 0):
            return super().__getitem__(index)
        return self._all()[index]

    def __iter__(self) -> Any:
        return iter(self._all())


class Buffer:
    """deep_ep.Buffer over the ranks of one host or of several.

    Buffer sizes, queue pairs, SM counts and chunk sizes are accepted and ignored: memory is taken when a
    call first needs it. Every rank makes the same calls in the same order.
    """

    num_sms: int = 20

    def __init__(self, group: Any, num_nvl_bytes: int = 0, num_rdma_bytes: int = 0, low_latency_mode: bool = False,
                 num_qps_per_rank: int = 24, allow_nvlink_for_low_latency_mode: bool = True, allow_mnnvl: bool = False,
                 use_fabric: bool = False, explicitly_destroy: bool = False, enable_shrink: bool = False, comm: Any = None,
                 *, max_tokens_per_rank: int = 0):
        """`max_tokens_per_rank` is this library's own: an upper bound on the tokens of high-throughput calls,
        the same on every rank. 0: the ranks agree on one in each call that is given no `handle` and no
        `num_worst_tokens`, and the windows grow with it."""
        require_counts("Buffer", 0, num_nvl_bytes=num_nvl_bytes, num_rdma_bytes=num_rdma_bytes, num_qps_per_rank=num_qps_per_rank,
                       max_tokens_per_rank=max_tokens_per_rank)
        del num_qps_per_rank, allow_nvlink_for_low_latency_mode, allow_mnnvl, use_fabric
        self.group, self.explicitly_destroy, self.enable_shrink = group, explicitly_destroy, enable_shrink
        self.num_nvl_bytes, self.num_rdma_bytes, self.low_latency_mode = num_nvl_bytes, num_rdma_bytes, low_latency_mode
        self._group, self._owns_group = group_of(group, comm)
        self.rank, self.group_size = self._group.rank, self._group.size
        self._low_latency: LowLatencyBuffer | None = None
        self._throughput: HighThroughputBuffer | None = None
        self._outgrown: list[HighThroughputBuffer] = []  # handles may still need them
        self._max_tokens = 0
        self._bound = max_tokens_per_rank
        self._gather = Gather(self._group)
        self.vllm_manager: Any = None  # of classes of switchyard.compat.vllm over this buffer
        self._is_destroyed = False

    def destroy(self) -> None:
        """Frees the windows; what was received stays. Every rank calls it, or none."""
        for part in (self._low_latency, *self._outgrown, self._throughput, self._gather, self.vllm_manager):
            if part is not None:
                part.close()
        self._outgrown.clear()
        self._low_latency = self._throughput = None
        self._is_destroyed = True
        if self._owns_group:
            self._group.close()

    def _check_open(self) -> None:
        if self._is_destroyed:
            raise InvalidArgumentError("Buffer: it was destroyed, must be open")

    # What the original tunes, and this library does not need.

    @staticmethod
    def is_sm90_compiled() -> bool:
        """True: every format is there."""
        return True

    @staticmethod
    def set_num_sms(new_num_sms: int) -> None:
        """Kept, and without effect: the grid of a kernel follows the size of the call."""
        require_counts("set_num_sms", 0, new_num_sms=new_num_sms)
        if new_num_sms % 2:
            raise InvalidArgumentError(f"set_num_sms: new_num_sms is {new_num_sms}, must be even")
        Buffer.num_sms = new_num_sms

    @staticmethod
    def get_dispatch_config(num_ranks: int) -> Config:
        """A Config; it has no effect."""
        require_counts("get_dispatch_config", 1, num_ranks=num_ranks)
        return Config(Buffer.num_sms)

    get_combine_config = get_dispatch_config

    @staticmethod
    def capture() -> EventOverlap:
        """An event behind what the current stream has so far."""
        return EventOverlap(EventHandle())

    @staticmethod
    def get_low_latency_rdma_size_hint(num_max_dispatch_tokens_per_rank: int, hidden: int, num_ranks: int, num_experts: int) -> int:
        """Bytes that the original registers, by its own formula. No call here needs the number."""
        return low_latency_rdma_size_hint(num_max_dispatch_tokens_per_rank, hidden, num_ranks, num_experts)

    def get_comm_stream(self) -> Any:
        """torch's current stream: calls work in the stream of the caller."""
        import torch  # pylint: disable=import-outside-toplevel

        return (torch.cuda if torch.cuda.is_available() else torch.cpu).current_stream()

    def get_local_buffer_tensor(self, *_: Any, **__: Any) -> Any:
        """Not supported: windows hold several exchanges, whose layouts are internal."""
        raise NotSupportedError("get_local_buffer_tensor: windows are internal, must not be read; use what the calls return")

    # Low latency.

    @names_wrong_types
    def low_latency_dispatch(self, x: Any, topk_idx: Any, num_max_dispatch_tokens_per_rank: int, num_experts: int,
                             cumulative_local_expert_recv_stats: Any = None, dispatch_wait_recv_cost_stats: Any = None,
                             use_fp8: bool = True, round_scale: bool = False, use_ue8m0: bool = False,
                             async_finish: bool = False, return_recv_hook: bool = False, *, topk_weights: Any = None,
                             x_global_scale: Any = None, use_nvfp4: bool = False, use_ue8m0_for_sf: bool = False) -> tuple:
        """Sends each token to its experts; L local experts, C = ranks * num_max_dispatch_tokens_per_rank.

        Returns (recv_x, recv_count, handle, event, hook): recv_x is [L, C, H] bf16, or with use_fp8 the pair
        (e4m3 [L, C, H], scales f32 [L, C, H / 128], or i32 [L, C, H / 512] with use_ue8m0; column-major), or
        with use_nvfp4 the pair (u8 [C, H / 2, L], e4m3 [32, 4, C / 128, 4, H / 64, L]). recv_count is i32 [L].
        With topk_weights (recv_x, recv_count, recv_topk_weights f32 [L, C], recv_src_rank i32 [L, C], handle, event,
        hook). `hook` is None without return_recv_hook; until it has run, the contents of the tensors are undefined.
        The keywords, and the seven results, are those of DeepEP's branch hybrid-ep.
        """
        if use_ue8m0_for_sf:
            raise refuse("low_latency_dispatch", "use_ue8m0_for_sf", "scales of nvfp4 are e4m3; the format with e8m0 scales is mxfp4")
        if x_global_scale is not None and len(x_global_scale.shape) == 0:
            x_global_scale = x_global_scale.reshape(1)
        if self._low_latency is None:
            self._check_open()
            self._low_latency = LowLatencyBuffer(self._group, device_of(x))
        is_on_host = device_of(x).is_cpu
        call = self._low_latency.dispatch(
            x, topk_idx, num_max_dispatch_tokens_per_rank, num_experts, use_fp8=use_fp8 and not use_nvfp4, round_scale=round_scale,
            use_ue8m0=use_ue8m0, use_nvfp4=use_nvfp4, x_global_scale=x_global_scale, topk_weights=topk_weights,
            recv_stats=cumulative_local_expert_recv_stats, wait_stats=dispatch_wait_recv_cost_stats, async_finish=async_finish,
            return_recv_hook=return_recv_hook, sets_source_info=is_on_host)
        recv_x, scales = like(call.recv_x, x), like(call.scales, x)
        if use_nvfp4:
            recv_x, scales = permuted(recv_x, (1, 2, 0)), permuted(scales, (3, 4, 1, 5, 2, 0))
        recv_count, sizes = like(call.recv_count, x), (num_max_dispatch_tokens_per_rank, x.shape[1], num_experts)
        if is_on_host:
            handle = LowLatencyHandle((like(call.src_info, x), like(call.layout_range, x), *sizes))
        else:
            handle = LowLatencyHandle((None, None, *sizes))
            handle.make_sources = functools.partial(_make_sources, self._low_latency, call, recv_count)
        handle.call = call
        extra = () if topk_weights is None else (like(call.recv_topk_weights, x), like(call.recv_src_rank, x))
        return ((recv_x, scales) if scales is not None else recv_x, recv_count, *extra, handle,
                event_of(call.event, async_finish), call.receive if return_recv_hook else None)

    @names_wrong_types
    def low_latency_combine(self, x: Any, topk_idx: Any, topk_weights: Any, handle: LowLatencyHandle, use_logfmt: bool = False,
                            zero_copy: bool = False, async_finish: bool = False, return_recv_hook: bool = False, out: Any = None,
                            combine_wait_recv_cost_stats: Any = None) -> tuple[Any, EventOverlap, Callable[[], None] | None]:
        """Returns (combined_x, event, hook): bf16 [T, H], the weighted sum of each token's rows.

        x [L, C, H] bf16, one row per received row. With zero_copy the rows are read from what
        get_next_low_latency_combine_buffer returned for this handle, and travel like any others.
        """
        if combine_wait_recv_cost_stats is not None:
            raise refuse("low_latency_combine", "combine_wait_recv_cost_stats", "waits of a combine are not measured")
        if self._low_latency is None:
            raise InvalidArgumentError("low_latency_combine: nothing was dispatched, must follow low_latency_dispatch")
        require_handle("low_latency_combine", handle, LowLatencyHandle)
        if zero_copy and not handle.has_combine_buffer:
            raise InvalidArgumentError("low_latency_combine: zero_copy is set, but get_next_low_latency_combine_buffer was not called "
                                       "for this handle; call it and write the rows there")
        call = self._low_latency.combine(x, topk_idx, topk_weights, handle.call, use_logfmt=use_logfmt, zero_copy=zero_copy, out=out,
                                         async_finish=async_finish, return_recv_hook=return_recv_hook)
        return (out if out is not None else like(call.combined_x, x), event_of(call.event, async_finish),
                call.receive if return_recv_hook else None)

    def get_next_low_latency_combine_buffer(self, handle: LowLatencyHandle) -> Any:
        """[L, C, H] bf16 for results, to be used with zero_copy."""
        if self._low_latency is None:
            raise InvalidArgumentError("get_next_low_latency_combine_buffer: nothing was dispatched, must follow low_latency_dispatch")
        require_handle("get_next_low_latency_combine_buffer", handle, LowLatencyHandle)
        rows = like(self._low_latency.combine_buffer(handle.call), handle[0])
        handle.has_combine_buffer = True
        return rows

    def clean_low_latency_buffer(self, num_max_dispatch_tokens_per_rank: int, hidden: int, num_experts: int) -> None:
        """A barrier: windows never need cleaning."""
        del num_max_dispatch_tokens_per_rank, hidden, num_experts
        self._group.barrier()

    def low_latency_update_mask_buffer(self, rank_to_mask: int, mask: bool = False) -> None:
        """Does nothing while nobody is masked; masking a rank is not supported."""
        if mask:
            raise NotSupportedError(f"low_latency_update_mask_buffer: rank {rank_to_mask} is to be masked, but {_MASKS}")

    def low_latency_query_mask_buffer(self, mask_status: Any) -> None:
        """Fills the mask, i32 [P], with 0: nobody is masked."""
        if tuple(mask_status.shape) != (self.group_size,):
            raise InvalidArgumentError(f"low_latency_query_mask_buffer: mask_status has the shape {tuple(mask_status.shape)}, "
                                       f"must be ({self.group_size},)")
        mask_status[:] = 0

    def low_latency_clean_mask_buffer(self) -> None:
        """Does nothing: nobody is masked."""

    # High throughput.

    @names_wrong_types
    def get_dispatch_layout(self, topk_idx: Any, num_experts: int, previous_event: EventOverlap | None = None,
                            async_finish: bool = False, allocate_on_comm_stream: bool = False) -> tuple:
        """Returns (num_tokens_per_rank i32 [P], None, num_tokens_per_expert i32 [E], is_token_in_rank bool [T, P], event).
        dispatch does not need them. Not collective."""
        del allocate_on_comm_stream
        wait_for(previous_event)
        if self._throughput is None:
            self._grow(device_of(topk_idx), max(self._bound, _MIN_TOKENS))
        layout = self._throughput.get_layout(topk_idx, num_experts)
        return (like(layout.num_tokens_per_rank, topk_idx), None, like(layout.num_tokens_per_expert, topk_idx),
                as_bool(like(layout.is_token_in_rank, topk_idx)), event_of(layout.event, async_finish))

    @names_wrong_types
    def dispatch(self, x: Any, handle: HighThroughputHandle | None = None, num_tokens_per_rank: Any = None,
                 num_tokens_per_rdma_rank: Any = None, is_token_in_rank: Any = None, num_tokens_per_expert: Any = None,
                 topk_idx: Any = None, topk_weights: Any = None, expert_alignment: int = 1, num_worst_tokens: int = 0,
                 config: Config | None = None, previous_event: EventOverlap | None = None, async_finish: bool = False,
                 allocate_on_comm_stream: bool = False) -> tuple:
        """Sends each token once to every rank that holds one of its experts.

        x is bf16 [T, H], or (e4m3 [T, H], scales [T, S]). Returns (recv_x, recv_topk_idx, recv_topk_weights,
        num_recv_tokens_per_expert_list, handle, event); with a handle the middle four are None. Of the layout
        tensors only num_tokens_per_expert counts: its length is the number of experts. Without topk_idx a
        token goes to the ranks of is_token_in_rank, and the list is the ranks' sum of num_tokens_per_expert.
        """
        del num_tokens_per_rank, num_tokens_per_rdma_rank, config, allocate_on_comm_stream
        rows, scales = rows_and_scales(x)
        wait_for(previous_event)
        if handle is not None:
            if topk_idx is not None or topk_weights is not None:
                raise InvalidArgumentError("dispatch: topk_idx or topk_weights is given with a handle, which has the routing; pass neither")
            require_handle("dispatch", handle, HighThroughputHandle)
            call = handle.buffer.dispatch_again(rows, handle.call, x_scales=scales)
            return self._received(call, rows, scales), None, None, None, None, event_of(call.event, async_finish)
        if num_tokens_per_expert is None or (topk_idx is None and is_token_in_rank is None):
            raise InvalidArgumentError("dispatch: num_tokens_per_expert is absent, or both topk_idx and is_token_in_rank, must be given "
                                       "without a handle")
        if topk_idx is None:
            return self._dispatch_to_ranks(rows, scales, is_token_in_rank, num_tokens_per_expert, topk_weights, expert_alignment,
                                           num_worst_tokens, async_finish)
        self._reserve(rows, num_worst_tokens)
        call = self._throughput.dispatch(rows, topk_idx, num_tokens_per_expert.shape[0], x_scales=scales, topk_weights=topk_weights,
                                         expert_alignment=expert_alignment, num_worst_tokens=num_worst_tokens)
        return (self._received(call, rows, scales), like(call.recv_topk_idx, topk_idx), like(call.recv_topk_weights, topk_idx),
                call.counts, HighThroughputHandle(self._throughput, call, self.rank, topk_idx),
                event_of(call.event, async_finish))

    def _dispatch_to_ranks(self, rows: Any, scales: Any, is_token_in_rank: Any, num_tokens_per_expert: Any, topk_weights: Any,
                           expert_alignment: int, num_worst_tokens: int, async_finish: bool) -> tuple:
        """A dispatch without ids: each rank is one expert. What the experts get is known only from the callers' counts."""
        if topk_weights is not None or num_worst_tokens:
            raise InvalidArgumentError("dispatch: topk_weights or num_worst_tokens is given without topk_idx, must come with it")
        gathered = self._gather((rows.shape[0], *to_list(num_tokens_per_expert)))
        self._reserve(rows, 0, int(gathered[:, 0].max()))
        ids = rank_ids(is_token_in_rank)
        call = self._throughput.dispatch(rows, ids, self.group_size, x_scales=scales, topk_weights=None, expert_alignment=1,
                                         num_worst_tokens=0)
        counts = gathered[:, 1:].sum(axis=0)
        mine = numpy.array_split(counts, self.group_size)[self.rank]  # as experts are split: the first ranks may have one more
        return (self._received(call, rows, scales), None, None, (-(-mine // expert_alignment) * expert_alignment).tolist(),
                HighThroughputHandle(self._throughput, call, self.rank, ids), event_of(call.event, async_finish))

    @names_wrong_types
    def combine(self, x: Any, handle: HighThroughputHandle, topk_weights: Any = None, bias: Any = None, config: Config | None = None,
                previous_event: EventOverlap | None = None, async_finish: bool = False, allocate_on_comm_stream: bool = False) -> tuple:
        """Returns (combined_x bf16 [T, H], combined_topk_weights f32 [T, K] or None, event).

        combined_x[t] = bias + one row from each rank that received the token, in f32, rounded once. `bias`
        is bf16 [T, H], a pair of them, or None.
        """
        del config, allocate_on_comm_stream
        wait_for(previous_event)
        require_handle("combine", handle, HighThroughputHandle)
        terms = [] if bias is None else [one for one in bias if one is not None] if isinstance(bias, tuple) else [bias]
        call = handle.buffer.combine(x, handle.call, topk_weights=topk_weights, bias=terms)
        return like(call.combined_x, x), like(call.combined_topk_weights, x), event_of(call.event, async_finish)

    def internode_dispatch(self, *_: Any, **__: Any) -> Any:
        """Not supported: what the original's dispatch calls between hosts; call dispatch."""
        raise NotSupportedError("internode_dispatch: is a part of the original's dispatch, must not be called; dispatch serves ranks of "
                                "one host and of several")

    def internode_combine(self, *_: Any, **__: Any) -> Any:
        """Not supported: what the original's combine calls between hosts; call combine."""
        raise NotSupportedError("internode_combine: is a part of the original's combine, must not be called; combine serves ranks of "
                                "one host and of several")

    @staticmethod
    def _received(call: Any, rows: Any, scales: Any) -> Any:
        return like(call.recv_x, rows) if scales is None else (like(call.recv_x, rows), like(call.scales, scales))

    def _reserve(self, rows: Any, num_worst_tokens: int, largest: int | None = None) -> None:
        """Windows for this call: what every rank computes is the same. `largest`: of the ranks' T, if it is known."""
        self._check_open()
        if self._bound:
            needed = self._bound
        elif num_worst_tokens:
            needed = -(-num_worst_tokens // self.group_size)
        else:
            needed = self._gather.largest(rows.shape[0]) if largest is None else largest
        if self._throughput is None or needed > self._max_tokens:
            tokens = needed if self._bound else max(_MIN_TOKENS, 1 << (needed - 1).bit_length())
            self._grow(device_of(rows), tokens)

    def _grow(self, device: Any, max_tokens: int) -> None:
        self._check_open()
        if self._throughput is not None:
            self._outgrown.append(self._throughput)
        self._throughput, self._max_tokens = HighThroughputBuffer(self._group, device, max_tokens, 2), max_tokens

# SPDX-License-Identifier: Apache-2.0
"""DeepEP's events and tuning configuration."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

from switchyard import InvalidArgumentError
from switchyard._native import CompatEvent
from switchyard.compat._arrays import require_counts

_MAX_TOPK = 128
_MAX_SCALES = 128
_NVL_RANKS = 8
_SOURCE_META_BYTES = 8


class EventHandle:
    """An event behind what the current stream has so far. On CPUs work is done when a call returns."""

    def __init__(self, native: CompatEvent | None = None):
        self._native = native if native is not None else _capture()

    def current_stream_wait(self) -> None:
        """What comes next in the current stream waits for the event."""
        self._native.wait()


def _capture() -> CompatEvent:
    try:
        import torch  # pylint: disable=import-outside-toplevel
    except ImportError:
        return CompatEvent()
    if not torch.cuda.is_available():
        return CompatEvent()
    return CompatEvent(f"cuda:{torch.cuda.current_device()}", torch.cuda.current_stream())


class EventOverlap:
    """An event to wait for, or nothing. As a context manager it waits at the end of the block."""

    def __init__(self, event: EventHandle | None = None, extra_tensors: tuple[Any, ...] | None = None):
        self.event = event
        self.extra_tensors = extra_tensors  # kept alive with the event
        self.hook_after_wait: Callable[[], Any] | None = None
        self._releases_at_exit = False

    def current_stream_wait(self, release_handle: bool = False) -> None:
        """What comes next in the current stream waits for the event; then the registered hook runs, once.

        release_handle: the event is dropped afterwards.
        """
        if self.event is None:
            raise InvalidArgumentError("current_stream_wait: there is no event; ask the call for one with async_finish=True")
        self.event.current_stream_wait()
        hook, self.hook_after_wait = self.hook_after_wait, None
        if hook is not None:
            hook()
        if release_handle:
            self.event = None

    def register_hook_after_wait(self, hook_after_wait: Callable[[], Any]) -> None:
        """A function that the next current_stream_wait calls after the wait. At most one at a time."""
        if self.hook_after_wait is not None:
            raise InvalidArgumentError("register_hook_after_wait: there is a hook already, must be called once for each wait")
        self.hook_after_wait = hook_after_wait

    def __call__(self, release_handle: bool = False) -> EventOverlap:
        """`with event(release_handle=True):` drops the event after the wait."""
        self._releases_at_exit = release_handle
        return self

    def __enter__(self) -> EventOverlap:
        return self

    def __exit__(self, *_: Any) -> None:
        if self.event is not None:
            self.current_stream_wait(self._releases_at_exit)
        self._releases_at_exit = False


def event_of(native: CompatEvent, is_async: bool) -> EventOverlap:
    """What a call returns: an event only if the caller asked for one."""
    return EventOverlap(EventHandle(native) if is_async else None)


def wait_for(previous: EventOverlap | EventHandle | None) -> None:
    """Orders a call behind `previous_event`."""
    event = previous.event if isinstance(previous, EventOverlap) else previous
    if event is not None:
        event.current_stream_wait()


class Config:
    """The original's chunk sizes. They are accepted and ignored: this library chooses its own grids."""

    def __init__(self, num_sms: int = 20, num_max_nvl_chunked_send_tokens: int = 6, num_max_nvl_chunked_recv_tokens: int = 256,
                 num_max_rdma_chunked_send_tokens: int = 6, num_max_rdma_chunked_recv_tokens: int = 256):
        require_counts("Config", 0, num_sms=num_sms)
        require_counts("Config", 1, num_max_nvl_chunked_send_tokens=num_max_nvl_chunked_send_tokens,
                       num_max_nvl_chunked_recv_tokens=num_max_nvl_chunked_recv_tokens,
                       num_max_rdma_chunked_send_tokens=num_max_rdma_chunked_send_tokens,
                       num_max_rdma_chunked_recv_tokens=num_max_rdma_chunked_recv_tokens)
        self.num_sms = num_sms
        self.num_max_nvl_chunked_send_tokens = num_max_nvl_chunked_send_tokens
        self.num_max_nvl_chunked_recv_tokens = num_max_nvl_chunked_recv_tokens
        self.num_max_rdma_chunked_send_tokens = num_max_rdma_chunked_send_tokens
        self.num_max_rdma_chunked_recv_tokens = num_max_rdma_chunked_recv_tokens

    def get_nvl_buffer_size_hint(self, hidden_bytes: int, num_ranks: int) -> int:
        """Bytes that the original wants for NVLink, by its formula. No call here needs the number."""
        num_channels = self.num_sms // 2
        rdma_ranks, nvl_ranks = max(num_ranks // _NVL_RANKS, 1), min(num_ranks, _NVL_RANKS)
        per_token = hidden_bytes + _SOURCE_META_BYTES + _MAX_TOPK * 12 + _MAX_SCALES * 4
        total = num_channels * nvl_ranks * ((2 * rdma_ranks + 3) * 4 + self.num_max_nvl_chunked_recv_tokens * per_token)
        return -(-total // 128) * 128

    def get_rdma_buffer_size_hint(self, hidden_bytes: int, num_ranks: int) -> int:  # pylint: disable=unused-argument
        """0: ranks of one NVLink host need no RDMA buffer."""
        return 0

# SPDX-License-Identifier: Apache-2.0
"""DeepEP's Python module: the same names, arguments, tuples, shapes, strides and dtypes, on CPUs and GPUs.

    from switchyard.compat import deep_ep             # or switchyard.compat.install(); import deep_ep

    buffer = deep_ep.Buffer(group, low_latency_mode=True)
    recv_x, recv_count, handle, event, hook = buffer.low_latency_dispatch(
        x, topk_idx, num_max_dispatch_tokens_per_rank, num_experts, use_fp8=False, return_recv_hook=True)
    hook()
    combined_x, event, hook = buffer.low_latency_combine(y, topk_idx, topk_weights, handle)

Groups are those of torch, mpi4py or switchyard. Received rows are memory of the library: valid until the
combine of their handle, instead of for good.
"""
from typing import Any

from switchyard.compat._deep_ep_buffer import Buffer
from switchyard.compat._deep_ep_elastic import ElasticBuffer, EPHandle, get_logical_domain_size, get_physical_domain_size
from switchyard.compat._deep_ep_values import Config, EventHandle, EventOverlap
from switchyard.compat.deep_ep import utils

__version__ = "2.1.0"  # of the original, whose calls these are

__all__ = ["Buffer", "Config", "ElasticBuffer", "EPHandle", "EventHandle", "EventOverlap", "get_logical_domain_size",
           "get_physical_domain_size", "utils"]


def __getattr__(name: str) -> Any:
    """topk_idx_t: torch.int64, or that of numpy where torch is not installed. torch is not imported before."""
    if name != "topk_idx_t":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        import torch as library  # pylint: disable=import-outside-toplevel
    except ImportError:
        import numpy as library  # pylint: disable=import-outside-toplevel
    return library.int64

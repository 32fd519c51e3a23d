# SPDX-License-Identifier: Apache-2.0
"""Switchyard: expert parallelism for Mixture-of-Experts layers, on CPUs and GPUs.

    import numpy as np
    import switchyard

    def rank(group):
        with switchyard.Exchange(group, num_experts=4, num_topk=2, hidden=8, max_tokens_per_rank=1) as exchange:
            received = exchange.dispatch(tokens, topk_ids, topk_weights)
            return exchange.combine(received, received.rows).numpy()

    switchyard.run_local(2, rank)

docs/python.md has a complete program. Arrays are those of any library; results are Tensor objects, which
numpy, torch, cupy and jax use without a copy.
"""
from switchyard._native import (
    Device,
    Dispatched,
    Exchange,
    ExchangeConfig,
    ExchangeOptions,
    ExpertRows,
    Group,
    Handle,
    HostCounts,
    QuantScheme,
    Tensor,
    build_summary,
    dequantize,
    num_cuda_devices,
    quantize,
)
from switchyard._native import version as _version
from switchyard.errors import (
    AbortedError,
    CapacityExceededError,
    Error,
    InternalError,
    InvalidArgumentError,
    MalformedFileError,
    NotAvailableError,
    NotSupportedError,
    OutOfMemoryError,
    PeerLostError,
    SystemCallError,
    TimeoutError,
    WorkspaceTooSmallError,
)
from switchyard.groups import run_local

__version__ = _version()

# Users see the names of this module.
for _name, _object in list(globals().items()):
    if isinstance(_object, type) and _object.__module__ == "switchyard._native":
        _object.__module__ = "switchyard"
del _name, _object

# SPDX-License-Identifier: Apache-2.0
"""Types of arguments, for annotations."""
from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Protocol, Union, runtime_checkable


@runtime_checkable
class SupportsDLPack(Protocol):
    """Any array of numpy, torch, cupy, jax and others."""

    def __dlpack__(self, *args: Any, **kwargs: Any) -> Any: ...

    def __dlpack_device__(self) -> tuple[int, int]: ...


class StoreObject(Protocol):
    """A key-value store that all ranks share."""

    def set(self, key: str, value: str) -> Any: ...

    def get(self, key: str, timeout_ms: int) -> str | None: ...


# A switchyard.Tensor, or an array of any library; ml_dtypes arrays and fp8 torch tensors too.
Array = Any
# "cpu", "cuda:0", a switchyard.Device or a torch.device.
DeviceLike = Any
# "bf16" or "bfloat16", or a dtype of numpy, ml_dtypes or torch.
DTypeLike = Any
# A switchyard.QuantScheme or its name.
SchemeLike = Any
# A cudaStream_t as an int, or an object with __cuda_stream__, cuda_stream (torch) or ptr (cupy).
StreamLike = Any
StoreLike = Union[str, os.PathLike, StoreObject, tuple[Callable[[str, str], Any], Callable[[str, int], "str | None"]]]

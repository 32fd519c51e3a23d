# SPDX-License-Identifier: Apache-2.0
"""Tensors as arrays of numpy and torch, over the same memory."""
import numpy

_OWN_NUMPY = {"f32", "f16", "i8", "u8", "u16", "i32", "i64", "e2m1"}  # e2m1: bytes with two elements
_ML_DTYPES = {"bf16": "bfloat16", "e4m3": "float8_e4m3fn", "e5m2": "float8_e5m2", "e8m0": "float8_e8m0fnu"}


def to_numpy(tensor):
    """Returns the memory of a CPU tensor as a numpy array."""
    if not tensor.device.is_cpu:
        raise TypeError(f"{tensor!r} is not on the CPU; say to('cpu') first")
    bits = numpy.asarray(tensor)
    if tensor.dtype in _OWN_NUMPY:
        return bits
    import ml_dtypes  # pylint: disable=import-outside-toplevel

    return bits.view(getattr(ml_dtypes, _ML_DTYPES[tensor.dtype]))


def to_torch(tensor):
    """Returns the memory of a tensor as a torch tensor."""
    import torch  # pylint: disable=import-outside-toplevel

    if tensor.dtype in ("f32", "f16", "bf16", "i8", "u8", "i32", "i64"):
        return torch.from_dlpack(tensor)
    if tensor.dtype == "u16":
        return torch.from_dlpack(tensor)
    name = _ML_DTYPES.get(tensor.dtype)  # older versions have fp8 but do not import it
    return _as_bytes(torch, tensor) if name is None else _as_bytes(torch, tensor).view(getattr(torch, name))


def _as_bytes(torch, tensor):
    return torch.from_dlpack(tensor.view("u8"))

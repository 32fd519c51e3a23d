# SPDX-License-Identifier: Apache-2.0
"""Tensors as arrays of numpy and torch, over the same memory."""
import numpy

_OWN_NUMPY = {"f32", "f16", "i8", "u8", "u16", "i32", "i64", "e2m1"}  # e2m1: bytes with two elements
_ML_DTYPES = {"bf16": "bfloat16", "e4m3": "float8_e4m3fn", "e5m2": "float8_e5m2", "e8m0": "float8_e8m0fnu"}
_OF_TORCH = {"f32": "float32", "f16": "float16", "i8": "int8", "u8": "uint8", "u16": "uint16", "i32": "int32", "i64": "int64",
             **_ML_DTYPES}


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
    """Returns the memory of a tensor as a torch tensor; as bytes where torch has no such dtype."""
    import torch  # pylint: disable=import-outside-toplevel

    dtype = getattr(torch, _OF_TORCH.get(tensor.dtype, ""), None)
    if dtype is None:
        tensor, dtype = tensor.view("u8"), torch.uint8
    memory = tensor._torch_memory()  # pylint: disable=protected-access
    if memory is not None:
        return _part_of(torch, memory, dtype, tensor)
    if tensor.dtype in ("e4m3", "e5m2", "e8m0"):  # torch has fp8 but not all versions import it
        return torch.from_dlpack(tensor.view("u8")).view(dtype)
    return torch.from_dlpack(tensor)


def _part_of(torch, memory, dtype, tensor):
    """What a tensor shows of torch's own memory, of which torch's allocator then knows all users."""
    storage = memory.untyped_storage()
    offset = (tensor.data_ptr() - storage.data_ptr()) // dtype.itemsize
    return torch.empty(0, dtype=dtype, device=memory.device).set_(storage, offset, tensor.shape, tensor.strides)

# SPDX-License-Identifier: Apache-2.0
"""Tensors as arrays of numpy and torch, over the same memory, and small arrays of numbers as lists."""
import reprlib

import numpy

from switchyard._native import Tensor
from switchyard.errors import ArgumentTypeError, InvalidArgumentError

_OWN_NUMPY = {"f32", "f16", "i8", "u8", "u16", "i32", "i64", "e2m1"}  # e2m1: bytes with two elements
_ML_DTYPES = {"bf16": "bfloat16", "e4m3": "float8_e4m3fn", "e5m2": "float8_e5m2", "e8m0": "float8_e8m0fnu"}
_OF_TORCH = {"f32": "float32", "f16": "float16", "i8": "int8", "u8": "uint8", "u16": "uint16", "i32": "int32", "i64": "int64",
             **_ML_DTYPES}


def to_numpy(tensor):
    """Returns the memory of a CPU tensor as a numpy array."""
    if not tensor.device.is_cpu:
        raise ArgumentTypeError(f"{tensor!r} is not on the CPU; say to('cpu') first")
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


def whole_numbers(values, name):
    """Returns a list, or an array of any library and type, as ints."""
    array = _numbers(values, name)
    if array.ndim != 1:
        raise InvalidArgumentError(f"{name} has the shape {array.shape}, must have one dimension")
    return _as_ints(array, name)


def loads(values, name):
    """Returns ([layers][experts], whether `values` has layers): ints in the ratios of `values`, which may be fractions."""
    array = _numbers(values, name)
    if array.ndim not in (1, 2) or not array.shape[0]:
        raise InvalidArgumentError(f"{name} has the shape {array.shape}, must be [experts] or [layers, experts]")
    if array.dtype.kind == "u" and (array > 2**63 - 1).any():
        array = array.astype(numpy.float64)
    layers = array.reshape(-1, array.shape[-1])
    if array.dtype.kind == "f":
        layers = [_scaled(layer, name) for layer in layers]
    return [_as_ints(numpy.asarray(layer), name) for layer in layers], array.ndim == 2


def _scaled(layer, name):
    """Fractions times a power of two, which keeps their ratios; the sum of 65535 of them fits into 63 bits."""
    bits = 46
    _refuse(layer, ~numpy.isfinite(layer), name, "a finite number")
    largest = float(numpy.abs(layer).max(initial=0.0))
    if largest < 2.0**bits and (layer == numpy.floor(layer)).all():
        return layer
    return numpy.rint(numpy.ldexp(layer.astype(numpy.float64), bits - int(numpy.frexp(largest)[1])))


def _numbers(values, name):
    values = _plain(values, name)
    try:
        array = numpy.array(values)
        if array.dtype == object and all(isinstance(value, int) for value in array.flat):
            array = array.astype(numpy.float64)  # larger than any integer type
    except (TypeError, ValueError, OverflowError):  # lists of several lengths
        array = None
    if array is None or array.dtype.kind not in "biuf" or array.ndim == 0:
        raise ArgumentTypeError(f"{name} is {reprlib.repr(values)}, must be a list or an array of numbers")
    return array


def _plain(values, name, depth=0):
    """Python's numbers for arrays, lists of arrays too: numpy would read the memory of freed tensors."""
    if isinstance(values, (list, tuple)):
        if depth == 2:
            raise ArgumentTypeError(f"{name} has lists in lists of lists, must be a list or an array of numbers")
        return [_plain(value, name, depth + 1) for value in values]
    if isinstance(values, Tensor):
        values = to_numpy(values.to("cpu"))
    if not hasattr(values, "tolist"):
        return values
    try:
        if hasattr(values, "untyped_storage") and values.numel() and not values.untyped_storage().nbytes():
            raise RuntimeError("its storage is freed")
        return values.tolist()
    except (RuntimeError, NotImplementedError) as error:  # of torch: sparse, freed or on "meta"
        reason = str(error).split("\n", maxsplit=1)[0]
        raise InvalidArgumentError(f"{name} shows no values ({reason}), must be an array with memory, or a list of them") from error


def _as_ints(array, name):
    wrong = numpy.zeros(array.shape, bool)
    if array.dtype.kind == "u":
        wrong = array > 2**63 - 1
    elif array.dtype.kind == "f":
        wrong = (array != numpy.floor(array)) | (numpy.abs(array) >= 2.0**63)
    _refuse(array, wrong, name, "a whole number below 2^63")
    return array.astype(numpy.int64).tolist()


def _refuse(array, wrong, name, wanted):
    if wrong.any():
        at = int(numpy.argmax(wrong))
        raise InvalidArgumentError(f"{name}[{at}] is {array[at]}, must be {wanted}")

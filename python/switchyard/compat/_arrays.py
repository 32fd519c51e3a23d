# SPDX-License-Identifier: Apache-2.0
"""Results as the kind of array that the arguments are, devices of arrays, groups from what callers have."""
from __future__ import annotations

import functools
import inspect
import operator
from collections.abc import Callable
from typing import Any, TypeVar

import numpy

from switchyard import Device, Group, InvalidArgumentError, NotSupportedError, Tensor
from switchyard.errors import ArgumentTypeError, Error

# Of errors that do not say which argument of the drop-in it was.
_WITHOUT_NAMES = ("incompatible function arguments", "Tensor.wrap: ")
Function = TypeVar("Function", bound=Callable[..., Any])


def is_torch(array: Any) -> bool:
    """Whether it is a torch tensor; torch is not imported for that."""
    return _is_torch(type(array))


@functools.cache
def _is_torch(kind: type) -> bool:
    return any(base.__module__ == "torch" and base.__name__ == "Tensor" for base in kind.__mro__)


def device_of(array: Any) -> Device:
    """Where an array lies."""
    if isinstance(array, Tensor):
        return array.device
    if is_torch(array):
        index = array.get_device()
        return Device("cpu" if index < 0 else f"cuda:{index}")
    if isinstance(array, numpy.ndarray):
        return Device("cpu")
    return Tensor.wrap(array).device


def like(tensor: Tensor | None, sample: Any) -> Any:
    """The memory of a Tensor, or of None, as the kind of array that `sample` is."""
    if tensor is None or isinstance(sample, Tensor):
        return tensor
    if is_torch(sample):
        return tensor.torch()
    if isinstance(sample, numpy.ndarray):
        return tensor.numpy()
    return _from_dlpack(type(sample).__module__.partition(".")[0])(tensor)


@functools.cache
def _from_dlpack(module: str):
    import importlib  # pylint: disable=import-outside-toplevel

    return importlib.import_module(module).from_dlpack


def copy_into(target: Any, source: Any) -> None:
    """Writes an array into another of its shape and kind."""
    if tuple(target.shape) != tuple(source.shape):
        raise InvalidArgumentError(f"output: its shape is {tuple(target.shape)}, must be {tuple(source.shape)}")
    if is_torch(target):
        target.copy_(source)
    elif isinstance(target, Tensor):
        copy_into(target.numpy() if not target.device.is_cuda else target.torch(),
                  source.numpy() if not target.device.is_cuda else source.torch())
    else:
        target[...] = source


def as_bool(array: Any) -> Any:
    """u8 of 0 and 1 as truth values, over the same memory. A switchyard.Tensor has no such dtype and stays."""
    if isinstance(array, Tensor):
        return array
    if is_torch(array):
        import torch  # pylint: disable=import-outside-toplevel

        return array.view(torch.bool)
    return array.view(bool)


def plain(array: Any) -> Any:
    """An array that can be computed with: of numpy, or of torch."""
    if isinstance(array, Tensor):
        return array.torch() if array.device.is_cuda else array.numpy()
    return array if is_torch(array) else numpy.asarray(array)


def library_of(array: Any) -> Any:
    """numpy, or torch for its tensors."""
    if not is_torch(array):
        return numpy
    import torch  # pylint: disable=import-outside-toplevel

    return torch


def to_list(array: Any) -> list:
    """The values on the host; on GPUs it waits for them."""
    return plain(array).tolist()


def rank_ids(is_in_rank: Any) -> Any:
    """Truth values [T, P] as ids [T, P]: r where column r is set, -1 elsewhere."""
    array = plain(is_in_rank)
    library, place = library_of(array), {"device": array.device} if is_torch(array) else {}
    return library.where(array != 0, library.arange(array.shape[1], **place), -1)


def permuted(array: Any, dims: tuple[int, ...]) -> Any:
    """The dimensions of an array in another order, over the same memory."""
    if isinstance(array, Tensor):
        return Tensor.from_pointer(array.data_ptr(), array.dtype, [array.shape[dim] for dim in dims],
                                   [array.strides[dim] for dim in dims], array.device, owner=array)
    return array.permute(*dims) if is_torch(array) else array.transpose(dims)


def group_of(group: Any, comm: Any = None) -> tuple[Group, bool]:
    """A Group over torch's, mpi4py's or switchyard's ranks, and whether it was made here."""
    if isinstance(group, Group):
        return group, False
    communicator = comm if group is None else group
    if hasattr(communicator, "Get_rank"):
        return Group.from_mpi(communicator), True
    return Group.from_torch(communicator), True


def refuse(function: str, argument: str, why: str) -> NotSupportedError:
    """The error for an argument that the library does not support."""
    return NotSupportedError(f"{function}: {argument} is given, must not be: {why}")


def rows_and_scales(x: Any) -> tuple[Any, Any]:
    """DeepEP's x: rows, or a pair with their scales."""
    if not isinstance(x, tuple):
        return x, None
    if len(x) != 2:
        raise InvalidArgumentError(f"dispatch: x is a tuple of {len(x)}, must be rows or (rows, scales)")
    return x


def require_handle(function: str, handle: Any, kind: type) -> None:
    """Raises unless the handle is one that a dispatch returned."""
    if not isinstance(handle, kind):
        raise ArgumentTypeError(f"{function}: handle is a {type(handle).__name__}, must be what dispatch returned")


def require_counts(function: str, smallest: int, /, **given: Any) -> None:
    """Raises unless all are whole numbers from `smallest`."""
    for name, value in given.items():
        if not hasattr(value, "__index__"):
            raise ArgumentTypeError(f"{function}: {name} is {_shown(value)}, must be int")
        if operator.index(value) < smallest:
            raise InvalidArgumentError(f"{function}: {name} is {value}, must be at least {smallest}")


def names_wrong_types(function: Function) -> Function:
    """Where a call fails because an argument is not of its annotated type, the error is an ArgumentTypeError that names it. A
    call that succeeds pays for no check."""

    @functools.wraps(function)
    def call(*args, **kwargs):
        try:
            return function(*args, **kwargs)
        except (AttributeError, TypeError, ValueError) as error:
            says_why = isinstance(error, Error) and not any(words in str(error) for words in _WITHOUT_NAMES)
            wrong = None if says_why else _wrong_type(function, args, kwargs)
            if wrong is None:
                raise
            raise wrong from error

    return call  # type: ignore[return-value]


def _wrong_type(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> ArgumentTypeError | None:
    signature = inspect.signature(function)
    try:
        given = signature.bind(*args, **kwargs).arguments
    except TypeError:  # Python's own words are right
        return None
    given.pop("self", None)
    for name, value in given.items():
        kind, default = signature.parameters[name].annotation, signature.parameters[name].default
        if not _has_type(value, kind, default):
            wanted = kind if not kind.startswith("Any") else "given" if value is None else "an array or an object"
            return ArgumentTypeError(f"{function.__name__}: {name} is {_shown(value)}, must be {wanted}")
    return None


def _has_type(value: Any, kind: str, default: Any) -> bool:
    if value is None and kind.endswith(" | None"):
        return True
    kind = kind.removesuffix(" | None")
    if kind == "Any":
        return default is None if value is None else not isinstance(value, (list, str, int, float))
    if kind == "int":
        return hasattr(value, "__index__")
    return any(base.__name__ == kind.partition("[")[0] for base in (*type(value).__mro__, *((list,) if isinstance(value, tuple) else ())))


def _shown(value: Any) -> str:
    return repr(value) if value is None or isinstance(value, (str, float)) else f"a {type(value).__name__}"

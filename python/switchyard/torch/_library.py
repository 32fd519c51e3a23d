# SPDX-License-Identifier: Apache-2.0
"""How an operator is registered with torch."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numpy
import torch

from switchyard.errors import ArgumentTypeError

Function = TypeVar("Function", bound=Callable[..., Any])


def operator(schema: str, fake: Callable[..., Any]) -> Callable[[Function], Function]:
    """Makes the decorated function torch.ops.switchyard.<name>, on CPUs and GPUs.

    schema  "name(Tensor x) -> Tensor"; the operator changes none of its arguments and returns new memory
    fake    returns tensors of the same shapes, strides, dtypes and device for tensors without memory
    """
    name, signature = "switchyard::" + schema[: schema.index("(")], schema[schema.index("("):]

    def register(function: Function) -> Function:
        torch.library.define(name, signature, tags=(torch.Tag.pt2_compliant_tag,))
        torch.library.impl(name, ("cpu", "cuda"), function)
        torch.library.register_fake(name, fake)
        return function

    return register


TENSOR = (torch.Tensor,)
MAYBE_TENSOR = (torch.Tensor, type(None))
NAME = (str,)
SIZE = (int, torch.SymInt, numpy.integer)
"""Symbols while torch compiles."""


def require_type(function: str, types: tuple[type, ...], /, **given: Any) -> None:
    """ArgumentTypeError for the first argument that is none of the types. Torch's own error is a RuntimeError."""
    for name, value in given.items():
        if not isinstance(value, types):
            shown = "None" if value is None else f"a {type(value).__name__}"
            raise ArgumentTypeError(f"{function}: {name} is {shown}, must be a {types[0].__name__}")


def without_gradient(name: str) -> None:
    """Results of this operator are constants to autograd."""

    def keep(ctx: Any, inputs: Any, output: Any) -> None:  # pylint: disable=unused-argument
        ctx.mark_non_differentiable(*(output if isinstance(output, tuple) else (output,)))

    def gradient(ctx: Any, *_: Any) -> None:  # pylint: disable=unused-argument
        raise AssertionError(f"{name}: a constant has no gradient")

    torch.library.register_autograd(f"switchyard::{name}", gradient, setup_context=keep)

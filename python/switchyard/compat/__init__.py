# SPDX-License-Identifier: Apache-2.0
"""Modules with the names, arguments and results of others: ``deep_ep``.

Import them from here, or call ``install()`` once and leave the imports of a program as they are. Arrays are
tensors of torch, arrays of numpy (with ml_dtypes) or ``switchyard.Tensor``, on CPUs or GPUs; results are of
the kind that went in. docs/coming_from.md lists what differs.
"""
import importlib
import sys

_MODULES = {"deep_ep": "deep_ep"}


def install(*names: str) -> None:
    """Makes modules importable under their original names: "deep_ep", which is also the default.

    Raises ImportError when another module of that name has been imported.
    """
    for name in names or ("deep_ep",):
        if name not in _MODULES:
            raise ValueError(f"install: {name!r}, must be one of {', '.join(map(repr, _MODULES))}")
        module = importlib.import_module(f"switchyard.compat.{_MODULES[name]}")
        if sys.modules.setdefault(name, module) is not module:
            raise ImportError(f"install: another {name} is imported already; call install() before the first import of it")

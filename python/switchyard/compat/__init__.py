# SPDX-License-Identifier: Apache-2.0
"""Modules with the names, arguments and results of others: ``deep_ep``, ``flashinfer`` and ``deep_gemm``.

Import them from here, or call ``install()`` once and leave the imports of a program as they are. Arrays are
torch tensors, arrays of numpy (with ml_dtypes) or ``switchyard.Tensor``, on CPUs or GPUs; results are of
the kind that went in. docs/from_deep_ep.md and docs/from_flashinfer.md list what differs.
"""
import importlib
import sys

_MODULES = {"deep_ep": "deep_ep", "flashinfer.comm": "flashinfer"}
# Modules that programs import by their own names.
_PARTS = {"deep_ep": ("utils",), "flashinfer.comm": ("mapping", "mnnvl", "trtllm_alltoall", "trtllm_moe_alltoall")}


def install(*names: str) -> None:
    """Makes modules importable under their original names: "deep_ep", "flashinfer.comm"; none: "deep_ep".

    Raises ImportError when another module of that name has been imported. ``flashinfer.comm`` without the
    package flashinfer also makes an empty ``flashinfer``.
    """
    for name in names or ("deep_ep",):
        if name not in _MODULES:
            raise ValueError(f"install: {name!r}, must be one of {', '.join(map(repr, _MODULES))}")
        module = importlib.import_module(f"switchyard.compat.{_MODULES[name]}")
        if sys.modules.setdefault(name, module) is not module:
            raise ImportError(f"install: another {name} is imported already; call install() before the first import of it")
        for part in _PARTS[name]:
            sys.modules.setdefault(f"{name}.{part}", importlib.import_module(f"{module.__name__}.{part}"))
        package, _, part = name.rpartition(".")
        if package:
            parent = sys.modules.get(package) or _import_or_make(package)
            setattr(parent, part, module)


def _import_or_make(package: str):
    try:
        return importlib.import_module(package)
    except ModuleNotFoundError:
        made = type(sys)(package, f"Made by switchyard.compat.install(): {package} is not installed.")
        made.__path__ = []
        return sys.modules.setdefault(package, made)

# SPDX-License-Identifier: Apache-2.0
"""Modules with the names, arguments and results of others: ``deep_ep``, ``flashinfer`` and ``deep_gemm``.

Import them from here, or call ``install()`` once and leave the imports of a program as they are. Arrays are
torch tensors, arrays of numpy (with ml_dtypes) or ``switchyard.Tensor``, on CPUs or GPUs; results are of
the kind that went in. docs/from_deep_ep.md and docs/from_flashinfer.md list what differs.
"""
import importlib
import importlib.util
import pathlib
import sys

from switchyard.compat._overlay import overlay
from switchyard.errors import InvalidArgumentError

_MODULES = {"deep_ep": "deep_ep", "flashinfer.comm": "flashinfer", "deep_gemm": "deep_gemm"}
# Modules that programs import by their own names.
_PARTS = {"deep_ep": ("utils",), "flashinfer.comm": ("mapping", "mnnvl", "trtllm_alltoall", "trtllm_moe_alltoall"), "deep_gemm": ()}
_CALLS = ("trtllm_alltoall", "trtllm_moe_alltoall")  # of FlashInfer's own modules those that get our names
_FOUND = pathlib.Path(__file__).parent / "_found"


def install(*names: str) -> None:
    """Makes modules importable under their original names: "deep_ep", "flashinfer.comm", "deep_gemm"; none: "deep_ep".

    "deep_gemm" has the alignment and vLLM's permutation around the GEMM, not the GEMM itself.

    Raises ImportError when another module of that name has been imported. Where flashinfer is installed, only the
    all-to-all calls of its ``flashinfer.comm`` become these; without it there is a ``flashinfer`` with nothing else in it.
    Processes that multiprocessing spawns find the same modules, because they inherit ``sys.path``; not
    ``flashinfer.comm`` where flashinfer is installed, and not programs that are started otherwise: those call ``install()``
    themselves.
    """
    for name in names or ("deep_ep",):
        if name not in _MODULES:
            raise InvalidArgumentError(f"install: {name!r}, must be one of {', '.join(map(repr, _MODULES))}")
        package, _, part = name.rpartition(".")
        if package and _is_installed(package):
            overlay({f"{name}.{each}": f"switchyard.compat.{_MODULES[name]}.{each}" for each in _CALLS})
            continue
        module = importlib.import_module(f"switchyard.compat.{_MODULES[name]}")
        if sys.modules.setdefault(name, module) is not module:
            raise ImportError(f"install: another {name} is imported already; call install() before the first import of it")
        for each in _PARTS[name]:
            sys.modules.setdefault(f"{name}.{each}", importlib.import_module(f"{module.__name__}.{each}"))
        _show(package or name)
        if package:
            setattr(importlib.import_module(package), part, module)


def _is_installed(package: str) -> bool:
    spec = importlib.util.find_spec(package)
    return spec is not None and spec.origin != str(_FOUND / package / package / "__init__.py")


def _show(name: str) -> None:
    """Lets imports find the module, those of spawned processes too."""
    folder = str(_FOUND / name)
    if folder not in sys.path:
        sys.path.insert(0, folder)

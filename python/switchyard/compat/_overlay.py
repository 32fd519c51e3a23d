# SPDX-License-Identifier: Apache-2.0
"""Our names in modules of a package that is installed: what we do not have stays the package's own."""
import importlib
import importlib.machinery
import sys
from types import ModuleType


class _Finder:
    """Finds what the path has, and lets the modules of `ours` get our names once they are executed."""

    def __init__(self, ours: dict[str, str]):
        self._ours = ours

    def find_spec(self, name: str, path=None, target=None):
        """As importlib wants it."""
        if name not in self._ours:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def execute_and_replace(module: ModuleType) -> None:
                execute(module)
                _replace(module, self._ours[name])

            spec.loader.exec_module = execute_and_replace
        return spec


def overlay(ours: dict[str, str]) -> None:
    """For each module, the one of ours whose names it gets: now if it is imported, else when it is. In this process."""
    if any(isinstance(finder, _Finder) for finder in sys.meta_path):
        return
    sys.meta_path.insert(0, _Finder(ours))
    for name, own in ours.items():
        if name in sys.modules:
            _replace(sys.modules[name], own)
            _replace(sys.modules[name.rpartition(".")[0]], own, only_known=True)


def _replace(module: ModuleType, ours: str, only_known: bool = False) -> None:
    own = importlib.import_module(ours)
    for name in own.__all__:
        if hasattr(module, name) or not only_known:
            setattr(module, name, getattr(own, name))

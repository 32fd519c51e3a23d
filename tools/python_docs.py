#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the reference of the Python package as HTML; fails where a public name has no text.

usage: python_docs.py PACKAGE FOLDER    PACKAGE: the built package, with _native.pyi; pdoc must be installed

The extension module is read from its stub, which has the signatures and the texts of everything in it.
"""
import importlib.abc
import importlib.machinery
import importlib.util
import pathlib
import re
import sys
import types
import warnings

import pdoc

MODULES = ["switchyard", "switchyard.compat", "switchyard.torch", r"!.*\._.*"]  # what the other modules define is in `switchyard`


class StubLoader(importlib.machinery.SourceFileLoader):
    def source_to_code(self, data, path, *, _optimize=-1):
        return compile(b"from __future__ import annotations\n" + data, path, "exec", dont_inherit=True)


class StubFinder(importlib.abc.MetaPathFinder):
    def find_spec(self, fullname, path, target=None):
        if fullname != "switchyard._native":
            return None
        return importlib.util.spec_from_file_location(fullname, PACKAGE / "_native.pyi", loader=StubLoader(fullname, str(PACKAGE / "_native.pyi")))


class Absent(type):
    """Stands for a module that the package names but that need not be installed: its attributes are such types."""

    def __getattr__(cls, name):
        if name.startswith("__"):
            raise AttributeError(name)
        setattr(cls, name, Absent(name, (), {"__module__": f"{cls.__module__}.{cls.__name__}".lstrip(".")}))
        return cls.__dict__[name]

    def __call__(cls, *_, **__):
        return cls


def undocumented(doc):
    """Names the public members without a text. Constants need none, nor attributes of other libraries' classes, which are theirs."""
    members = doc.own_members if isinstance(doc, pdoc.doc.Class) else doc.members.values()
    for member in members:
        if member.name.startswith("_") or isinstance(member, pdoc.doc.Module):
            continue
        is_theirs = member.fullname.startswith("switchyard.compat.") and isinstance(member, pdoc.doc.Variable)
        is_inherited = any(hasattr(base, member.name) for base in getattr(doc.obj, "__mro__", ())[1:])
        if not (member.docstring or is_theirs or is_inherited or member.name.isupper()):
            yield member.fullname
        if isinstance(member, pdoc.doc.Class):
            yield from undocumented(member)


def keep_lists(text):
    """Indents lists of arguments ("name  what it is", aligned), so that Markdown keeps their lines."""
    lines, in_list = [], False
    for line in text.split("\n"):
        in_list = bool(re.match(r"[\w*, ]*\w {2,}\S", line)) or in_list and line.startswith("      ")
        lines.append("    " + line if in_list else line)
    return "\n".join(lines)


PACKAGE = pathlib.Path(sys.argv[1]).absolute()
sys.path.insert(0, str(PACKAGE.parent))
sys.dont_write_bytecode = True
sys.meta_path.insert(0, StubFinder())
for name in ("torch", "torch.distributed", "mpi4py", "mpi4py.MPI"):
    parent, _, part = name.rpartition(".")
    sys.modules[name] = getattr(sys.modules[parent], part) if parent else Absent(name, (), {"__module__": "", "__path__": []})
warnings.simplefilter("error")
warnings.filterwarnings("ignore", "Cannot determine where .* is taken from")  # fields of records, which have no place of their own
import switchyard  # pylint: disable=wrong-import-position

# The names that __init__ imports are the package's own.
switchyard.__all__ = [name for name, value in vars(switchyard).items() if name[0] != "_" and not isinstance(value, types.ModuleType)]
missing = [name for module in pdoc.extract.walk_specs(MODULES) for name in undocumented(pdoc.doc.Module(pdoc.extract.load_module(module)))]
if missing:
    sys.exit("python_docs: no text for " + ", ".join(missing))
pdoc.docstrings.convert = lambda text, *_: keep_lists(text)
pdoc.render.configure(show_source=False)
pdoc.pdoc(*MODULES, output_directory=pathlib.Path(sys.argv[2]))

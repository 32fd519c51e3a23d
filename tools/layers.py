#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks that #include lines of src/, cli/, examples/ and include/ point only downwards.

A folder of src/ may include folders of lower layers and public headers. Folders of one layer do not
include each other; SCALAR_USERS may include the scalar definitions of quant. Public headers and
examples include only the standard library and public headers; examples may also include the CUDA runtime, and
switchyard/mpi.h includes mpi.h.

usage: tools/layers.py [root]      Prints each violation as file:line: rule. Exits with 1 if there is any.
"""
import pathlib
import re
import sys

LAYERS = [  # lowest first; a layer's number is its position in this list, from 1
    {"core"},
    {"plan", "quant", "reference", "transport"},
    {"io"},
    {"cpu", "cuda"},
    {"engine"},
    {"device", "heap"},
    {"exchange"},
    {"moe"},
    {"capi", "compat", "module", "mpi"},
    {"conformance", "measure"},
    {"forecast"},
    {"cli"},
]
LEVEL = {folder: level for level, folders in enumerate(LAYERS, 1) for folder in folders}
SCALAR_USERS = {"reference", "plan"}
SCALAR_HEADERS = {"bits.h", "bf16.h", "f16.h", "fp8.h", "e8m0.h", "exp.h", "activation.h", "scalar.h", "scheme.h"}
INCLUDE = re.compile(r'\s*#\s*include\s*([<"])([^>"]+)[>"]')
# <vector>, <cstdint>: no slash, no dot. The C interface has C's own headers.
STANDARD = re.compile(r"([a-z_]+|std(bool|def|int)\.h)\Z")


OPT_IN = {("examples", "cuda_runtime_api.h"), ("include", "mpi.h")}  # the latter in switchyard/mpi.h alone


def offence(folder, quoted, target):
    """Returns the rule that an include breaks, or None. `folder` is one of LEVEL, "include" or "examples"."""
    is_public = target.startswith("switchyard/")
    if folder in ("include", "examples"):
        if (folder, target) in OPT_IN:
            return None
        if is_public or STANDARD.match(target) or (folder == "examples" and quoted and "/" not in target):
            return None
        return f'{folder}/ includes only the standard library and public headers, not "{target}"'
    other, slash, header = target.partition("/")
    if is_public or not quoted or not slash or other == folder:
        return None
    if other not in LEVEL:
        return f'"{target}" is in no known folder; add it to LAYERS'
    if LEVEL[other] < LEVEL[folder]:
        return None
    if other == "quant" and folder in SCALAR_USERS and header in SCALAR_HEADERS:
        return None
    way = "upwards" if LEVEL[other] > LEVEL[folder] else "sideways"
    return f'{folder} (layer {LEVEL[folder]}) includes {way}: "{target}" (layer {LEVEL[other]})'


def main(root):
    offences, num_files = [], 0
    for path in sorted(p for top in ("src", "cli", "examples", "include") for p in (root / top).rglob("*")):
        if path.suffix not in (".h", ".cpp", ".cu", ".cuh"):
            continue
        num_files += 1
        parts = path.relative_to(root).parts
        folder = parts[1] if parts[0] == "src" else parts[0]
        if folder not in LEVEL and folder not in ("include", "examples"):
            offences.append(f"{path.relative_to(root)}:1: src/{folder} is in no layer; add it to LAYERS")
            continue
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            found = INCLUDE.match(line)
            rule = found and offence(folder, found[1] == '"', found[2])
            if rule:
                offences.append(f"{path.relative_to(root)}:{number}: {rule}")
    print("\n".join(offences) if offences else f"layers: {num_files} files, every include points down")
    return 1 if offences or num_files == 0 else 0


if __name__ == "__main__":
    sys.exit(main(pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parent.parent)))

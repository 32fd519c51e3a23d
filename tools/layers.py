#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks that #include lines of src/, python/compat/, instruments/, cli/, examples/ and include/ point only downwards.

A folder may include folders of lower layers and public headers. Folders of one layer do not include
each other; plan may include the scalar definitions of quant. A folder of instruments/ sees of src/ only core and
the headers that GRANTED names. Public headers and examples include only the standard library and public headers; examples may also include the CUDA runtime, and
switchyard/mpi.h includes mpi.h.

usage: tools/layers.py [root]      Prints each violation as file:line: rule. Exits with 1 if there is any.
"""
import pathlib
import re
import sys

LAYERS = [  # lowest first; a layer's number is its position in this list, from 1
    {"core"},
    {"plan", "quant", "transport"},
    {"io"},
    {"cpu", "cuda"},
    {"engine"},
    {"device", "heap"},
    {"exchange"},
    {"moe"},
    {"capi", "compat", "module", "mpi"},
    {"reference"},
    {"conformance", "measure"},
    {"forecast"},
    {"cli"},
]
LEVEL = {folder: level for level, folders in enumerate(LAYERS, 1) for folder in folders}
SCALARS = {f"quant/{name}.h" for name in ("bits", "bf16", "f16", "fp8", "e8m0", "exp", "activation", "scalar", "scheme")}
GRANTED = {  # to the instruments
    "reference": SCALARS,
    "conformance": SCALARS | {"device/cuda_module.h", "engine/control.h"},
    "measure": SCALARS | {
        "cuda/exchange/stages.h", "device/cuda_module.h", "device/device_meter.h", "engine/control.h", "engine/engine.h",
        "io/model_config.h", "io/safetensors.h", "plan/expert_ownership.h", "plan/host_map.h", "quant/rows.h"},
    "forecast": SCALARS | {
        "exchange/push/crossing.h", "exchange/push/push_shape.h", "exchange/push/received_memory.h", "io/file.h", "io/json.h",
        "plan/cost.h", "plan/exchange_load.h", "plan/host_crossings.h", "plan/push_layout.h", "plan/push_path.h"},
}
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
    other, slash, _ = target.partition("/")
    if is_public or not quoted or not slash or other == folder:
        return None
    if other not in LEVEL:
        return f'"{target}" is in no known folder; add it to LAYERS'
    if folder in GRANTED and other not in GRANTED and other != "core" and target not in GRANTED[folder]:
        return f'{folder} is not granted "{target}"; use the public interface, or add it to GRANTED'
    if LEVEL[other] < LEVEL[folder] or (folder == "plan" and target in SCALARS):
        return None
    way = "upwards" if LEVEL[other] > LEVEL[folder] else "sideways"
    return f'{folder} (layer {LEVEL[folder]}) includes {way}: "{target}" (layer {LEVEL[other]})'


def main(root):
    offences, num_files = [], 0
    for path in sorted(p for top in ("src", "python/compat", "instruments", "cli", "examples", "include") for p in (root / top).rglob("*")):
        if path.suffix not in (".h", ".cpp", ".cu", ".cuh"):
            continue
        num_files += 1
        parts = path.relative_to(root).parts
        folder = parts[1] if parts[0] in ("src", "instruments", "python") else parts[0]
        if folder not in LEVEL and folder not in ("include", "examples"):
            offences.append(f"{path.relative_to(root)}:1: {parts[0]}/{folder} is in no layer; add it to LAYERS")
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

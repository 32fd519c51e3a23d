#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Computes the golden vectors again and compares them with the committed ones, byte for byte.

Needs the packages of requirements.txt, from this Python or from the environment that
scripts/install-deps makes in build/golden-python. Without them it skips (exit code 77), or fails
where GOLDEN_VECTORS_REQUIRED is set, as in CI.
"""

import importlib.metadata
import os
import pathlib
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
ENVIRONMENT = HERE.parents[1] / "build" / "golden-python" / "bin" / "python3"


def missing_packages():
    missing = []
    for line in (HERE / "requirements.txt").read_text().splitlines():
        if line.startswith("#") or not line:
            continue
        name, want = line.split("==")
        try:
            version = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            version = "none"
        if version != want:
            missing.append(f"{name} {want} (found: {version})")
    return missing


def main():
    missing = missing_packages()
    if missing and ENVIRONMENT.exists() and not os.environ.get("SWITCHYARD_GOLDEN_INNER"):
        os.environ["SWITCHYARD_GOLDEN_INNER"] = "1"
        os.execv(ENVIRONMENT, [str(ENVIRONMENT), __file__])
    if missing:
        print(f"golden vectors are not computed again: no {', '.join(missing)}; "
              "run scripts/install-deps all")
        return 1 if os.environ.get("GOLDEN_VECTORS_REQUIRED") else 77

    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.executable, HERE / "generate.py", folder], check=True)
        made = {path.name: path.read_bytes() for path in pathlib.Path(folder).iterdir()}
    committed = {path.name: path.read_bytes() for path in (HERE / "vectors").iterdir()}
    for name in sorted(made.keys() | committed.keys()):
        if made.get(name) != committed.get(name):
            print(f"vectors/{name}: the script makes other bytes; run tests/golden/generate.py "
                  "and look at what changed")
            return 1
    num_bytes = sum(len(data) for data in made.values())
    print(f"{len(made)} files, {num_bytes} bytes: the same again")
    return 0


if __name__ == "__main__":
    sys.exit(main())

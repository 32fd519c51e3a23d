#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the models again and compares them with the committed ones: configs and weights exactly, outputs within 1e-6.

Needs the packages of requirements.txt, from this Python or from an environment in build/transformers-python:

    python3 -m venv build/transformers-python
    build/transformers-python/bin/pip install -r tests/transformers/requirements.txt

Without them it skips (exit code 77).
"""

import importlib.metadata
import os
import pathlib
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
ENVIRONMENT = HERE.parents[1] / "build" / "transformers-python" / "bin" / "python3"


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
        if version.split("+")[0] != want:
            missing.append(f"{name} {want} (found: {version})")
    return missing


def differences(made, committed):
    import torch
    from safetensors.torch import load_file

    if made.suffix == ".json":
        return [] if made.read_text() == committed.read_text() else ["text"]
    new, old = load_file(made), load_file(committed)
    if new.keys() != old.keys():
        return sorted(new.keys() ^ old.keys())
    # Sums of f32 differ from processor to processor.
    return [name for name in new if new[name].dtype != old[name].dtype or (
        not torch.allclose(new[name], old[name], rtol=1e-5, atol=1e-6) if name == "routed_output" else not torch.equal(new[name], old[name]))]


def main():
    missing = missing_packages()
    if missing and ENVIRONMENT.exists() and not os.environ.get("SWITCHYARD_TRANSFORMERS_INNER"):
        os.environ["SWITCHYARD_TRANSFORMERS_INNER"] = "1"
        os.execv(ENVIRONMENT, [str(ENVIRONMENT), __file__])
    if missing:
        print(f"models are not written again: no {', '.join(missing)}")
        return 77

    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.executable, HERE / "generate.py", "--out", folder], check=True, capture_output=True)
        made = {path.relative_to(folder): path for path in pathlib.Path(folder).glob("*/*")}
        committed = {path.relative_to(HERE / "models"): path for path in (HERE / "models").glob("*/*")}
        wrong = [str(name) for name in made.keys() ^ committed.keys()]
        for name in made.keys() & committed.keys():
            wrong += [f"{name}: {what}" for what in differences(made[name], committed[name])]
    for line in sorted(wrong):
        print(f"models/{line}: the script makes another; run tests/transformers/generate.py and look at what changed")
    print(f"{len(made)} files, {len(wrong)} differences")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())

# SPDX-License-Identifier: Apache-2.0
"""The examples and the programs of the pages run."""
import pathlib
import re
import subprocess
import sys

import pytest

from switchyard import command

ROOT = pathlib.Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("name, phrase", [("smallest", "[0.75, 0.75]"), ("moe_layer", "rank 3: 21 tokens")])
def test_examples(name, phrase):
    done = subprocess.run([sys.executable, ROOT / f"examples/10_python/{name}.py"], check=True, capture_output=True, text=True,
                          timeout=60)
    assert phrase in done.stdout


@pytest.mark.parametrize("name, phrase", [("moe_layer_torch", "rank 0 on"), ("training_step", "rank 0: losses")])
def test_examples_in_torch(name, phrase):
    pytest.importorskip("torch", reason="torch is not installed")
    done = subprocess.run([sys.executable, ROOT / f"examples/10_python/{name}.py"], check=False, capture_output=True, text=True,
                          timeout=300)
    assert done.returncode == 0 and phrase in done.stdout, done.stderr


@pytest.mark.parametrize("page, least", [("torch", 2)])
def test_the_program_of_the_page_in_torch(page, least, run_program):
    pytest.importorskip("torch", reason="torch is not installed")
    test_the_program_of_the_page(page, least, run_program)


@pytest.mark.parametrize("page, least", [("python", 5), ("from_deep_ep", 3), ("from_flashinfer", 2), ("from_vllm", 2)])
def test_the_program_of_the_page(page, least, run_program):
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / f"docs/{page}.md").read_text(encoding="utf-8"), re.DOTALL)
    assert len(blocks) >= least
    if not command.PATH.exists():
        blocks = [block for block in blocks if "switchyard.check" not in block]
    code, _, errors = run_program("\n\n".join(blocks))
    assert code == 0, errors

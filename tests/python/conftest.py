# SPDX-License-Identifier: Apache-2.0
"""Helpers that several tests share."""
import os
import pathlib
import signal
import subprocess
import sys
import textwrap

import pytest

os.environ.setdefault("CUDA_MODULE_LOADING", "EAGER")  # ranks that are threads share a GPU (docs/gpu.md)
# Background jobs of a shell ignore it, and so would every program that these tests start.
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.path.insert(0, str(pathlib.Path(__file__).parent))


@pytest.fixture
def run_program():
    """Runs Python source as a program of its own and returns (exit code, stdout, stderr)."""

    def run(source, *arguments, timeout=60):
        done = subprocess.run([sys.executable, "-c", textwrap.dedent(source), *map(str, arguments)], check=False,
                              capture_output=True, text=True, timeout=timeout)
        return done.returncode, done.stdout, done.stderr

    return run


@pytest.fixture
def start_program():
    """Starts Python source as a program of its own; what still runs at the end is killed."""
    started = []

    def start(source, *arguments):
        process = subprocess.Popen([sys.executable, "-c", textwrap.dedent(source), *map(str, arguments)],
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()

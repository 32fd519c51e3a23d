# SPDX-License-Identifier: Apache-2.0
"""The command in the package, and its reports."""
import subprocess
import sys

import pytest

import switchyard
from switchyard import command

pytestmark = pytest.mark.skipif(not command.PATH.exists(), reason="this build of the package has no command")


def test_the_command_runs():
    done = subprocess.run([sys.executable, "-c", "from switchyard.command import main; main()", "--version"], check=True,
                          capture_output=True, text=True)
    assert done.stdout.startswith(f"switchyard {switchyard.__version__} ")


def test_check():
    report = switchyard.check(filter="quantize/fp8_token/*")
    assert report.ok and report.rows and all(row["passed"] for row in report.rows)
    assert repr(report) == f"Report('check', ok=True, {len(report.rows)} rows)" and "<table>" in report._repr_html_()


def test_bench():
    report = switchyard.bench(ranks=2, tokens=[1, 4], workload="mixtral-8x7b", runs=30)
    assert [row["tokens"] for row in report.rows] == [1, 4] and report["ranks"] == 2 and "p50_us" in report._repr_html_()


def test_errors_of_the_command():
    with pytest.raises(switchyard.InvalidArgumentError, match="nonsense"):
        switchyard.bench(workload="nonsense")

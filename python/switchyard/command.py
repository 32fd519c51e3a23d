# SPDX-License-Identifier: Apache-2.0
"""The command `switchyard` that is part of this package, and its reports as Python objects."""
from __future__ import annotations

import html
import json
import os
import pathlib
import re
import subprocess
import sys
from typing import Any

from switchyard.errors import make_error

PATH = pathlib.Path(__file__).parent / "switchyard"


def main() -> None:
    """Becomes the command, with this program's arguments."""
    os.execv(PATH, [str(PATH), *sys.argv[1:]])


class Report(dict):
    """The JSON object that a verb of the command prints; in a notebook its rows are a table."""

    def __init__(self, verb: str, fields: dict[str, Any]):
        super().__init__(fields)
        self.verb = verb
        """The verb that printed it."""

    @property
    def ok(self) -> bool:
        """Whether nothing was wrong."""
        return bool(self["ok"])

    @property
    def rows(self) -> list[dict[str, Any]]:
        """What was measured, or the cases that were checked."""
        return self.get("rows") or self.get("cases") or []

    def __repr__(self) -> str:
        return f"Report('{self.verb}', ok={self.ok}, {len(self.rows)} rows)"

    def _repr_html_(self) -> str:
        columns = [name for name in (self.rows[0] if self.rows else {}) if any(row.get(name) is not None for row in self.rows)]
        head = "".join(f"<th>{html.escape(name)}</th>" for name in columns)
        body = "".join("<tr>" + "".join(f"<td>{html.escape(_text(row.get(name)))}</td>" for name in columns) + "</tr>"
                       for row in self.rows)
        return f"<p>switchyard {self.verb}: {'ok' if self.ok else 'not ok'}</p><table><tr>{head}</tr>{body}</table>"


def _text(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else "" if value is None else str(value)


def _run(verb: str, options: dict[str, Any]) -> Report:
    words = [str(PATH), verb, "--json", "-"]
    for name, value in options.items():
        option = "--" + name.replace("_", "-")
        if value is True:
            words.append(option)
        elif value is not None and value is not False:
            words += [option, ",".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)]
    done = subprocess.run(words, check=False, capture_output=True, text=True)
    if done.stdout.startswith("{"):
        return Report(verb, json.loads(done.stdout))
    found = re.search(r"^switchyard: (\w+): (.*)$", done.stderr, re.MULTILINE)
    raise make_error(found[1], found[2]) if found else make_error("internal", done.stderr.strip() or f"exit code {done.returncode}")


def check(*, device: str = "cpu", engine: str = "all", filter: str | None = None,  # pylint: disable=redefined-builtin
          quick: bool = True, seed: int = 1, timeout_ms: int | None = None) -> Report:
    """Compares every engine, layout, class and scheme on this machine with a slow, exact oracle.

    Runs `switchyard check` in processes of its own and returns its JSON; see docs/check.md.
    """
    return _run("check", {"device": device, "engine": engine, "filter": filter, "quick": quick, "seed": seed, "timeout": timeout_ms})


def bench(*, timeout_ms: int | None = None, **options: Any) -> Report:
    """Times dispatch and combine against this machine's limits.

    Runs `switchyard bench` in processes of its own and returns its JSON. Keywords are the options of
    docs/bench.md: bench(ranks=2, tokens=[1, 8, 32], layout="expanded", workload="deepseek-v3").
    """
    return _run("bench", {"timeout": timeout_ms, **options})

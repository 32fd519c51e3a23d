# SPDX-License-Identifier: Apache-2.0
"""The command `switchyard` that is part of this package."""
import os
import pathlib
import sys

PATH = pathlib.Path(__file__).parent / "bin" / "switchyard"


def main() -> None:
    """Becomes the command, with this program's arguments."""
    os.execv(PATH, ["switchyard", *sys.argv[1:]])

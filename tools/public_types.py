#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Counts the types that the public headers define in namespaces: classes, structs and enums, not those inside classes.

usage: tools/public_types.py [--list] [FOLDER]     default: include/
"""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
DEFINITION = re.compile(r"^(?:template\s*<[^{};]*>\s*)?(?:class|struct|enum\s+class|enum)\s+(?:SWITCHYARD_\w+\s+)?"
                        r"(?:alignas\(\w+\)\s+)?(\w+)(?:\s+final)?\s*(?::[^:;{}][^;{}]*)?\{", re.MULTILINE)


def types_in(header):
    text = re.sub(r"//[^\n]*", "", header.read_text(encoding="utf-8"))
    return DEFINITION.findall(text)


def main():
    arguments = [a for a in sys.argv[1:] if a != "--list"]
    folder = pathlib.Path(arguments[0]) if arguments else ROOT / "include"
    found = [(header.relative_to(folder), name) for header in sorted(folder.rglob("*.h")) for name in types_in(header)]
    if "--list" in sys.argv:
        for header, name in found:
            print(f"{header}: {name}")
    print(f"{len(found)} types in {len({header for header, _ in found})} headers")


if __name__ == "__main__":
    main()

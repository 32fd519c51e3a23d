#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Prints a header as Doxygen reads it: the first comment documents the file, and aligned tables stay tables.

usage: doxygen_filter.py HEADER
"""
import re
import sys

is_first, is_list = True, False
for line in open(sys.argv[1], encoding="utf-8"):
    line = line.rstrip("\n")
    if is_first and line.startswith("//"):
        line = "/// @file" if "SPDX" in line else "/" + re.sub(r"^// [\w/]+\.h: (.)", lambda found: "// " + found[1].upper(), line)
    else:
        is_first = False
    found = re.match(r"( *///)( *)(.*)", line)
    if found:
        start, indent, text = found.groups()
        is_list = text.startswith("- ") or (is_list and len(indent) > 1)
        if len(indent) > 2 and not is_list:  # a table: Markdown's code, which keeps its columns
            line = start + "    " + indent + text
    else:
        is_list = False
    # Every C struct begins with it; c/base.h says once what it is.
    print(line + "  ///< sizeof the struct" if line == "  size_t struct_size;" else line)

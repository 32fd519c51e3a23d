#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# usage: old_standard_test.sh COMPILER INCLUDE_FOLDER   compiles each header as C++17; the first error must say what it needs
set -euo pipefail
compiler=$1 folder=$2
cd "$folder"
for header in $(find switchyard -name '*.h' | sort); do
  first=$("$compiler" -std=c++17 -fsyntax-only -I. -x c++ "$header" 2>&1 | grep -m 1 'error' || true)
  if [[ $first != *"need C++20"* ]]; then
    echo "$header as C++17: first error is '$first'" >&2
    exit 1
  fi
done

#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# usage: old_standard_test.sh COMPILER INCLUDE_FOLDER   compiles each header as C++17; the first error must say what
#        it needs. Those of the C interface compile; mpi.h needs MPI even to say so.
set -euo pipefail
compiler=$1 folder=$2
cd "$folder"
for header in $(find switchyard -name '*.h' ! -path switchyard/mpi.h | sort); do
  wanted="need C++20"
  if [[ $header = switchyard/c.h || $header = switchyard/c/* ]]; then wanted=""; fi
  first=$("$compiler" -std=c++17 -fsyntax-only -I. -x c++ "$header" 2>&1 | grep -m 1 -E ': (fatal )?error:' || true)
  if [[ $first != *"$wanted"* || ( -z $wanted && -n $first ) ]]; then
    echo "$header as C++17: first error is '$first'" >&2
    exit 1
  fi
done

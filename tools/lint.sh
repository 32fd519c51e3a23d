#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Checks the lengths of files and, on request, runs clang-tidy.
#
# usage: tools/lint.sh                         the ten longest files; fails above the hard limits
#        tools/lint.sh --tidy BUILD [FILE...]  also runs clang-tidy-14 on FILEs (default: src/, instruments/ and cli/);
#                                              BUILD contains compile_commands.json
set -euo pipefail
cd "$(dirname "$0")/.."

# Prints the maximum number of lines of a file of this kind.
limit_of() {
  case $1 in
    include/*) echo 400 ;;
    tests/*) echo 500 ;;
    CMakeLists.txt) echo 150 ;;
    */CMakeLists.txt) echo 60 ;;
    *) echo 600 ;;
  esac
}

files=$(find include src instruments cli tests examples bench python CMakeLists.txt -type f \
          \( -name '*.h' -o -name '*.c' -o -name '*.cpp' -o -name '*.cu' -o -name '*.cuh' -o -name CMakeLists.txt \) | sort)
echo "longest files:"
# shellcheck disable=SC2086
wc -l $files | grep -v ' total$' | sort -rn | sed -n '1,10p'

too_long=0
for file in $files; do
  lines=$(wc -l < "$file")
  limit=$(limit_of "$file")
  if [ "$lines" -gt "$limit" ]; then
    echo "$file: $lines lines, limit $limit; split it" >&2
    too_long=1
  fi
done

if [ "${1:-}" = --tidy ]; then
  build=${2:?lint: --tidy needs a build folder}
  shift 2
  # shellcheck disable=SC2046
  [ $# -gt 0 ] || set -- $(find src instruments cli -name '*.cpp' | sort)
  printf '%s\0' "$@" | xargs -0 -n 1 -P "$(nproc)" clang-tidy-14 -p "$build" --quiet
fi
exit $too_long

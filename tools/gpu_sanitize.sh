#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Runs dispatch and combine under NVIDIA's compute-sanitizer: several ranks on one GPU, then one rank alone, whose
# kernels may use smaller blocks. Every byte is compared. The tools run one kernel at a time, so no kernel waits for one
# that has not ended. Exits with 1 when a tool found something.
#
# usage: tools/gpu_sanitize.sh [BIN [SECONDS [RANKS]]]
#   BIN      folder with the programs     default: build/device/bin
#   SECONDS  per tool and number of ranks  default: 20
#   RANKS    threads that share the GPU   default: 3
set -u
bin=${1:-build/device/bin} seconds=${2:-20} ranks=${3:-3} failed=0
export PATH=$PATH:/usr/local/cuda/bin CUDA_VISIBLE_DEVICES=${CUDA_VISIBLE_DEVICES:-0}
if ! command -v compute-sanitizer >/dev/null; then
  echo "compute-sanitizer is not on PATH; it comes with the CUDA toolkit" >&2
  exit 2
fi
for number in "$ranks" 1; do
  for tool in racecheck memcheck synccheck initcheck; do
    output=$(compute-sanitizer --tool "$tool" --error-exitcode 9 "$bin/exchange_stress" --ranks "$number" --small --by-turns \
      --seconds "$seconds" 2>&1)
    code=$?
    echo "$tool, $number ranks: exit $code; $(grep -o '"pairs": [0-9]*' <<<"$output" | head -n 1); $(grep 'SUMMARY' <<<"$output")"
    ((code != 0)) && failed=1 && grep '^=====' <<<"$output" | head -n 40
  done
done
exit $failed

#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Reports on a machine with GPUs in at most 9 minutes: doctor, tests of memory, exchange and experts, check, bench.
# Needs only the programs of a static build (cmake --preset device). Writes to FOLDER: JSON files, summary.txt with one
# line per step, and the output of each step as *.log. Exits with 1 when a step failed, with 2 without a GPU.
#
# usage: tools/gpu_report.sh [BIN [FOLDER [RANKS]]]
#   BIN     folder with the programs        default: build/device/bin
#   FOLDER  created if missing              default: gpu-report
#   RANKS   ranks of bench                  default: number of GPUs, at least 2
set -u
bin=$(cd "${1:-build/device/bin}" && pwd) || exit 2
[ -x "$bin/switchyard" ] || { echo "no switchyard in $bin; build it: cmake --preset device, ninja -C build/device" >&2; exit 2; }
mkdir -p "${2:-gpu-report}" && out=$(cd "${2:-gpu-report}" && pwd) || exit 2
gpus=$(nvidia-smi -L 2>/dev/null | grep -c '^GPU')
ranks=${3:-$((gpus > 2 ? gpus : 2))}
budget=${SWITCHYARD_REPORT_SECONDS:-530}
failed=0
# PyTorch's packages contain NCCL, in case the system has none.
nccl=$(python3 -c 'import nvidia.nccl as n; print(list(n.__path__)[0] + "/lib")' 2>/dev/null)
[ -d "$nccl" ] && export LD_LIBRARY_PATH="${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$nccl"
: >"$out/summary.txt"

# step NAME SECONDS COMMAND...: runs COMMAND with its output in NAME.log, or skips it when the time is up.
step() {
  local name=$1 limit=$2 began=$SECONDS code
  shift 2
  if ((budget - SECONDS < 5)); then
    echo "$name: skipped, the time is over" | tee -a "$out/summary.txt"
    return
  fi
  ((limit > budget - SECONDS)) && limit=$((budget - SECONDS))
  timeout -k 5 "$limit" "$@" >"$out/$name.log" 2>&1
  code=$?
  ((code != 0)) && failed=1
  echo "$name: exit $code, $((SECONDS - began)) s" | tee -a "$out/summary.txt"
  ((code != 0)) && tail -n 5 "$out/$name.log"
}

# bench NAME OPTIONS...: runs one bench as a step and adds its rows to the summary.
bench() {
  local name=bench-$1
  shift
  step "$name" 90 "$bin/switchyard" bench --device cuda --ranks "$ranks" --json "$out/$name.json" "$@"
  grep -E '^ +[0-9]' "$out/$name.log" 2>/dev/null | tee -a "$out/summary.txt"
}

date -u +"%Y-%m-%d %H:%M UTC, $gpus GPUs, $ranks ranks" | tee -a "$out/summary.txt"
step machine 20 sh -c 'nvidia-smi; nvidia-smi topo -m; true'
step doctor 30 sh -c "'$bin/switchyard' doctor --json >'$out/doctor.json'"
if grep -q '"cuda": null' "$out/doctor.json"; then
  grep -o '"why_no_cuda": .*' "$out/doctor.json" | tee -a "$out/summary.txt" >&2
  exit 2
fi

tokens=1,8,32,64,128
for layout in expanded batched; do
  bench "pair-$layout" --graph --baseline nccl --tokens $tokens --op pair --layout $layout
done
bench dispatch --graph --baseline nccl --tokens $tokens --op dispatch
bench combine --graph --baseline nccl --tokens $tokens --op combine
for test in device_meter rank_facts gather_or_fail device_window device_window_process host_device exchange_cuda \
  arguments_cuda wrong_device_cuda deadlock_cuda experts_cuda prepare_finalize_cuda modular_kernel_cuda drop_overflow_cuda \
  quantize_cuda permute_cuda; do
  [ -x "$bin/${test}_test" ] && step "test-$test" 80 "$bin/${test}_test" --gtest_output="json:$out/test-$test.json"
done
step check-cuda 120 "$bin/switchyard" check --device cuda --quick --json "$out/check-cuda.json"
bench events --baseline nccl --tokens $tokens --op pair
bench bf16 --graph --baseline nccl --tokens $tokens --op pair --scheme none
bench large --graph --baseline nccl --tokens 512,4096 --op pair --runs 30
bench cold --graph --tokens $tokens --op pair --layout batched --cold-code --skew --runs 30
bench sms --graph --tokens 128 --op pair --sms 8,16,32,64 --runs 30
step stress 60 "$bin/exchange_stress" --seconds 40
step check 60 "$bin/switchyard" check --quick --json "$out/check.json"
exit $failed

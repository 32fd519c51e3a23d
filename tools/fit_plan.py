#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes instruments/forecast/machines/NAME.json: the constants of `switchyard plan`, each with its source.

Measured constants are copied from fields of result files. The others are fitted to rows of result files: least squares
of log(predicted / measured), by Gauss and Newton with Levenberg's damping, over the logarithms of the constants.

usage: tools/fit_plan.py COMMAND NAME      NAME is h200 (which makes h100, too) or cpu; COMMAND the switchyard that predicts
       tools/fit_plan.py h100              makes h100.json again from h200.json and what was measured on an H100
       tools/fit_plan.py --check           compares what is copied with the result files; exits with 1 if any differs
"""
import json
import math
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).parent.parent
RESULTS = "bench/results/"
FOLDER = ROOT / "instruments/forecast/machines"
NCCL = "NCCL 01afd20, src/graph/tuning.cc: baseLat + hwLat of a ring over the network, protocol Simple (8.4 + 9.6)"

# file, and where in it
H200_RUN = "2026-11-23-h200x2-pair-decode.json"
MEASURED = {
    "h200": {
        "start_us": (H200_RUN, "floors/0/start_us", "us"),
        "saved_us": (H200_RUN, "floors/0/saved_us", "us"),
        "copy_gb_per_second": (H200_RUN, "floors/0/constants/copy", "GB/s"),
        "receive_chunk_us": (H200_RUN, "floors/0/constants/row", "us"),
        "wire": (H200_RUN, "floors/0/wire/16-byte stores", "GB/s by CTAs"),
    },
    "cpu": {"copy": ("2026-11-23-cpu-bench-pair.json", "floors/0/rate", "GB/s by bytes")},
}
GIVEN = {  # published or of a data sheet
    "h200": {
        "num_sms": (132, "", H200_RUN + ": machine.grid"),
        "tflops": (294, "TFLOP/s", "2026-11-21-h200-experts.json: cublas, bf16, 4096 rows, one expert after another"),
        "network_gb_per_second": (50, "GB/s", "data sheet of a 400 Gb/s NIC for each GPU; not measured"),
        "network_start_us": (18.0, "us", NCCL + "; not measured here"),
    },
    "cpu": {
        "tflops": (0.17, "TFLOP/s", "2026-11-23-cpu-bench-layer.json: 6 x 2048 x 768 x 2048 rows in rows[1].p50_us"),
        "network_gb_per_second": (12.5, "GB/s", "data sheet of a 100 Gb/s NIC for each rank; not measured"),
        "network_start_us": (18.0, "us", NCCL + "; not measured here"),
    },
}
FIT_START = {
    "h200": {
        "overlap": 2.8, "dispatch_start_us": 2.9, "shared_start_us": 10.7, "dispatch_memory": 0.84,
        "instruction_us": 0.0059, "send_chunk_us": 1.82, "combine_start_us": 1.86, "stream_start_us": 4.4,
        "combine_memory": 1.08, "stream_item_us": 0.45, "stream_chunk_us": 0.34, "stream_row_us": 0.133,
        "return_chunk_us": 0.77, "return_row_us": 0.073, "sum_chunk_us": 0.48, "sum_row_us": 0.19,
    },
    "cpu": {
        "overlap": 1.2, "reuse": 2.0, "dispatch_start_us": 2.5, "combine_start_us": 2.0, "dispatch_copy": 1.0, "combine_copy": 1.0,
        "quantize_gb_per_second": 20, "dispatch_row_us": 0.1, "combine_row_us": 0.3,
    },
}
LEAST = {"overlap": 1.0}  # at which nothing overlaps; `plan` refuses less
TITLES = {"h200": "NVIDIA H200 (NVLink 4)", "h100": "NVIDIA H100 (NVLink 4; its exchange not measured)",
          "cpu": "AMD EPYC (Zen 5), 2 cores of a virtual machine"}
DEVICES = {"h200": "cuda", "h100": "cuda", "cpu": "cpu"}
UNITS = {"overlap": "", "dispatch_copy": "of copies", "combine_copy": "of copies", "quantize_gb_per_second": "GB/s",
          "dispatch_memory": "of copies", "combine_memory": "of copies"}
# Rows to fit; --fixed-roles for those of builds whose CTAs keep one role.
FIT_FILES = {
    "h100": [],
    "cpu": [("2026-11-23-cpu-bench-dispatch.json", False), ("2026-11-23-cpu-bench-combine.json", False),
            ("2026-11-23-cpu-bench-pair.json", False), ("2026-11-23-cpu-bench-dispatch-bf16.json", False)],
    "h200": [
        ("2026-11-23-h200x2-pair-decode.json", False), ("2026-11-23-h200x2-pair-batched.json", False),
        ("2026-11-23-h200x2-pair-prefill.json", False), ("2026-11-23-h200x2-whole-gpu-dispatch.json", False),
        ("2026-11-23-h200x2-whole-gpu-combine.json", False), ("2026-11-23-h200x2-few-sms-pair-tickets.json", False),
        ("2026-11-23-h200x2-few-sms-dispatch-tickets.json", False), ("2026-11-23-h200x2-few-sms-combine.json", False),
        ("2026-11-23-h200x2-few-sms-pair-512-streamed.json", False),
        ("2026-11-23-h200x2-few-sms-dispatch-512-streamed.json", False),
        ("2026-11-22-h200x4-sms-dispatch.json", True), ("2026-11-22-h200x4-sms-combine.json", True),
        ("2026-11-21-h200x4-pair-pdl.json", True), ("2026-11-21-h200x4-dispatch.json", True),
        ("2026-11-21-h200x4-pair-per-expert.json", True),
    ],
}


def field(file, where):
    value = json.loads((ROOT / RESULTS / file).read_text())
    for key in where.split("/"):
        if isinstance(value, list) and not key.isdigit():
            value = next(one["value"] for one in value if one["name"] == key)
        elif key == "rate":
            value = [[one["bytes"], round(one["gb_per_second"], 2)] for one in value["rate"]]
        elif isinstance(value, dict) and "tried" in value and key not in value:
            value = [[one["ctas"], round(one["gb_per_second"], 2)] for one in value["tried"] if one["by"] == key]
        else:
            value = value[int(key) if isinstance(value, list) else key]
    return round(value, 4) if isinstance(value, float) else value


FITTED = "fitted by tools/fit_plan.py to the files of fitted_to"
H100_RUN = "2026-11-23-h100-experts-cutlass.json"
H100_CASE = ("cutlass", "4096 rows, bf16")
H100_WEIGHT_BYTES = 32 * 3 * 2048 * 7168 * 2  # of the experts of that run


def source_of(file, where):
    return file + ": " + re.sub(r"/(\d+)", r"[\1]", where).replace("/", ".")


def constants_of(name, fitted):
    constants = {}
    for key, (value, unit, source) in GIVEN[name].items():
        constants[key] = {"value": value, "unit": unit, "source": source}
    for key, (file, where, unit) in MEASURED[name].items():
        constants[key] = {"value": field(file, where), "unit": unit, "source": source_of(file, where)}
    for key, value in fitted.items():
        constants[key] = {"value": float(f"{value:.4g}"), "unit": UNITS.get(key, "us" if key.endswith("us") else ""),
                          "source": FITTED}
    return constants


def write(path, name, constants):
    """Lists of numbers stay on one line."""
    document = {"name": name, "title": TITLES[name], "device": DEVICES[name],
                "fitted_to": [RESULTS + file for file, _ in FIT_FILES[name]], "constants": constants}
    text = json.dumps(document, indent=1)
    path.write_text(re.sub(r"\[\s+([\d.]+),\s+([\d.]+)\s+\]", r"[\1, \2]", text) + "\n")


def residuals(command, name, fitted, scratch):
    write(scratch, name, constants_of(name, fitted))
    result = []
    for fixed in (False, True):
        files = [str(ROOT / RESULTS / file) for file, is_fixed in FIT_FILES[name] if is_fixed == fixed]
        if not files:
            continue
        words = [command, "plan", "--constants", str(scratch), "--json", "-"] + ["--fixed-roles"] * fixed
        done = subprocess.run(words + ["--measured"] + files, capture_output=True, text=True, check=True)
        result += [math.log(row["ratio"]) for row in json.loads(done.stdout)["measured"]]
    return result


def solve(matrix, right):
    """Gaussian elimination with row pivots."""
    rows = [row[:] + [value] for row, value in zip(matrix, right)]
    size = len(rows)
    for i in range(size):
        pivot = max(range(i, size), key=lambda r: abs(rows[r][i]))
        rows[i], rows[pivot] = rows[pivot], rows[i]
        for r in range(i + 1, size):
            factor = rows[r][i] / rows[i][i]
            rows[r] = [a - factor * b for a, b in zip(rows[r], rows[i])]
    x = [0.0] * size
    for i in reversed(range(size)):
        x[i] = (rows[i][size] - sum(rows[i][j] * x[j] for j in range(i + 1, size))) / rows[i][i]
    return x


def fit(command, name, scratch):
    keys = list(FIT_START[name])
    x = [math.log(FIT_START[name][key]) for key in keys]
    constants = lambda point: {k: max(math.exp(v), LEAST.get(k, 0)) for k, v in zip(keys, point)}
    at = lambda point: residuals(command, name, constants(point), scratch)
    errors, damping, step = at(x), 0.01, 0.02
    for _ in range(12):
        columns = []
        for i in range(len(x)):
            moved = x[:i] + [x[i] + step] + x[i + 1:]
            columns.append([(b - a) / step for a, b in zip(errors, at(moved))])
        normal = [[sum(a * b for a, b in zip(p, q)) for q in columns] for p in columns]
        slope = [-sum(a * e for a, e in zip(p, errors)) for p in columns]
        best = sum(e * e for e in errors)
        for _ in range(6):
            damped = [[v + (damping * (v + 0.01) if i == j else 0) for j, v in enumerate(row)] for i, row in enumerate(normal)]
            delta = [max(-0.5, min(0.5, d)) for d in solve(damped, slope)]
            trial = [a + d for a, d in zip(x, delta)]
            found = at(trial)
            if sum(e * e for e in found) < best:
                break
            damping *= 5
        else:
            break
        gain = 1 - sum(e * e for e in found) / best
        x, errors, damping = trial, found, damping / 5
        print(f"mean square {sum(e * e for e in errors) / len(errors):.6f}, farthest "
              f"{max(errors, key=abs):+.3f}", file=sys.stderr)
        if gain < 1e-3:
            break
    return constants(x)


def h100_measured():
    """TFLOP/s of the same case as the H200's, by the fastest experts, and the rate of copies, which that run's floor is made of."""
    entries = [json.loads(line) for line in (ROOT / RESULTS / H100_RUN).read_text().splitlines()]
    case = next(one for one in entries if (one["experts"], one["case"]) == H100_CASE)
    return {
        "tflops": (round(case["tflops"]), f"{H100_RUN}: cutlass, bf16, 4096 rows, one expert after another"),
        "copy_gb_per_second": (round(H100_WEIGHT_BYTES / case["weights_floor_us"] * 1e-3, 1),
                               f"{H100_RUN}: {H100_WEIGHT_BYTES} bytes of weights / weights_floor_us"),
    }


def h100_of(h200):
    """The H100 has as many SMs and links as the H200; its experts and its memory were measured."""
    constants = {key: dict(value) for key, value in h200.items()}
    for value in constants.values():
        value["source"] = "as h200, not measured: " + value["source"]
    for key, (value, source) in h100_measured().items():
        constants[key].update(value=value, source=source)
    return constants


def check():
    """What is copied must be what the result files have."""
    wrong = []
    for name, copied in MEASURED.items():
        constants = json.loads((FOLDER / f"{name}.json").read_text())["constants"]
        for key, (file, where, _) in copied.items():
            if constants[key]["value"] != field(file, where):
                wrong.append(f"{name}.json: {key} is {constants[key]['value']}, {file} has {field(file, where)}")
    constants = json.loads((FOLDER / "h100.json").read_text())["constants"]
    for key, (value, _) in h100_measured().items():
        if constants[key]["value"] != value:
            wrong.append(f"h100.json: {key} is {constants[key]['value']}, {H100_RUN} has {value}")
    print("\n".join(wrong) if wrong else "constants: all that is copied is as measured")
    return 1 if wrong else 0


def main():
    if sys.argv[1:] == ["--check"]:
        return check()
    if sys.argv[1:] == ["h100"]:
        write(FOLDER / "h100.json", "h100", h100_of(json.loads((FOLDER / "h200.json").read_text())["constants"]))
        return 0
    command, name = sys.argv[1:]
    with tempfile.TemporaryDirectory() as folder:
        fitted = fit(command, name, pathlib.Path(folder) / "trial.json")
    constants = constants_of(name, fitted)
    write(FOLDER / f"{name}.json", name, constants)
    if name == "h200":
        write(FOLDER / "h100.json", "h100", h100_of(constants))
    return 0


if __name__ == "__main__":
    sys.exit(main())

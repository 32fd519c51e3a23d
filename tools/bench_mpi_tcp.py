#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What an exchange over MPI adds to MPI: `switchyard bench` between ranks that MPI joins over TCP, each on a host of its own, beside
MPI_Alltoallv of the same bytes over the same TCP, and where the rest of the time goes.

usage: tools/bench_mpi_tcp.py COMMAND RESULTS.json [OPTIONS of bench]     runs, writes one JSON object per operation, prints the table
       tools/bench_mpi_tcp.py RESULTS.json                                prints the table

COMMAND is the switchyard that measures. OPTIONS are those for all runs, for example --tokens 4096 --scheme none.
"""
import json
import os
import pathlib
import subprocess
import sys
import tempfile

RANKS = 4
TCP = {"btl": "tcp,self", "btl_tcp_if_include": "lo"}
OPERATIONS = ("dispatch", "combine")


def run(words, environment=None):
    done = subprocess.run(words, capture_output=True, text=True, check=False, env={**os.environ, **(environment or {})})
    if done.returncode != 0:
        sys.exit(f"{' '.join(words)}: exit code {done.returncode}: {done.stderr}")
    return json.loads(done.stdout)


def baseline_file(command, operation, options, folder):
    """MPI_Alltoallv alone, by processes that share nothing but TCP, as a file of measured numbers."""
    settings = {f"OMPI_MCA_{name}": value for name, value in TCP.items()}
    report = run([command, "bench", "--ranks", str(RANKS), "--op", operation, *options, "--baseline", "mpi", "--json", "-"], settings)
    rows = [{"name": row["baseline"]["name"], "mode": "over TCP", "op": operation, "tokens": row["tokens"], "us": row["baseline"]["us"]}
            for row in report["rows"]]
    workload = report["workload"]
    path = folder / f"{operation}.json"
    path.write_text(json.dumps({"machine": report["machine"]["processor"], "source": "MPI_Alltoallv of the same bytes over TCP",
                                "hidden": workload["hidden"], "experts": workload["experts"], "topk": workload["topk"],
                                "ranks": RANKS, "rows": rows}))
    return path


def measure(command, operation, options, folder):
    path = baseline_file(command, operation, options, folder)
    words = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", str(RANKS)]
    for name, value in TCP.items():
        words += ["--mca", name, value]
    bench = 'SWITCHYARD_HOST_ID=$OMPI_COMM_WORLD_RANK exec "$0" bench "$@"'
    return run([*words, "sh", "-c", bench, command, "--op", operation, *options, "--stages", "--baseline", str(path), "--json", "-"])


def table(reports):
    lines = ["| call | tokens | us | MPI_Alltoallv us | of it | waits us | of it | pack us (floor) | place or sum us (floor) |",
             "|---|---:|---:|---:|---:|---:|---:|---:|---:|"]
    for report in reports:
        for row in report["rows"]:
            stages = {stage["stage"]: stage for stage in row["stages"]}
            bare, waits = row["baseline"]["us"], stages["wait"]["median_us"]
            last = stages.get("place") or stages["sum"]
            work = [f"{one['median_us']:.0f} ({one['floor_us']:.0f})" for one in (stages["pack"], last)]
            lines.append(f"| {report['settings']['op']} | {row['tokens']} | {row['p50_us']:.0f} | {bare:.0f} | "
                         f"{row['p50_us'] / bare:.2f} | {waits:.0f} | {waits / bare:.2f} | {work[0]} | {work[1]} |")
    return "\n".join(lines)


def main():
    if len(sys.argv) == 2:
        print(table(json.loads(pathlib.Path(sys.argv[1]).read_text(encoding="utf-8"))["reports"]))
        return
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    command, results, options = sys.argv[1], pathlib.Path(sys.argv[2]), sys.argv[3:]
    with tempfile.TemporaryDirectory() as folder:
        reports = [measure(command, operation, options, pathlib.Path(folder)) for operation in OPERATIONS]
    results.write_text(json.dumps({"options": options, "reports": reports}, indent=1) + "\n", encoding="utf-8")
    print(table(reports))


if __name__ == "__main__":
    main()

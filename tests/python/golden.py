# SPDX-License-Identifier: Apache-2.0
"""Reads the golden vectors (tests/golden/vectors)."""
import functools
import json
import pathlib

import ml_dtypes
import numpy as np

VECTORS = pathlib.Path(__file__).resolve().parents[1] / "golden" / "vectors"
DTYPES = {"F32": np.float32, "F16": np.float16, "BF16": ml_dtypes.bfloat16, "F8_E4M3": ml_dtypes.float8_e4m3fn, "I8": np.int8,
          "U8": np.uint8, "I32": np.int32, "I64": np.int64, "F8_E5M2": ml_dtypes.float8_e5m2, "F8_E8M0": np.uint8}


@functools.cache
def load(name):
    """Returns the arrays of a file by name."""
    data = (VECTORS / f"{name}.safetensors").read_bytes()
    length = int.from_bytes(data[:8], "little")
    arrays = {}
    for key, entry in json.loads(data[8:8 + length]).items():
        if key == "__metadata__":
            continue
        begin, end = (8 + length + offset for offset in entry["data_offsets"])
        arrays[key] = np.frombuffer(data[begin:end], DTYPES[entry["dtype"]]).reshape(entry["shape"])
    return arrays


def same_bytes(actual, expected):
    """Whether two arrays have the same bytes; shapes may split them differently."""
    return np.ascontiguousarray(actual).tobytes() == np.ascontiguousarray(expected).tobytes()

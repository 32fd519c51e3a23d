#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Computes the golden vectors from the formulas of the public originals (vLLM, DeepEP, FlashInfer,
DeepGEMM), independently of the library's source: numpy and ml_dtypes only.

usage: generate.py [FOLDER]   writes FOLDER/*.safetensors; default: vectors/ beside this script
"""

import pathlib
import sys

import activation
import combine
import layouts
import numerics
import quantize
import reduce
import router

FILES = {
    "activation": activation.vectors,
    "combine": combine.vectors,
    "layouts": layouts.vectors,
    "quantize": quantize.vectors,
    "reduce": reduce.vectors,
    "router": router.vectors,
}


def main():
    folder = pathlib.Path(__file__).resolve().parent / "vectors"
    if len(sys.argv) > 1:
        folder = pathlib.Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    numerics.check_fma()
    for name, vectors in FILES.items():
        numerics.write_safetensors(folder / f"{name}.safetensors", vectors())


if __name__ == "__main__":
    main()

# SPDX-License-Identifier: Apache-2.0
"""flashinfer.comm.mnnvl: where ranks and workspaces come from."""
from switchyard.compat._flashinfer_functions import MnnvlMemory
from switchyard.compat._flashinfer_ranks import CommBackend, MnnvlConfig, TorchDistBackend

__all__ = ["CommBackend", "MnnvlConfig", "MnnvlMemory", "TorchDistBackend"]

# SPDX-License-Identifier: Apache-2.0
"""flashinfer.comm.mapping."""
from switchyard.compat._flashinfer_ranks import Mapping

__all__ = ["Mapping"]

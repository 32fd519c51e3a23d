# SPDX-License-Identifier: Apache-2.0
"""flashinfer.comm.trtllm_alltoall: the two-sided all-to-all."""
from switchyard.compat._flashinfer_two_sided import MnnvlMoe, MoEAlltoallInfo

__all__ = ["MnnvlMoe", "MoEAlltoallInfo"]

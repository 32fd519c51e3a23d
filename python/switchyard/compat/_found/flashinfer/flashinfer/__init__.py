# SPDX-License-Identifier: Apache-2.0
"""flashinfer with nothing but flashinfer.comm: install() puts this folder on the path where the package is not installed."""
from switchyard.compat import install

install("flashinfer.comm")

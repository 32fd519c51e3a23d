# SPDX-License-Identifier: Apache-2.0
"""What a spawned process finds as deep_gemm: install() of its parent put this folder on the path, which children inherit."""
import sys

from switchyard.compat import install

del sys.modules[__name__]
install(__name__)

# SPDX-License-Identifier: Apache-2.0
"""For finders alone: the package has imported switchyard.compat.flashinfer under this name already."""

# SPDX-License-Identifier: Apache-2.0
"""The plug-in of vLLM: with SWITCHYARD_VLLM set, vLLM's processes find our deep_ep and flashinfer.comm (docs/from_vllm.md).

vLLM calls register() in each of its processes. A package of its own, so that nothing of switchyard is
imported while the variable is not set.
"""
import os


def register() -> None:
    """The entry point `switchyard` of the group `vllm.general_plugins`."""
    wanted = os.environ.get("SWITCHYARD_VLLM", "")
    if wanted not in ("", "0"):
        from switchyard.compat import _vllm_plugin  # pylint: disable=import-outside-toplevel

        _vllm_plugin.use(wanted)

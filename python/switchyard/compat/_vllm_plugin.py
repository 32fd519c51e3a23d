# SPDX-License-Identifier: Apache-2.0
"""What switchyard_vllm does in each process of vLLM while SWITCHYARD_VLLM is set."""
import functools
import importlib.util
import logging
import os
import sys
from typing import Any

import switchyard
from switchyard import InvalidArgumentError
from switchyard.compat import install

_MODULES = ("deep_ep", "flashinfer.comm")
_LOG = logging.getLogger("vllm.switchyard")
_USERS = "vllm.model_executor.layers.fused_moe.all2all_utils"  # reads once, when it is imported, whether there is a deep_ep


@functools.cache
def use(wanted: str) -> None:
    """`wanted` is "1", or names of modules with commas between them. "1" leaves out flashinfer.comm where no FlashInfer is
    installed: with the module alone, vLLM would look for FlashInfer's kernels too."""
    names = _MODULES if wanted == "1" else tuple(name.strip() for name in wanted.split(","))
    if not set(names) <= set(_MODULES):
        raise InvalidArgumentError(f"SWITCHYARD_VLLM is {wanted!r}, must be 0, 1, or of {', '.join(_MODULES)}, with commas between them")
    if wanted == "1" and importlib.util.find_spec("flashinfer") is None:
        names = ("deep_ep",)
    if "deep_ep" in names:
        if _USERS in sys.modules and "deep_ep" not in sys.modules:
            _LOG.warning("SWITCHYARD_VLLM: vLLM looked for deep_ep before its plug-ins were loaded; the backends deepep_* fail in this process")
        os.environ.setdefault("EP_DISABLE_GIN", "1")  # else vLLM refuses deepep_v2 without NICs that GPUs start by themselves
        _ask_for_no_nccl(sys.modules.get("vllm.utils.import_utils"))
    install(*names)
    _LOG.info("Switchyard %s is %s (SWITCHYARD_VLLM=%s)", switchyard.__version__, " and ".join(names), wanted)


def _ask_for_no_nccl(utils: Any) -> None:
    """vLLM wants NCCL 2.30.4 for deepep_v2, as DeepEP does; ElasticBuffer here needs none."""
    version_of_nccl = getattr(utils, "_get_runtime_nccl_version", None)
    if version_of_nccl is not None:
        least = utils.DEEPEP_V2_MIN_NCCL_VERSION_RAW
        utils._get_runtime_nccl_version = lambda: max(version_of_nccl() or 0, least)  # pylint: disable=protected-access
        utils._has_module.cache_clear()  # pylint: disable=protected-access

# SPDX-License-Identifier: Apache-2.0
"""Torch operators over this library: torch.ops.switchyard.*, with fake functions and gradients.

    exchange = switchyard.torch.Exchange(group, num_experts=64, num_topk=4, hidden=1024, max_tokens_per_rank=256)
    received = exchange.dispatch(x, topk_ids, topk_weights)
    y = exchange.combine(received, experts(received.rows, received.num_rows))

torch.compile takes them with fullgraph=True, and torch's CUDA graphs capture them: shapes do not depend on the
routing, and no operator waits for the GPU. docs/torch.md has a layer with its gradients.
"""
from switchyard.torch import _exchange_ops
from switchyard.torch._exchange import Exchange, Received
from switchyard.torch._quantize_ops import dequantize, quantize
from switchyard.torch._rows_ops import Permuted, permute, unpermute_and_reduce, weight_and_reduce

del _exchange_ops
__all__ = ["Exchange", "Permuted", "Received", "dequantize", "permute", "quantize", "unpermute_and_reduce", "weight_and_reduce"]

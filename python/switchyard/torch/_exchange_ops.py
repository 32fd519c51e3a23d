# SPDX-License-Identifier: Apache-2.0
"""dispatch and combine as operators. The gradient of dispatch is a combine without weights, that of combine a dispatch.

Shapes are those of Exchange.dispatch and Exchange.combine; what an exchange does not have is an empty tensor.
"""
# pylint: disable=unused-argument
from __future__ import annotations

import torch

from switchyard.errors import NotSupportedError
from switchyard.torch._exchange import find
from switchyard.torch._library import operator


def _dispatch_fake(x, topk_ids, topk_weights, scales, tensor_scale, exchange, slot):
    return find(exchange).empty_outputs(x)


@operator("dispatch(Tensor x, Tensor topk_ids, Tensor? topk_weights, Tensor? scales, Tensor? tensor_scale, str exchange, int slot)"
          " -> (Tensor rows, Tensor row_weights, Tensor row_scales, Tensor row_topk_ids, Tensor first_row, Tensor num_rows,"
          " Tensor total_rows)", _dispatch_fake)
def _dispatch(x, topk_ids, topk_weights, scales, tensor_scale, exchange, slot):
    options = {"scales": scales, "tensor_scale": tensor_scale}
    return find(exchange).run_dispatch(x, topk_ids, topk_weights, {name: value for name, value in options.items() if value is not None},
                                       slot)


def _dispatch_backward_fake(grad_rows, grad_row_weights, topk_ids, topk_weights, dtype, exchange, slot):
    num_tokens, num_topk = topk_ids.shape
    return (grad_rows.new_empty((num_tokens, grad_rows.shape[-1]), dtype=dtype),
            grad_rows.new_empty((0 if grad_row_weights is None else num_tokens, num_topk), dtype=torch.float32))


@operator("dispatch_backward(Tensor grad_rows, Tensor? grad_row_weights, Tensor topk_ids, Tensor? topk_weights, ScalarType dtype,"
          " str exchange, int slot) -> (Tensor grad_x, Tensor grad_topk_weights)", _dispatch_backward_fake)
def _dispatch_backward(grad_rows, grad_row_weights, topk_ids, topk_weights, dtype, exchange, slot):
    grad_x = grad_rows.new_empty((topk_ids.shape[0], grad_rows.shape[-1]), dtype=dtype)
    return grad_x, find(exchange).run_return(grad_rows, grad_row_weights, topk_ids, topk_weights, grad_x, slot)


def _combine_fake(rows, row_weights, total_rows, topk_ids, topk_weights, exchange, slot):
    return rows.new_empty((topk_ids.shape[0], rows.shape[-1]))


@operator("combine(Tensor rows, Tensor? row_weights, Tensor total_rows, Tensor topk_ids, Tensor? topk_weights, str exchange, int slot)"
          " -> Tensor", _combine_fake)
def _combine(rows, row_weights, total_rows, topk_ids, topk_weights, exchange, slot):
    return find(exchange).run_combine(rows, row_weights is not None, total_rows, topk_ids, topk_weights, slot)


def _combine_backward_fake(grad, topk_ids, topk_weights, num_rows, exchange, slot):
    return find(exchange).empty_rows(grad, num_rows)


@operator("combine_backward(Tensor grad, Tensor topk_ids, Tensor? topk_weights, SymInt num_rows, str exchange, int slot) -> Tensor",
          _combine_backward_fake)
def _combine_backward(grad, topk_ids, topk_weights, num_rows, exchange, slot):
    return find(exchange).run_dispatch_again(grad, topk_ids, topk_weights, slot)


def _keep_dispatch(ctx, inputs, output):
    x, topk_ids, topk_weights, _, _, exchange, slot = inputs
    ctx.save_for_backward(topk_ids, topk_weights)
    ctx.dtype, ctx.exchange, ctx.slot = x.dtype, exchange, slot
    ctx.mark_non_differentiable(*output[2:])


def _dispatch_gradient(ctx, grad_rows, grad_row_weights, *_):
    if find(ctx.exchange).is_quantized:
        raise NotSupportedError("dispatch: an exchange with a scheme that quantizes has no gradient; use a scheme that does not")
    topk_ids, topk_weights = ctx.saved_tensors
    wants_weights = topk_weights is not None and ctx.needs_input_grad[2]
    grad_x, grad_weights = torch.ops.switchyard.dispatch_backward(
        grad_rows, grad_row_weights if wants_weights else None, topk_ids, topk_weights, ctx.dtype, ctx.exchange, ctx.slot)
    return grad_x, None, grad_weights if wants_weights else None, None, None, None, None


def _keep_combine(ctx, inputs, output):
    rows, row_weights, _, topk_ids, topk_weights, exchange, slot = inputs
    wants_weights = row_weights is not None and ctx.needs_input_grad[1]
    ctx.save_for_backward(rows if wants_weights else None, row_weights, topk_ids, topk_weights)
    ctx.num_rows, ctx.dtype, ctx.exchange, ctx.slot = rows.shape[0], rows.dtype, exchange, slot


def _combine_gradient(ctx, grad):
    if find(ctx.exchange).is_quantized:
        raise NotSupportedError("combine: an exchange with a scheme that quantizes has no gradient; use a scheme that does not")
    rows, row_weights, topk_ids, topk_weights = ctx.saved_tensors
    grad_rows = torch.ops.switchyard.combine_backward(grad, topk_ids, topk_weights, ctx.num_rows, ctx.exchange, ctx.slot)
    grad_weights = None
    if row_weights is not None:
        if rows is not None:
            grad_weights = (grad_rows.float() * rows.float()).sum(dim=-1)
        grad_rows = grad_rows * row_weights.unsqueeze(-1)
    return grad_rows.to(ctx.dtype), grad_weights, None, None, None, None, None


torch.library.register_autograd("switchyard::dispatch", _dispatch_gradient, setup_context=_keep_dispatch)
torch.library.register_autograd("switchyard::combine", _combine_gradient, setup_context=_keep_combine)


def _no_second_gradient(ctx, *_):
    raise NotSupportedError("dispatch, combine: there are no second derivatives; detach the first gradient")


for _name in ("dispatch_backward", "combine_backward"):
    torch.library.register_autograd(f"switchyard::{_name}", _no_second_gradient)

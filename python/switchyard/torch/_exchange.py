# SPDX-License-Identifier: Apache-2.0
"""An exchange as operators see it: found by its name, with shapes that are known before any call.

The routing of a batch is its topk_ids, which every call gets: equal ids give equal rows on every rank. What a
slot keeps between dispatch and combine only saves a second look at the routing, so the operators are functions
of their arguments: they may be run again, in activation checkpointing for example, and need no state from the
forward pass in the backward pass.

Letters used for shapes:
  T  tokens on this rank     K  experts chosen per token     H  elements per token
  L  experts this rank has   C  capacity of an expert        N  rows of the receive buffer
"""
from __future__ import annotations

import hashlib
import itertools
import weakref
from typing import Any, NamedTuple

import torch

import switchyard
from switchyard.errors import ArgumentTypeError, InvalidArgumentError, NotSupportedError
from switchyard.torch._library import MAYBE_TENSOR, SIZE, TENSOR, require_type
from switchyard.torch._quantize_ops import empty_scales

_exchanges: weakref.WeakValueDictionary[str, Exchange] = weakref.WeakValueDictionary()
_numbers = itertools.count()


class Received(NamedTuple):
    """What dispatch returns: tensors of their own, which later calls leave alone."""

    rows: torch.Tensor
    """[L, C, H] in layout batched, else [N, H]; unless quantized, 0 in rows without a token."""
    scales: torch.Tensor | None
    """[L, C, S] or [N, S] in the scale layout of the exchange; None without scales."""
    weights: torch.Tensor | None
    """f32 [L, C] or [N], of each row; token-major layouts [N, K]; 0 where there is no token or no local expert. None: all 1."""
    topk_ids: torch.Tensor | None
    """i32 [N, K] in token-major layouts: index of the local expert, -1 for none."""
    first_row: torch.Tensor | None
    """i64 [L], layouts batched and expanded: first row of each expert."""
    num_rows: torch.Tensor
    """i32 [L]: rows, in token-major layouts tokens, of each local expert."""
    total_rows: torch.Tensor
    """i32 [1]: valid rows."""
    sent_topk_ids: torch.Tensor
    """[T, K] as passed to dispatch."""
    sent_topk_weights: torch.Tensor | None
    """[T, K] as passed to dispatch."""
    slot: int
    """The in-flight slot."""


class Exchange:
    """An exchange whose dispatch and combine are torch operators, with gradients.

    Keywords are those of switchyard.Exchange. Collective, like dispatch, combine, their gradients and close():
    every rank calls them in the same order; of compiled programs, every rank compiles the same.

    exact_rows   received tensors have as many rows as came. Shapes then depend on the data and, on GPUs, a
                 dispatch waits for the counts and cannot be captured. Otherwise they have room for any routing.
    """

    def __init__(self, group: switchyard.Group, config: switchyard.ExchangeConfig | None = None, *, exact_rows: bool = False,
                 **options: Any):
        for name in ("worst_case_rows", "zero_padding"):
            if name in options:
                raise InvalidArgumentError(f"switchyard.torch.Exchange: {name} is given, must be left out: it follows from exact_rows and the layout")
        options["worst_case_rows"] = not exact_rows
        self.layout = options.get("layout", config.layout if config is not None else "expanded")
        """The receive layout."""
        if self.layout == "expanded":
            options["zero_padding"] = True
        self.exchange = switchyard.Exchange(group, config, **options)
        """The exchange that moves the rows."""
        self.config = self.exchange.config
        """Its configuration."""
        try:
            self._set_up(group, exact_rows)
        except NotSupportedError:  # on all ranks
            self.exchange.close()
            raise
        except BaseException as error:
            self.exchange.__exit__(type(error), error, error.__traceback__)
            raise

    def _set_up(self, group: switchyard.Group, exact_rows: bool) -> None:
        _refuse(self.config)
        self.is_exact = exact_rows and self.layout not in ("batched", "by_rank")
        self.is_token_major = self.layout not in ("batched", "expanded")
        self.is_quantized = self.config.scheme.is_quantized
        share, extra = divmod(self.config.num_experts, group.size)
        counts = list(self.config.experts_per_rank) or [share + (rank < extra) for rank in range(group.size)]
        self._first_expert = sum(counts[:group.rank])
        self._num_local_experts = counts[group.rank]
        self._device = torch.device(str(self.exchange.device))
        self._counts: dict[str, Any] = {"host_counts": True} if self.is_exact and self.exchange.device.is_cuda else {}
        # A batch without experts has no rows, but a capacity.
        num_places = max(self.exchange.max_buffer_rows, self.config.capacity, group.size * self.config.max_tokens_per_rank)
        self._places = torch.arange(num_places, device=self._device)
        self._open: dict[int, tuple[switchyard.Handle, torch.Tensor]] = {}
        self._outputs = self._learn_shapes()
        self.has_scales = len(self._outputs[2][0]) > 1 or self.config.scheme.group == "tensor"
        # Compilers keep programs on disk by the arguments of operators: equal names must mean equal shapes.
        facts = repr((switchyard.__version__, self.config, self.is_exact, self._outputs))
        self.name = f"exchange {next(_numbers)} {hashlib.sha256(facts.encode()).hexdigest()[:16]}"
        _exchanges[self.name] = self

    def dispatch(self, x: torch.Tensor, topk_ids: torch.Tensor, topk_weights: torch.Tensor | None = None, *,
                 scales: torch.Tensor | None = None, tensor_scale: torch.Tensor | None = None, slot: int = 0) -> Received:
        """Sends each token to the ranks that hold its experts and receives what came here. Collective.

        x             [T, H] bf16, f16 or f32, or quantized by the scheme of the exchange, with scales
        topk_ids      [T, K] i32 or i64; -1: none
        topk_weights  [T, K] f32; None: all 1
        scales        [T, S] of tokens that are quantized already
        tensor_scale  f32 [1] for schemes that need one
        slot          batches that are between dispatch and combine at the same time are faster in slots of their
                      own, from 0 to max_in_flight - 1

        Gradients: of rows to x, of weights to topk_weights; unless the scheme quantizes.
        """
        require_type("dispatch", TENSOR, x=x, topk_ids=topk_ids)
        require_type("dispatch", MAYBE_TENSOR, topk_weights=topk_weights, scales=scales, tensor_scale=tensor_scale)
        require_type("dispatch", SIZE, slot=slot)
        rows, row_weights, row_scales, ids, first_row, num_rows, total_rows = torch.ops.switchyard.dispatch(
            x, topk_ids, topk_weights, scales, tensor_scale, self.name, slot)
        return Received(rows, row_scales if self.has_scales else None, row_weights if topk_weights is not None else None,
                        ids if self.is_token_major else None, None if self.is_token_major else first_row, num_rows, total_rows,
                        topk_ids, topk_weights, slot)

    def combine(self, received: Received, rows: torch.Tensor, *, weighted: bool = False) -> torch.Tensor:
        """Brings the results of experts back to the ranks of their tokens: [T, H], of the dtype of rows. Collective.

        rows      [L, C, H] or [N, H] bf16, f16 or f32, one for each received row; in token-major layouts the
                  weighted sum over the local experts of a token
        weighted  rows have their weights in them already; otherwise, except in token-major layouts, the sum
                  multiplies each with its weight in received, which must be as dispatch returned it

        Gradients: to rows, and to received.weights, from where they reach topk_weights.
        """
        if not isinstance(received, Received):
            raise ArgumentTypeError(f"combine: received is a {type(received).__name__}, must be what dispatch returned")
        require_type("combine", TENSOR, rows=rows)
        weights = None if weighted or self.is_token_major else received.weights
        return torch.ops.switchyard.combine(rows, weights, received.total_rows, received.sent_topk_ids, received.sent_topk_weights,
                                            self.name, received.slot)

    def check(self) -> None:
        """Raises what kernels that have ended found. Does not wait."""
        self.exchange.check()

    def close(self) -> None:
        """Ends the exchange; see switchyard.Exchange.close."""
        self._open.clear()
        self.exchange.close()

    def __enter__(self) -> Exchange:
        return self

    def __exit__(self, *exception: object) -> None:
        self._open.clear()
        self.exchange.__exit__(*exception)

    def __repr__(self) -> str:
        return f"switchyard.torch.{self.exchange!r}"

    # What the operators run.

    def run_dispatch(self, x: torch.Tensor, topk_ids: torch.Tensor, topk_weights: torch.Tensor | None,
                     options: dict[str, Any], slot: int) -> tuple[torch.Tensor, ...]:
        """Dispatches and copies what came out of the memory of the exchange; leaves the slot to a combine."""
        received = self._send(x, topk_ids, topk_weights, slot, **options)
        outputs = self._copy(received)
        self._open[slot] = (received.handle, outputs[-1])
        return outputs

    def run_dispatch_again(self, x: torch.Tensor, topk_ids: torch.Tensor, topk_weights: torch.Tensor | None, slot: int) -> torch.Tensor:
        """The rows of a dispatch to which no combine belongs."""
        received = self._send(x, topk_ids, topk_weights, slot)
        rows = received.rows.torch()
        has_token = self._has_token(rows, _torch(received.topk_ids), _torch(received.num_rows), _torch(received.total_rows))
        rows = self._copy_rows(rows, has_token)
        self.exchange.release(received)
        return rows

    def run_combine(self, rows: torch.Tensor, weighs: bool, total_rows: torch.Tensor, topk_ids: torch.Tensor,
                    topk_weights: torch.Tensor | None, slot: int) -> torch.Tensor:
        """Combines with the dispatch that is open in the slot, if it returned `total_rows`, else with one of the routing alone."""
        output = rows.new_empty(topk_ids.shape[0], self.config.hidden)
        handle: switchyard.Handle | switchyard.Dispatched
        if slot in self._open and self._open[slot][1].data_ptr() == total_rows.data_ptr():
            handle, _ = self._open.pop(slot)
        else:
            handle = self._reopen(output, topk_ids, topk_weights, slot)
        self.exchange.combine(handle, rows.contiguous(), output, **({} if weighs else self._without_weights(topk_ids)))
        return output

    def run_return(self, rows: torch.Tensor, row_weights: torch.Tensor | None, topk_ids: torch.Tensor,
                   topk_weights: torch.Tensor | None, output: torch.Tensor, slot: int) -> torch.Tensor:
        """Sums rows without weights into `output`; returns what the rows' ranks pass as row_weights, [T, K]."""
        handle = self._reopen(output, topk_ids, topk_weights, slot)
        options = self._without_weights(topk_ids)
        returned = torch.empty(topk_ids.shape if row_weights is not None else (0, topk_ids.shape[1]), dtype=torch.float32,
                               device=output.device)
        if row_weights is not None:
            shape = row_weights.shape if self.is_token_major else (-1,)
            options |= {"row_weights": row_weights.contiguous().view(shape), "returned_weights": returned}
        self.exchange.combine(handle, rows.contiguous(), output, **options)
        return returned

    def empty_outputs(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """What run_dispatch returns, without memory of its own: for fake tensors."""
        num_rows = torch.library.get_ctx().new_dynamic_size() if self.is_exact else None
        have_rows = (True, True, self.has_scales and self.config.scheme.group != "tensor", self.is_token_major, False, False, False)
        outputs = [_empty_like(output, x, num_rows if has_rows else None) for output, has_rows in zip(self._outputs, have_rows)]
        if num_rows is not None and have_rows[2]:
            (_, num_scales), _, dtype = self._outputs[2]
            outputs[2] = empty_scales(x, num_rows, num_scales, self.config.scale_layout, dtype)
        return tuple(outputs)

    def empty_rows(self, x: torch.Tensor, num_rows: int | torch.SymInt) -> torch.Tensor:
        """The rows of run_dispatch_again likewise."""
        return _empty_like(self._outputs[0], x, num_rows if self.is_exact else None)

    def _send(self, x, topk_ids, topk_weights, slot, **options) -> switchyard.Dispatched:
        self._give_up(slot)
        weights = None if topk_weights is None else topk_weights.contiguous()
        return self.exchange.dispatch(x.contiguous(), topk_ids.contiguous(), weights, slot=slot, **self._counts, **options)

    def _reopen(self, like, topk_ids, topk_weights, slot) -> switchyard.Dispatched:
        scale = {"tensor_scale": torch.ones(1, device=like.device)} if self._needs_tensor_scale else {}
        return self._send(like, topk_ids, topk_weights, slot, routing_only=True, **scale)

    def _give_up(self, slot: int) -> None:
        if slot in self._open:
            self.exchange.release(self._open.pop(slot)[0])

    def _without_weights(self, topk_ids: torch.Tensor) -> dict[str, Any]:
        if self.config.reduce == "per_rank":
            return {"rows_are_weighted": True}
        return {"topk_weights": torch.ones(topk_ids.shape, dtype=torch.float32, device=topk_ids.device)}

    def _copy(self, received: switchyard.Dispatched) -> tuple[torch.Tensor, ...]:
        rows, ids, weights = received.rows.torch(), _torch(received.topk_ids), _torch(received.topk_weights)
        num_rows, total_rows = _torch(received.num_rows), _torch(received.total_rows)
        has_token = self._has_token(rows, ids, num_rows, total_rows)
        if ids is not None and has_token is not None:
            if self.layout != "compact":
                ids = ids - self._first_expert
            is_local = (ids >= 0) & (ids < self._num_local_experts) & has_token[:, None]
            ids, weights = torch.where(is_local, ids, -1), torch.where(is_local, weights, 0)
        elif has_token is not None:
            weights = torch.where(has_token, weights.view(has_token.shape), 0)
        else:
            weights = weights.clone()
        return (self._copy_rows(rows, has_token), weights, self._own(received.scales, torch.float32),
                ids if ids is not None else torch.empty(0, dtype=torch.int32, device=self._device),
                self._own(received.first_row, torch.int64), num_rows.clone(), total_rows.clone())

    def _copy_rows(self, rows: torch.Tensor, has_token: torch.Tensor | None) -> torch.Tensor:
        if self.is_quantized or has_token is None:
            return rows.clone()
        return torch.where(has_token.unsqueeze(-1), rows, 0)

    def _has_token(self, rows, ids, num_rows, total_rows) -> torch.Tensor | None:
        """bool [L, C] or [N]: whether a row has a token. None: the exchange clears those that have none."""
        if self.layout == "expanded":
            return None
        if self.layout == "by_rank":
            return (ids >= 0).any(dim=1)
        if self.layout == "batched":
            return self._places[: rows.shape[1]] < num_rows[:, None]
        return self._places[: rows.shape[0]] < total_rows

    def _own(self, tensor: switchyard.Tensor | None, dtype: torch.dtype) -> torch.Tensor:
        """A copy with the same strides; None: an empty tensor of the dtype."""
        if tensor is None:
            return torch.empty(0, dtype=dtype, device=self._device)
        shown = tensor.torch()
        return torch.empty_strided(shown.shape, shown.stride(), dtype=shown.dtype, device=self._device).copy_(shown)

    def _learn_shapes(self) -> list[tuple[tuple[int, ...], tuple[int, ...], torch.dtype]]:
        """Of what dispatch returns, by dispatching no tokens."""
        config = self.config
        self._needs_tensor_scale = config.scheme.needs_tensor_scale or config.scheme.group == "tensor"
        scale = {"tensor_scale": torch.ones(1, device=self._device)} if self._needs_tensor_scale else {}
        ids = torch.empty(0, config.num_topk, dtype=torch.int64, device=self._device)
        tokens = torch.empty(0, config.hidden, dtype=torch.bfloat16, device=self._device)
        outputs = self.run_dispatch(tokens, ids, None, scale, 0)
        self._give_up(0)
        return [(tuple(output.shape), output.stride(), output.dtype) for output in outputs]


def find(name: str) -> Exchange:
    """The exchange of that name."""
    exchange = _exchanges.get(name)
    if exchange is None:
        raise InvalidArgumentError(f'switchyard.torch: there is no "{name}", must be an exchange of this process that is alive')
    return exchange


def _refuse(config: switchyard.ExchangeConfig) -> None:
    reasons = {
        "slices_experts": config.slices_experts,
        "num_topk 0": config.num_topk == 0,
        "payload_bytes": len(config.payload_bytes) > 0,
        "sends_weights false": not config.sends_weights,
        "swizzled scales": config.scale_layout == "swizzled",
    }
    for name, is_set in reasons.items():
        if is_set:
            raise NotSupportedError(f"switchyard.torch.Exchange: {name} has no operators; call switchyard.Exchange")


def _torch(tensor: switchyard.Tensor | None) -> Any:
    return None if tensor is None else tensor.torch()


def _empty_like(output, x, num_rows) -> torch.Tensor:
    shape, strides, dtype = output
    if num_rows is None:
        return torch.empty_strided(shape, strides, dtype=dtype, device=x.device)
    return x.new_empty((num_rows, *shape[1:]), dtype=dtype)

# SPDX-License-Identifier: Apache-2.0
"""Numbers of every rank on every host: sizes that must be equal on all ranks, counts that are summed over them."""
from collections.abc import Sequence

import numpy

from switchyard import Exchange, Group


class Gather:
    """A call gives the numbers, i32, that every rank passes: [P, n]. Collective; n is the same on every rank."""

    def __init__(self, group: Group):
        self._group = group
        self._exchanges: dict[int, Exchange] = {}  # by n

    def __call__(self, numbers: Sequence[int]) -> numpy.ndarray:
        row = numpy.asarray(numbers, numpy.int32).reshape(1, -1)
        if self._group.size == 1:
            return row
        exchange = self._exchanges.get(row.size)
        if exchange is None:
            exchange = self._exchanges[row.size] = Exchange(
                self._group, layout="all_gather", num_topk=1, num_experts=self._group.size, hidden=row.size, max_tokens_per_rank=1,
                scheme="f32", combine_scheme="f32")
        received = exchange.dispatch(row.view(numpy.float32), numpy.zeros((1, 1), numpy.int32))  # rows of f32 travel bit by bit
        gathered = received.rows.numpy().view(numpy.int32).copy()
        exchange.release(received)
        return gathered

    def largest(self, number: int) -> int:
        """The largest number that any rank passes. Collective."""
        return int(self([number]).max())

    def close(self) -> None:
        """Frees its windows."""
        for exchange in self._exchanges.values():
            exchange.close()
        self._exchanges.clear()

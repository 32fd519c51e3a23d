# SPDX-License-Identifier: Apache-2.0
"""The largest of the ranks' numbers, for windows that must be equal on every rank."""
import numpy

from switchyard import Exchange, Group


class Largest:
    """A call gives the largest number that any rank passes. Collective."""

    def __init__(self, group: Group):
        self._group = group
        self._exchange: Exchange | None = None

    def __call__(self, number: int) -> int:
        if self._group.size == 1:
            return number
        if self._exchange is None:
            self._exchange = Exchange(self._group, layout="all_gather", num_topk=1, num_experts=self._group.size, hidden=1,
                                      max_tokens_per_rank=1, scheme="f32", combine_scheme="f32")
        received = self._exchange.dispatch(numpy.full((1, 1), number, numpy.float32), numpy.zeros((1, 1), numpy.int32))
        largest = int(received.rows.numpy().max())
        self._exchange.release(received)
        return largest

    def close(self) -> None:
        """Frees its windows."""
        if self._exchange is not None:
            self._exchange.close()

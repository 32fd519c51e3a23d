# SPDX-License-Identifier: Apache-2.0
"""The handle of deep_ep.Buffer's high-throughput calls, as the original's tuple."""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy

from switchyard._native import HighThroughputBuffer
from switchyard.compat._arrays import as_bool, is_torch, library_of, like, plain


class HighThroughputHandle(Sequence):
    """What combine and later dispatches with the same routing need. It unpacks and is indexed as the original's tuple

    rank_prefix_matrix          i32 [P, P]: tokens that ranks up to the row's send to the column's; only this rank's
                                column is known, the others are -1
    channel_prefix_matrix       i32 [P, 1]: tokens that this rank sends to each; there is one channel
    recv_channel_prefix_matrix  i32 [P, 1]: 0, where the channel begins
    recv_src_idx                i32 [R]: the token on its source rank
    is_token_in_rank            bool [T, P]
    send_head                   i32 [T, P]: how many tokens went to the rank before this one; -1 if this one did not

    which takes kernels and memory, so it is made when it is first looked at: between dispatch and combine.
    """

    def __init__(self, buffer: HighThroughputBuffer, call: Any, rank: int, sample: Any):
        """`sample`: an array of the kind that the tuple has."""
        self.buffer, self.call = buffer, call
        self._rank, self._sample = rank, sample
        self._fields: tuple[Any, ...] | None = None

    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: Any) -> Any:
        if self._fields is None:
            self._fields = self._make_fields()
        return self._fields[index]

    def _make_fields(self) -> tuple[Any, ...]:
        sample = plain(self._sample)
        source, per_rank, is_in_rank = (like(tensor, sample) for tensor in self.buffer.handle_tensors(self.call))
        is_in_rank = as_bool(is_in_rank)
        library = library_of(sample)
        size, place = len(per_rank), {"device": sample.device} if is_torch(sample) else {}
        prefix = library.full((size, size), -1, dtype=library.int32, **place)
        prefix[:, self._rank] = library.cumsum(per_rank, 0)
        heads = library.where(is_in_rank, library.cumsum(is_in_rank, 0) - 1, -1)
        sent = is_in_rank.sum(0).reshape(size, 1)
        return (prefix, _to_i32(sent), library.zeros((size, 1), dtype=library.int32, **place), source, is_in_rank, _to_i32(heads))


def _to_i32(array: Any) -> Any:
    return array.int() if is_torch(array) else array.astype(numpy.int32)

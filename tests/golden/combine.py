# SPDX-License-Identifier: Apache-2.0
"""Results of experts brought back over ranks.

Formulas, each restated from the file that computes it:

  low latency     DeepEP, internode_ll.cu (combine): f32 from 0, fma of weight and row, k ascending
  expanded        DeepEP, combine.cuh and combine_reduce_epilogue.cuh: the rows of a token on one
                  rank are added, k ascending, and rounded; the owner adds bias rows, then one row
                  per rank in the order of its highest k, and rounds
  compact         the same without the first step
  reduce_scatter  vLLM, reduce_scatterv, in rank order

f32 sums start from +0 and are rounded once at each level. Expert e returns its row times
2^(e % 3 - 1), and rank r in the compact layout its row times 2^(r - 1), both rounded to bf16.
"""

import numpy as np

from numerics import BF16, F32, fma, integers, normal, random_words, round_to
from reduce import rows_of, weights_of

RANKS, E, K, H = 3, 7, 4, 24
TOKENS = [5, 0, 4]
FIRST_EXPERT = [0, 3, 5, 7]  # the first E % P ranks own one more


def owner(expert):
    return next(r for r in range(RANKS) if expert < FIRST_EXPERT[r + 1])


def distinct_ids(seed, num_tokens):
    ids = np.zeros((num_tokens, K), np.int32)
    for t in range(num_tokens):
        ids[t] = np.argsort(random_words(seed + t, E), kind="stable")[:K]
    ids[integers(seed + 50, num_tokens, 2) == 1, 1] = -1
    return ids


def f32(x):
    return x.astype(F32)


def expert_row(x, expert):
    return f32(round_to(BF16, f32(x) * F32(2.0 ** (expert % 3 - 1))))


def rank_row(x, rank):
    return f32(round_to(BF16, f32(x) * F32(2.0 ** (rank - 1))))


def low_latency(x, ids, weights):
    total = np.zeros(H, F32)
    for k in range(K):
        if ids[k] >= 0:
            total = fma(weights[k], expert_row(x, ids[k]), total)
    return round_to(BF16, total)


def ranks_by_highest_choice(ids):
    highest = {}
    for k in range(K):
        if ids[k] >= 0:
            highest[owner(ids[k])] = k
    return sorted(highest, key=highest.get)


def expanded(x, ids, biases):
    total = np.zeros(H, F32)
    for bias in biases:
        total = total + f32(bias)
    for rank in ranks_by_highest_choice(ids):
        partial = np.zeros(H, F32)
        for k in range(K):
            if ids[k] >= 0 and owner(ids[k]) == rank:
                partial = partial + expert_row(x, ids[k])
        total = total + f32(round_to(BF16, partial))
    return round_to(BF16, total)


def compact(x, ids):
    total = np.zeros(H, F32)
    for rank in ranks_by_highest_choice(ids):
        total = total + rank_row(x, rank)
    return round_to(BF16, total)


def reduce_scatter(x):
    total = np.zeros(H, F32)
    for rank in range(RANKS):
        total = total + rank_row(x, rank)
    return round_to(BF16, total)


def rank_vectors(rank):
    num_tokens = TOKENS[rank]
    x = rows_of(100 + rank, max(num_tokens, 1), BF16)[:num_tokens]
    ids = distinct_ids(110 + 100 * rank, num_tokens)
    if num_tokens:
        ids[-1] = -1  # a token without experts
    weights = weights_of(120 + rank, max(num_tokens, 1), K)[:num_tokens]
    biases = round_to(BF16, normal(130 + rank, 2 * num_tokens * H).reshape(2, num_tokens, H))
    yield "x", x
    yield "ids", ids
    yield "weights", weights
    yield "biases", biases

    def each(row):
        return np.array([row(t) for t in range(num_tokens)], BF16).reshape(num_tokens, H)

    yield "low_latency", each(lambda t: low_latency(x[t], ids[t], weights[t]))
    yield "expanded", each(lambda t: expanded(x[t], ids[t], []))
    yield "expanded_bias", each(lambda t: expanded(x[t], ids[t], biases[:, t]))
    yield "compact", each(lambda t: compact(x[t], ids[t]))
    yield "reduce_scatter", each(lambda t: reduce_scatter(x[t]))


def vectors():
    with np.errstate(all="ignore"):
        return {f"{rank}/{name}": np.asarray(array) for rank in range(RANKS)
                for name, array in rank_vectors(rank)}

# SPDX-License-Identifier: Apache-2.0
"""Weights on rows, sums over choices, and rows grouped by expert.

Formulas, each restated from the file that computes it (vLLM):

  weight on input   a1 * topk_weights.to(a1.dtype) in the three prepare/finalize classes of DeepEP
                    (low latency, V2) and FlashInfer
  contiguous        fused_moe/topk_weight_and_reduce.py and moe_align_sum_kernels.cu (moe_sum)
  naive batched     the same file's TopKWeightAndReduceNaiveBatched, with one rounding at the end
  permute, gather   fused_moe/deep_gemm_utils.py (ep_scatter, ep_gather), rows by token, then choice
"""

import numpy as np

from numerics import (DTYPES, F32, fma, from_bits, integers, normal, round_to, uniform)

H = 24


def rows_of(seed, count, dtype, h=H):
    """Rows with ties, zeros of both signs, subnormals, the largest values, infinities and NaN."""
    rows = normal(seed, count * h).reshape(count, h)
    rows[:, 1] = np.where(np.arange(count) % 2 == 0, F32(-0.0), F32(0))
    rows[:, 2] *= F32(2.0**-20)
    rows[:, 3] = F32(1 + 2.0**-7) * (np.arange(count) % 3 + 1)  # products and sums with ties
    rows[:, 4] = F32(-0.0)
    rows[:, 5] *= F32(60000)
    rows[:, 6] = F32(65504)
    rows[0, 7] = np.inf
    rows[1 % count, 8] = np.nan
    rows[2 % count, 9] = -np.inf
    rows[3 % count, 9] = np.inf
    rows[:, 10] = from_bits(np.arange(1, count + 1) * 12345)  # subnormal in bf16 and f32
    if dtype is not np.float16:
        rows[:, 11] = F32(3.3e38)
    with np.errstate(over="ignore"):
        return round_to(dtype, rows)


def weights_of(seed, *shape):
    weights = uniform(seed, int(np.prod(shape)))
    weights[::7] = F32(1 + 2.0**-8)  # a tie of bf16
    weights[1::11] = F32(0)
    weights[3::13] *= F32(-2.0**-130)
    return weights.reshape(shape)


def weigh_vectors():
    weights = weights_of(30, 16)
    yield "weigh/weights", weights
    for name, dtype in DTYPES.items():
        x = rows_of(31, 16, dtype)
        rounded = round_to(dtype, weights).astype(F32)
        yield f"weigh/{name}/x", x
        yield f"weigh/{name}/out", round_to(dtype, x.astype(F32) * rounded[:, None])


def contiguous(rows, weights, valid, dtype):
    """rows [T, K, H]: the rows after weighting in place, and their sums."""
    value = rows.astype(F32)
    if weights is not None:
        weighted = round_to(dtype, value * weights[..., None])
        rows = np.where(valid[..., None], weighted, rows)
        value = rows.astype(F32)
    total = np.zeros((rows.shape[0], rows.shape[2]), F32)
    for k in range(rows.shape[1]):
        total = np.where(valid[:, k, None], total + value[:, k], total)
    return rows, round_to(dtype, total)


def contiguous_vectors():
    num_tokens = 5
    expert_map = np.array([0, -1, 1, 2, -1, 3], np.int32)
    yield "contiguous/map", expert_map
    for num_topk in (1, 2, 3, 8):
        weights = weights_of(40 + num_topk, num_tokens, num_topk)
        ids = integers(41 + num_topk, num_tokens * num_topk, 7).reshape(num_tokens, num_topk) - 1
        ids[4] = -1
        path = f"contiguous/{num_topk}/"
        yield path + "weights", weights
        yield path + "ids", ids
        everything = np.ones_like(ids, bool)
        has_expert = (ids >= 0) & (expert_map[np.maximum(ids, 0)] >= 0)
        for name, dtype in DTYPES.items():
            rows = rows_of(42 + num_topk, num_tokens * num_topk, dtype)
            rows = rows.reshape(num_tokens, num_topk, H)
            yield path + name + "/rows", rows
            for case, given, valid in [("weighted", weights, everything),
                                       ("plain", None, everything),
                                       ("skip", weights, has_expert)]:
                after, out = contiguous(rows, given, valid, dtype)
                yield path + name + f"/{case}/out", out
                if given is not None:
                    yield path + name + f"/{case}/rows", after


def naive_batched_vectors():
    num_tokens, num_topk, num_local, rank, capacity = 9, 4, 3, 1, 9
    ids = integers(50, num_tokens * num_topk, 9).reshape(num_tokens, num_topk) - 1
    ids[2] = [4, 4, 5, 4]  # an expert three times: one row, the sum of the weights
    ids[3] = [0, 1, 7, -1]  # none of this rank
    weights = weights_of(51, num_tokens, num_topk)
    yield "batched/ids", ids.astype(np.int32)
    yield "batched/weights", weights
    for name, dtype in DTYPES.items():
        rows = rows_of(52, num_local * capacity, dtype).reshape(num_local, capacity, H)
        yield f"batched/{name}/rows", rows
        for case in ("weighted", "plain"):
            total = np.zeros((num_tokens, H), F32)
            for e in range(num_local):
                slot = 0
                for t in range(num_tokens):
                    chosen = [k for k in range(num_topk) if ids[t, k] == rank * num_local + e]
                    if not chosen:
                        continue
                    weight = F32(0)
                    for k in chosen:
                        weight = weight + weights[t, k]
                    if case == "plain":
                        weight = F32(1)
                    total[t] = fma(weight, rows[e, slot].astype(F32), total[t])
                    slot += 1
            yield f"batched/{name}/{case}/out", round_to(dtype, total)


# ---- rows by expert ----------------------------------------------------------------------------

def up(a, b):
    return -(-a // b) * b


def scatter(ids, expert_map, num_local, alignment):
    """Counts, first rows, inv_perm, m_indices with -1 in padding, and with its owner (0 at the
    end), of a buffer that suffices for every routing."""
    mapped = np.where(ids >= 0, expert_map[np.maximum(ids, 0)], -1)
    counts = np.array([(mapped == e).sum() for e in range(num_local)], np.int32)
    aligned = [up(int(n), alignment) for n in counts]
    first_row = np.concatenate([[0], np.cumsum(aligned)[:-1]]).astype(np.int64)
    num_rows = up(ids.size + min(ids.size, num_local) * (alignment - 1), alignment)
    inv_perm = np.full(ids.shape, -1, np.int32)
    m_indices = np.full(num_rows, -1, np.int32)
    owners = np.zeros(num_rows, np.int32)
    following = first_row.copy()
    for t in range(ids.shape[0]):
        for k in range(ids.shape[1]):
            e = mapped[t, k]
            if e < 0:
                continue
            inv_perm[t, k] = following[e]
            m_indices[following[e]] = e
            following[e] += 1
    for e in range(num_local):
        owners[first_row[e]: first_row[e] + aligned[e]] = e
    return counts, first_row, inv_perm, m_indices, owners


def permute_vectors():
    num_tokens, num_topk, num_local = 11, 3, 4
    expert_map = np.array([2, -1, 0, 3, -1, 1, -1], np.int32)
    ids = integers(60, num_tokens * num_topk, 7).reshape(num_tokens, num_topk)
    ids[1, 0] = -1
    ids[7] = [-1, 1, 4]  # no expert here
    ids[8] = [3, 3, 0]
    ids = np.where(ids == 5, 0, ids)  # local expert 1 gets nothing
    weights = weights_of(61, num_tokens, num_topk)
    x = rows_of(62, num_tokens, DTYPES["bf16"])
    scales = uniform(63, num_tokens * 3).reshape(num_tokens, 3)
    exponents = integers(64, num_tokens * 6, 256).reshape(num_tokens, 6).astype(np.uint8)
    for name, array in [("map", expert_map), ("ids", ids), ("weights", weights), ("x", x),
                        ("scales", scales), ("exponents", exponents)]:
        yield "permute/" + name, array
    for alignment in (1, 8, 128):
        counts, first_row, inv_perm, m_indices, owners = scatter(ids, expert_map, num_local,
                                                                 alignment)
        path = f"permute/{alignment}/"
        yield path + "counts", counts
        yield path + "first_row", first_row
        yield path + "inv_perm", inv_perm
        yield path + "m_indices", m_indices
        yield path + "owners", owners
        if alignment == 128:
            continue
        to_x = np.zeros((len(m_indices), H), x.dtype)
        to_scales = np.zeros((len(m_indices), 3), F32)
        to_words = np.zeros((len(m_indices), 2), np.int32)
        words = np.zeros((num_tokens, 8), np.uint8)
        words[:, :6] = exponents
        for t in range(num_tokens):
            for row in inv_perm[t][inv_perm[t] >= 0]:
                to_x[row], to_scales[row], to_words[row] = x[t], scales[t], words[t].view("<i4")
        yield path + "x", to_x
        yield path + "scales", to_scales
        yield path + "words", to_words
        for name, dtype in DTYPES.items():
            rows = rows_of(65, len(m_indices), dtype)
            total = np.zeros((num_tokens, H), F32)
            for t in range(num_tokens):
                for k in range(num_topk):
                    if inv_perm[t, k] >= 0:
                        total[t] = fma(weights[t, k], rows[inv_perm[t, k]].astype(F32), total[t])
            yield path + name + "/rows", rows
            for to_name, to in DTYPES.items():
                yield path + name + "/" + to_name, round_to(to, total)


def vectors():
    with np.errstate(all="ignore"):
        return {name: np.asarray(array) for part in
                (weigh_vectors(), contiguous_vectors(), naive_batched_vectors(), permute_vectors())
                for name, array in part}

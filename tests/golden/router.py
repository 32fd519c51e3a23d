# SPDX-License-Identifier: Apache-2.0
"""Router logits, and experts and weights chosen from logits.

Formulas, each restated from the file that computes it:

  softmax, top-k           vLLM, csrc/moe/topk_softmax_kernels.cu: scores first, then the largest,
                           the lower id where scores are equal
  groups, V2 and V3        vLLM, fused_moe/router (grouped_topk): experts of excluded groups are
                           -infinity; a group scores as its best, or with a bias as the sum of its
                           two best; weights come from scores without the bias
  divisor + 1e-20          Hugging Face, DeepSeek-V3 modeling_deepseek.py (MoEGate)

Scores are computed with 40 digits and rounded to f32 once; sums are exact. No choice may hang on the
error of an exp: that is asserted.
"""

import decimal

import numpy as np

from numerics import BF16, F32, exp, fma, integers, normal, round_to, sigmoid

E = 16
CASES = {
    # name: (scoring, norm, scaling, selection, groups, kept groups, k, has a bias)
    "mixtral": ("softmax", True, 1.0, "none", 1, 1, 2, False),
    "qwen": ("softmax", False, 1.0, "none", 1, 1, 4, False),
    "v2": ("softmax", False, 16.0, "max", 4, 2, 3, False),
    "v3": ("sigmoid", True, 2.5, "top2sum", 4, 2, 4, True),
    "biased": ("sigmoid", False, 1.0, "none", 1, 1, 5, True),
    "all": ("sigmoid", True, 1.0, "none", 1, 1, 16, False),
}


def logit_rows(case):
    rows = (integers(80, 7 * E, 97).reshape(7, E).astype(F32) - F32(48)) / F32(8)
    rows[1] = 0  # all equal: the lower ids win
    rows[2, ::3] = rows[2, 1]  # ties
    # Scores that are 1 in f32, and subnormal ones; none that an exp could round to either side.
    rows[3] = [60, 50, 40, 12, -8, -30, -97, -100, 8, 0, -60, 4, -4, 24, -12, -90]
    rows[4] = F32(-0.0)
    rows[4, 5:7] = F32(0.125)
    rows[5, 2] = -np.inf
    if case == "biased":
        rows[6, 3] = np.nan  # last; the others keep their order
    return rows


def score_rows(scoring, logits):
    """Scores as Decimals, and rounded to f32."""
    exact = []
    for row in logits:
        if scoring == "softmax":
            largest = float(max(row))
            powers = [exp(float(x) - largest) for x in row]
            total = sum(powers)
            exact.append([power / total for power in powers])
        else:
            exact.append([decimal.Decimal("NaN") if np.isnan(x) else sigmoid(float(x))
                          for x in row])
    return exact, np.array([[F32(float(x)) for x in row] for row in exact], F32)


def order_of(values):
    """Indices, the largest value first, equal ones by index, NaN last."""
    return sorted(range(len(values)), key=lambda i: (np.isnan(values[i]), -values[i], i))


def check_margin(values, count):
    """Neighbors in the order, up to the first that is not chosen, are equal or clearly apart."""
    ranked = [float(values[i]) for i in order_of(values)]
    for a, b in zip(ranked[:count], ranked[1:count + 1]):
        assert a == b or np.isnan(b) or b == -np.inf or abs(a - b) > 1e-6 * max(abs(a), 1e-38), (
            a, b)


def choose(case, logits, bias):
    scoring, norm, scaling, selection, groups, kept, k, has_bias = CASES[case]
    exact, scores = score_rows(scoring, logits)
    ids = np.zeros((len(logits), k), np.int32)
    weights = np.zeros((len(logits), k), F32)
    for t, row in enumerate(scores):
        choice = row + bias if has_bias else row.copy()
        if selection != "none":
            per_group = choice.reshape(groups, -1)
            if selection == "max":
                group_scores = per_group.max(axis=1)
            else:
                ranked = -np.sort(-per_group, axis=1)
                group_scores = ranked[:, 0] + ranked[:, 1]
            check_margin(group_scores, kept)
            for group in order_of(group_scores)[kept:]:
                choice.reshape(groups, -1)[group] = -np.inf
        check_margin(choice, k)
        ids[t] = order_of(choice)[:k]
        chosen = [exact[t][i] for i in ids[t]]
        if norm:
            total = sum(chosen) + (decimal.Decimal("1e-20") if selection == "top2sum" else 0)
            chosen = [x / total for x in chosen]
        weights[t] = [F32(float(x * decimal.Decimal(scaling))) for x in chosen]
    return ids, weights


def logits_vectors():
    hidden = round_to(BF16, normal(81, 3 * 40).reshape(3, 40))
    gate = normal(82, 4 * 40).reshape(4, 40)
    yield "logits/hidden", hidden
    for name, weight in [("f32", gate), ("bf16", round_to(BF16, gate))]:
        sums = np.zeros((3, 4), F32)
        for h in range(40):
            sums = fma(hidden[:, None, h].astype(F32), weight[None, :, h].astype(F32), sums)
        yield f"logits/{name}/gate", weight
        yield f"logits/{name}/out", sums


def vectors():
    bias = ((integers(83, E, 65) - 32) / 64).astype(F32)
    tensors = {"bias": bias}
    with np.errstate(all="ignore"):
        tensors.update(logits_vectors())
        for case in CASES:
            logits = logit_rows(case)
            tensors[case + "/logits"] = logits
            tensors[case + "/ids"], tensors[case + "/weights"] = choose(case, logits, bias)
    return tensors

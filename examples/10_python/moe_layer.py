# SPDX-License-Identifier: Apache-2.0
"""One Mixture-of-Experts layer over four CPU ranks, with numpy alone, compared with plain numpy.

usage: python examples/10_python/moe_layer.py     after `pip install .`
"""
import numpy as np

import switchyard

RANKS, EXPERTS, TOPK, HIDDEN, INTERMEDIATE, TOKENS = 4, 16, 4, 256, 128, 24
SIZES = {"num_experts": EXPERTS, "num_topk": TOPK, "hidden": HIDDEN, "max_tokens_per_rank": TOKENS}

random = np.random.default_rng(0)
ROUTER = random.normal(size=(EXPERTS, HIDDEN)).astype(np.float32)
GATE, UP = (random.normal(scale=0.1, size=(EXPERTS, INTERMEDIATE, HIDDEN)).astype(np.float32) for _ in range(2))
DOWN = random.normal(scale=0.1, size=(EXPERTS, HIDDEN, INTERMEDIATE)).astype(np.float32)
TOKENS_OF_RANK = [random.normal(size=(TOKENS - rank, HIDDEN)).astype(np.float32) for rank in range(RANKS)]


def expert(number, x):
    """The MLP of one expert: down(silu(gate(x)) * up(x))."""
    gate, up = x @ GATE[number].T, x @ UP[number].T
    return (gate / (1 + np.exp(-gate)) * up) @ DOWN[number].T


def layer(group):
    """What each rank does: it has its own tokens and EXPERTS / RANKS of the experts."""
    tokens = TOKENS_OF_RANK[group.rank]
    first_expert = group.rank * EXPERTS // RANKS
    topk_ids, topk_weights = switchyard.select_experts(switchyard.router_logits(tokens, ROUTER), TOPK, norm_topk_prob=True)

    # Rows travel as f32 here, so that the result can be compared; "fp8_block" would send a quarter of the bytes.
    with switchyard.Exchange(group, scheme="f32", combine_scheme="f32", layout="expanded", **SIZES) as exchange:
        received = exchange.dispatch(tokens, topk_ids, topk_weights)
        rows = received.rows.numpy()  # the memory of the exchange: rows of each local expert, one expert after another
        results = np.zeros_like(rows)
        for local, (first, count) in enumerate(zip(received.first_row.numpy(), received.num_rows.numpy())):
            mine = slice(first, first + count)
            results[mine] = expert(first_expert + local, rows[mine])
        output = exchange.combine(received, results).numpy()  # weighted and summed, at the ranks of the tokens
    return output, received.host.num_rows


def plain_layer(tokens):
    """The same layer on one rank, in numpy."""
    logits = tokens @ ROUTER.T
    ids = np.argsort(-logits, axis=1, kind="stable")[:, :TOPK]
    chosen = np.take_along_axis(logits, ids, axis=1)
    weights = np.exp(chosen - chosen.max(axis=1, keepdims=True))
    weights /= weights.sum(axis=1, keepdims=True)
    output = np.zeros_like(tokens)
    for number in range(EXPERTS):
        token, k = np.nonzero(ids == number)
        output[token] += weights[token, k, None] * expert(number, tokens[token])
    return output


def main():
    """Runs the ranks as threads of this process and compares their outputs."""
    for rank, (output, num_rows) in enumerate(switchyard.run_local(RANKS, layer)):
        expected = plain_layer(TOKENS_OF_RANK[rank])
        error = np.abs(output - expected).max() / np.abs(expected).max()
        print(f"rank {rank}: {len(output)} tokens, {num_rows} rows received, error against plain numpy {error:.1e}")
        assert error < 1e-5


if __name__ == "__main__":
    main()

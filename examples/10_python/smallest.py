# SPDX-License-Identifier: Apache-2.0
import numpy as np
import switchyard


def rank(group):
    tokens = np.ones((1, 8), np.float32)  # one token
    ids = np.array([[0, 3]])  # expert 0: rank 0, expert 3: rank 1
    weights = np.array([[0.25, 0.5]], np.float32)

    exchange = switchyard.Exchange(
        group, num_experts=4, num_topk=2, hidden=8,
        max_tokens_per_rank=1,
        # rows stay f32; the default is bf16
        scheme="f32", combine_scheme="f32")
    received = exchange.dispatch(tokens, ids, weights)
    # Here an expert would work on received.rows.
    output = exchange.combine(received, received.rows)
    return float(output.numpy()[0, 0])


print(switchyard.run_local(2, rank))  # [0.75, 0.75]

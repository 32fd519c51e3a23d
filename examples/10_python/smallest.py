# SPDX-License-Identifier: Apache-2.0
import numpy as np
import switchyard


def rank(group):
    token = np.ones((1, 8), np.float32)
    ids = np.array([[0, 3]])  # expert 0 is on rank 0, expert 3 on rank 1
    weights = np.array([[0.25, 0.5]], np.float32)
    with switchyard.Exchange(group, num_experts=4, num_topk=2, hidden=8, max_tokens_per_rank=1,
                             scheme="f32", combine_scheme="f32") as exchange:
        received = exchange.dispatch(token, ids, weights)
        # Here experts would turn received.rows into results.
        output = exchange.combine(received, received.rows)
        return float(output.numpy()[0, 0])


print(switchyard.run_local(2, rank))  # [0.75, 0.75]

# SPDX-License-Identifier: Apache-2.0
"""A small MoE layer over switchyard.torch, the same layer in plain torch, and a program that compares them on one rank.

usage: python torch_layer.py MODE RANK SIZE STORE DEVICE

MODE: eager (every layout), aot_eager or inductor (torch.compile), reduce-overhead (with CUDA graphs of the compiler), graph or
training_graph (torch.cuda.CUDAGraph around the layers, without and with their gradients)
"""
import contextlib
import sys

import torch

import switchyard
import switchyard.torch

E, K, H, T = 8, 2, 32, 6
LAYOUTS = ("expanded", "batched", "compact", "by_rank", "all_gather")
VARIANTS = [*((layout, {}) for layout in LAYOUTS), *((layout, {"exact_rows": True}) for layout in LAYOUTS),
            ("expanded", {"reduce": "per_expert"}), ("batched", {"reduce": "per_expert"})]


def weights_of_experts():
    generator = torch.Generator().manual_seed(100)
    return torch.randn(E, H, H, generator=generator) / H**0.5


def batch(rank, seed=0):
    """(x, topk_ids, topk_weights) of a rank: another number of tokens on each, one choice of none."""
    generator = torch.Generator().manual_seed(10 * seed + rank)
    num_tokens = T - rank % 3
    ids = torch.stack([torch.randperm(E, generator=generator)[:K] for _ in range(num_tokens)])
    ids[0, 0] = -1
    return torch.randn(num_tokens, H, generator=generator), ids, torch.rand(num_tokens, K, generator=generator)


def dense_layer(x, ids, weights, w):
    y = torch.zeros_like(x)
    for k in range(K):
        rows = torch.tanh(torch.einsum("th,tho->to", x, w[ids[:, k].clamp(min=0)]))
        y = y + (weights[:, k] * (ids[:, k] >= 0)).unsqueeze(-1) * rows
    return y


def experts(received, w):
    """Results of the local experts, for every layout."""
    rows = received.rows
    if rows.dim() == 3:
        return torch.tanh(torch.bmm(rows, w))
    every = torch.tanh(torch.einsum("nh,eho->neo", rows, w))  # [N, L, H]
    if received.topk_ids is None:
        places = torch.arange(rows.shape[0], device=rows.device)
        owner = torch.searchsorted(received.first_row, places, right=True) - 1
        return every[places, owner]
    ids = received.topk_ids.long()
    chosen = every.gather(1, ids.clamp(min=0).unsqueeze(-1).expand(-1, -1, rows.shape[1]))
    return (chosen * (received.weights * (ids >= 0)).unsqueeze(-1)).sum(dim=1)


def make_exchange(group, layout="expanded", device="cpu", **options):
    if layout == "expanded":
        options.setdefault("expert_alignment", 4)
    return switchyard.torch.Exchange(group, num_experts=E, num_topk=K, hidden=H, max_tokens_per_rank=T, layout=layout, scheme="f32",
                                     combine_scheme="f32", device=device, **options)


def layer(exchange, x, ids, weights, w):
    received = exchange.dispatch(x, ids, weights)
    return exchange.combine(received, experts(received, w))


def two_layers(exchange, x, ids, weights, w):
    return layer(exchange, layer(exchange, x, ids, weights, w), ids, weights, w)


def local_weights(group, device="cpu"):
    share = E // group.size
    return weights_of_experts()[group.rank * share:(group.rank + 1) * share].to(device).requires_grad_()


def leaves(rank, device="cpu", seed=0):
    x, ids, weights = batch(rank, seed)
    return x.to(device).requires_grad_(), ids.to(device), weights.to(device).requires_grad_()


def loss_of(y):
    return (y * torch.arange(1, H + 1, device=y.device)).sum()


def expected_of(size, rank, seed=0, function=lambda *args: dense_layer(dense_layer(*args), *args[1:])):
    """(y, gradients of x and topk_weights, gradient of all experts) by autograd of the dense layers over all ranks."""
    w = weights_of_experts().requires_grad_()
    mine = None
    for one in range(size):
        x, ids, weights = leaves(one, seed=seed)
        y = function(x, ids, weights, w)
        loss_of(y).backward()
        if one == rank:
            mine = (y.detach(), x.grad, weights.grad)
    return (*mine, w.grad)


def compare(group, found, seed=0, **options):
    """found: (y, gradient of x, of topk_weights, of the local experts)."""
    y, grad_x, grad_weights, grad_w = expected_of(group.size, group.rank, seed, **options)
    share = E // group.size
    expected = (y, grad_x, grad_weights, grad_w[group.rank * share:(group.rank + 1) * share])
    for a, b in zip(found, expected):
        torch.testing.assert_close(a.cpu(), b, rtol=2e-4, atol=2e-4)


def train(function, inputs, w):
    """One step: (y, gradients of x, topk_weights and the local experts)."""
    x, ids, weights = inputs
    y = function(x, ids, weights, w)
    return (y.detach(), *torch.autograd.grad(loss_of(y), (x, weights, w)))


def run(mode, group, device, layout="batched", **options):
    w = local_weights(group, device)
    with make_exchange(group, layout, device, **options) as exchange:
        def function(*args):
            return two_layers(exchange, *args)

        if mode in ("graph", "training_graph"):
            run_graph(mode, group, function, w, device)
        else:
            run_steps(mode, group, function, w, device)
        if device != "cpu":
            torch.cuda.synchronize()
            exchange.check()


def run_steps(mode, group, function, w, device):
    if mode == "reduce-overhead":
        function = torch.compile(function, fullgraph=True, mode=mode)
    elif mode != "eager":
        function = torch.compile(function, fullgraph=True, backend=mode)
    for seed in (0, 1, 2, 0, 1):
        torch.compiler.cudagraph_mark_step_begin()
        compare(group, train(function, leaves(group.rank, device, seed), w), seed)


def run_graph(mode, group, function, w, device):
    """Captures the layers, with their gradients in mode training_graph, and replays them with other inputs."""
    x, ids, weights = leaves(group.rank, device)
    is_training = mode == "training_graph"

    def step():
        return train(function, (x, ids, weights), w) if is_training else (function(x, ids, weights, w),)

    with contextlib.nullcontext() if is_training else torch.no_grad():
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(2):
                step()
        torch.cuda.synchronize()
        group.barrier()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            found = step()
    for seed in (1, 2, 0):
        with torch.no_grad():
            for buffer, value in zip((x, ids, weights), batch(group.rank, seed)):
                buffer.copy_(value)
        graph.replay()
        torch.cuda.synchronize()
        compare(group, found, seed)


def main():
    mode, rank, size, store, device = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4], sys.argv[5]
    group = switchyard.Group(rank, size, store, timeout_ms=300_000)  # compilers take their time
    if device == "cuda":
        device = str(group.default_gpu())
        torch.cuda.set_device(device)
    for layout, options in VARIANTS if mode == "eager" else [("batched", {}), ("expanded", {})]:
        run(mode, group, device, layout, **options)
    group.close()
    print("equal")


if __name__ == "__main__":
    main()

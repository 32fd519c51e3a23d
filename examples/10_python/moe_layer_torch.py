# SPDX-License-Identifier: Apache-2.0
"""A Mixture-of-Experts layer in torch, one rank per GPU, or four on the CPU, compared with plain torch.

usage: python examples/10_python/moe_layer_torch.py     after `pip install .`, with torch installed

Each rank is a process. On GPUs the layer is also captured in a CUDA graph and replayed.
"""
import pathlib
import tempfile

import torch
from torch import nn
from torch.nn import functional

import switchyard
import switchyard.torch

EXPERTS, TOPK, HIDDEN, INTERMEDIATE, TOKENS = 16, 4, 256, 128, 24
NUM_GPUS = switchyard.num_cuda_devices() if torch.cuda.is_available() else 0
DEVICE = "cuda" if NUM_GPUS else "cpu"
RANKS = next(size for size in (8, 4, 2, 1) if size <= (NUM_GPUS or 4))  # a divisor of EXPERTS


def make_weights():
    """The router and all experts, the same on every rank."""
    generator = torch.Generator().manual_seed(0)
    return {"router": torch.randn(EXPERTS, HIDDEN, generator=generator) / HIDDEN**0.5,
            "gate": torch.randn(EXPERTS, HIDDEN, INTERMEDIATE, generator=generator) / HIDDEN**0.5,
            "up": torch.randn(EXPERTS, HIDDEN, INTERMEDIATE, generator=generator) / HIDDEN**0.5,
            "down": torch.randn(EXPERTS, INTERMEDIATE, HIDDEN, generator=generator) / INTERMEDIATE**0.5}


def tokens_of(rank):
    """[T, H]: each rank has its own tokens, and another number of them."""
    return torch.randn(TOKENS - rank, HIDDEN, generator=torch.Generator().manual_seed(1 + rank))


def route(x, router):
    """(topk_ids, topk_weights), both [T, K]."""
    logits, ids = torch.topk(x @ router.T, TOPK)
    return ids, torch.softmax(logits, dim=1)


def make_exchange(group, device):
    """Rows travel as f32 here, so that results can be compared; "none" would send bf16, half of the bytes."""
    return switchyard.torch.Exchange(group, num_experts=EXPERTS, num_topk=TOPK, hidden=HIDDEN, max_tokens_per_rank=TOKENS,
                                     layout="batched", scheme="f32", combine_scheme="f32", device=device)


class MoELayer(nn.Module):
    """The router, and EXPERTS / RANKS of the experts."""

    def __init__(self, exchange, rank, size):
        super().__init__()
        self.exchange = exchange
        mine = slice(rank * EXPERTS // size, (rank + 1) * EXPERTS // size)
        for name, weight in make_weights().items():
            setattr(self, name, nn.Parameter((weight if name == "router" else weight[mine]).clone()))

    def forward(self, x):
        """[T, H] to [T, H]."""
        received = self.exchange.dispatch(x, *route(x, self.router))
        rows = received.rows  # [L, C, H]: the tokens of each local expert, whichever rank they came from
        hidden = functional.silu(torch.bmm(rows, self.gate)) * torch.bmm(rows, self.up)
        return self.exchange.combine(received, torch.bmm(hidden, self.down))  # weighted and summed, at the ranks of the tokens


def plain_layer(x, weights):
    """The same layer on one rank in plain torch."""
    ids, topk_weights = route(x, weights["router"])
    rows = x.unsqueeze(1)
    hidden = functional.silu(torch.einsum("tkh,ehi->tei", rows, weights["gate"])) * torch.einsum("tkh,ehi->tei", rows, weights["up"])
    results = torch.einsum("tei,eih->teh", hidden, weights["down"])
    return (results.gather(1, ids.unsqueeze(-1).expand(-1, -1, HIDDEN)) * topk_weights.unsqueeze(-1)).sum(dim=1)


@torch.no_grad()
def run_rank(rank, store):
    """What each process does."""
    group = switchyard.Group(rank, RANKS, store)
    device = torch.device(DEVICE, rank) if DEVICE == "cuda" else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    with make_exchange(group, device) as exchange:
        layer = MoELayer(exchange, rank, RANKS).to(device)
        x = tokens_of(rank).to(device)
        outputs = {"eager": layer(x)}
        if device.type == "cuda":
            outputs["graph"] = replay(layer, x)
            exchange.check()
        for name, output in outputs.items():
            expected = plain_layer(tokens_of(rank), make_weights())
            error = ((output.cpu() - expected).abs().max() / expected.abs().max()).item()
            print(f"rank {rank} on {device}, {name}: {len(output)} tokens, error against plain torch {error:.1e}", flush=True)
            assert error < 1e-3
    group.close()


def replay(layer, x):
    """Captures the layer in a CUDA graph and returns what a replay computes."""
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        output = layer(x)
    graph.replay()
    torch.cuda.synchronize()
    return output


def main():
    """Starts a process for each rank."""
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(run_rank, args=(str(pathlib.Path(folder) / "store"),), nprocs=RANKS)


if __name__ == "__main__":
    main()

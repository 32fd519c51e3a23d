# SPDX-License-Identifier: Apache-2.0
"""Training steps of a Mixture-of-Experts layer over torch.distributed, compared with plain torch on one rank.

usage: python examples/10_python/training_step.py     after `pip install .`, with torch installed

Gradients travel as tokens do: that of combine by a dispatch, that of dispatch by a combine. The layer is that of
moe_layer_torch.py: one rank per GPU, or four on the CPU.
"""
import pathlib
import tempfile

import torch
from moe_layer_torch import DEVICE, HIDDEN, RANKS, TOKENS, MoELayer, make_exchange, make_weights, plain_layer, tokens_of
from torch import distributed

import switchyard

STEPS, LEARNING_RATE = 3, 10.0
NUM_TOKENS = sum(TOKENS - rank for rank in range(RANKS))


def loss_of(output, x):
    """This rank's share of the mean square error: the layer learns to double its tokens."""
    return (output - 2 * x).square().sum() / (NUM_TOKENS * HIDDEN)


def train(layer, x):
    """Runs the steps and returns the loss over all ranks before each."""
    optimizer = torch.optim.SGD(layer.parameters(), lr=LEARNING_RATE)
    losses = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = loss_of(layer(x), x)
        loss.backward()
        distributed.all_reduce(layer.router.grad)  # every rank has the router; an expert is on one rank alone
        optimizer.step()
        loss = loss.detach()
        distributed.all_reduce(loss)
        losses.append(loss.item())
    return losses


def train_plain():
    """The same in plain torch with all tokens and experts: (losses, weights)."""
    weights = {name: weight.requires_grad_() for name, weight in make_weights().items()}
    optimizer = torch.optim.SGD(weights.values(), lr=LEARNING_RATE)
    losses = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = sum(loss_of(plain_layer(x, weights), x) for x in map(tokens_of, range(RANKS)))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, {name: weight.detach() for name, weight in weights.items()}


def run_rank(rank, folder):
    """What each process does."""
    device = torch.device(DEVICE, rank) if DEVICE == "cuda" else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    distributed.init_process_group("nccl" if device.type == "cuda" else "gloo", init_method=f"file://{folder}/torch", rank=rank,
                                   world_size=RANKS)
    with switchyard.Group.from_torch() as group, make_exchange(group, device) as exchange:
        layer = MoELayer(exchange, rank, RANKS).to(device)
        losses = train(layer, tokens_of(rank).to(device))
        exchange.check()
    plain_losses, plain_weights = train_plain()
    compare(rank, layer, losses, plain_losses, plain_weights)
    distributed.destroy_process_group()


def compare(rank, layer, losses, plain_losses, plain_weights):
    """Losses, and the weights after all steps."""
    torch.testing.assert_close(losses, plain_losses, rtol=1e-3, atol=0)
    for name, weight in layer.named_parameters():
        expected = plain_weights[name]
        if name != "router":
            expected = expected[rank * len(weight):(rank + 1) * len(weight)]
        torch.testing.assert_close(weight.detach().cpu(), expected, rtol=1e-3, atol=1e-4)
    print(f"rank {rank}: losses {', '.join(f'{loss:.2f}' for loss in losses)}, all weights those of plain torch", flush=True)


def main():
    """Starts a process for each rank."""
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(run_rank, args=(str(pathlib.Path(folder)),), nprocs=RANKS)


if __name__ == "__main__":
    main()

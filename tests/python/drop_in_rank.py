# SPDX-License-Identifier: Apache-2.0
"""One rank of drop_in_grid.py: runs cases eagerly and from CUDA graphs, and keeps what the checks find."""
import gc
import json
import sys

import torch

EAGER_ROUNDS, GRAPH_ROUNDS = (0, 1), (2, 3)  # each with ids and rows of its own
HOST_COUNTS = "not captured: the host learns the counts"
ON_CPU = "not captured: CPU"


class Case:
    """What the checks of one case found, on one rank."""

    def __init__(self, name, rank):
        self.name, self._rank = name, rank
        self.failures, self.values = [], {}
        self.stage = "eager"

    def fail(self, what):
        """Keeps a failure and prints it at once."""
        line = f"rank {self._rank}: {self.name}, {self.stage}: {what}"
        self.failures.append(line)
        print(line, file=sys.stderr, flush=True)

    def equal(self, what, found, expected):
        """Same values; for tensors also the same shape and dtype."""
        if not isinstance(expected, torch.Tensor):
            if found != expected:
                self.fail(f"{what}{difference_of(found, expected)}")
        elif not isinstance(found, torch.Tensor) or found.shape != expected.shape or found.dtype != expected.dtype:
            self.fail(f"{what}: is {describe(found)}, must be {describe(expected)}")
        elif not same(found, expected):
            self.fail(f"{what}: {first_difference(found, expected)}")

    def below(self, what, value, limit):
        """A measured value under its limit. The largest of each name becomes a part of the results."""
        value = float(value)
        if not value < limit:  # NaN fails
            self.fail(f"{what}: is {value:.3g}, must be below {limit:.3g}")
        if what not in self.values or not value <= self.values[what]:
            self.values[what] = value


class Rank:
    """Runs cases. `path`: where the results are written, after each case."""

    def __init__(self, rank, size, device, is_small, path):
        self.rank, self.size, self.device, self.is_small = rank, size, torch.device(device), is_small
        self._path, self._results = path, []

    @property
    def is_cuda(self):
        return self.device.type == "cuda"

    def generator(self, seed):
        """Gives the same numbers on every rank."""
        return torch.Generator(self.device).manual_seed(seed)

    def synchronize(self):
        """Waits for this rank's GPU."""
        if self.is_cuda:
            torch.cuda.synchronize(self.device)

    def run(self, name, inputs_of, step, check, why_no_graph=None):
        """Eagerly, then, without `why_no_graph`, captured once and replayed with other inputs.

        inputs_of(number) -> {name: tensor} of a round; step(inputs) -> outputs, without a wait of the host if it is
        to be captured; check(case, number, outputs).
        """
        case = Case(name, self.rank)
        result = {"case": name, "eager": len(EAGER_ROUNDS), "graph": why_no_graph or (len(GRAPH_ROUNDS) if self.is_cuda else ON_CPU)}
        try:
            for number in EAGER_ROUNDS:
                outputs = step(inputs_of(number))
                self.synchronize()
                check(case, number, outputs)
                del outputs
            if self.is_cuda and why_no_graph is None:
                case.stage = "graph"
                self._replay(case, inputs_of, step, check)
        except Exception as error:
            case.fail(f"{type(error).__name__}: {error}")
            raise  # the other ranks cannot go on with this one
        finally:
            result.update(values=case.values, failures=case.failures)
            self._results.append(result)
            write_json(self._path, self._results)

    def _replay(self, case, inputs_of, step, check):
        inputs = {name: tensor.clone() for name, tensor in inputs_of(EAGER_ROUNDS[0]).items()}
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            outputs = step(inputs)
        for number in GRAPH_ROUNDS:
            for name, tensor in inputs_of(number).items():
                inputs[name].copy_(tensor)
            graph.replay()
            self.synchronize()
            check(case, number, outputs)
        del graph, outputs
        gc.collect()
        torch.cuda.empty_cache()  # a graph's memory goes to no other graph


def write_json(path, value):
    """Whole or not at all, because a rank may be killed."""
    new = path.with_suffix(".new")
    new.write_text(json.dumps(value))
    new.replace(path)


class Batch:
    """Rows, ids and weights of every rank in one round. In even rounds a row is the constant rank - 128 with the token in
    its last columns, as in DeepEP's tests; in odd rounds it is random."""

    def __init__(self, rank, number, tokens, hidden, experts, topk, share_of_none=None):
        generator = rank.generator(1000 * number + topk)
        shape, place = (rank.size, tokens), {"generator": generator, "device": rank.device}
        if number % 2:
            self.x = (torch.randn(*shape, hidden, **place) * 0.1).to(torch.bfloat16)
        else:
            self.x = torch.empty(*shape, hidden, dtype=torch.bfloat16, device=rank.device)
            self.x[:] = torch.arange(-128, rank.size - 128, device=rank.device).view(-1, 1, 1)
            self.x[..., -128:] = torch.arange(tokens, device=rank.device).view(-1, 1)
        self.ids = torch.rand(*shape, experts, **place).topk(topk).indices
        self.weights = torch.rand(*shape, topk, **place) + 0.25
        if share_of_none is None:  # 10 slots of each rank
            slot = torch.randint(tokens * topk, (rank.size, 10), **place)
            self.ids.view(rank.size, -1).scatter_(1, slot, -1)
        else:
            self.ids[torch.rand(*shape, topk, **place) < share_of_none] = -1

    def is_in_rank(self, experts, size):
        """bool [P, T, P]: whether a token has an expert on a rank."""
        return (owners_of(self.ids, experts, size).unsqueeze(-1) == torch.arange(size, device=self.ids.device)).any(-2)


class Batches:
    """Batches by round, made when they are first asked for."""

    def __init__(self, *arguments):
        self._arguments, self._made = arguments, {}

    def __getitem__(self, number):
        if number not in self._made:
            rank, *sizes = self._arguments
            self._made[number] = Batch(rank, number, *sizes)
        return self._made[number]


def owners_of(ids, experts, size):
    """The rank of each id, -1 for none; the first experts % size ranks have one expert more."""
    base, extra = divmod(experts, size)
    edge = extra * (base + 1)
    owners = torch.where(ids < edge, ids // (base + 1), extra + (ids - edge) // max(base, 1))
    return torch.where(ids >= 0, owners, -1)


def is_highest_of_rank(owners):
    """bool [T, K]: the highest k of each rank, where its row stands in a sum."""
    later = [(owners[:, k + 1:] == owners[:, k:k + 1]).any(1) for k in range(owners.shape[1])]
    return (owners >= 0) & ~torch.stack(later, 1)


def sum_in_order(start, rows, counts):
    """start [T, H] f32 plus rows(k) [T, H] where counts [T, K], k ascending."""
    total = start
    for k in range(counts.shape[1]):
        total = torch.where(counts[:, k:k + 1], total + rows(k), total)
    return total


def calc_diff(x, y):
    """DeepEP's measure: 1 - 2 sum(x y) / sum(x^2 + y^2) of both plus 1, in fp64."""
    x, y = x.double() + 1, y.double() + 1
    return 1 - 2 * (x * y).sum() / (x * x + y * y).sum()


def quantize(x):
    """(e4m3, f32 scales by 128 columns) of bf16 [..., H], by DeepEP's formula."""
    groups = x.float().unflatten(-1, (-1, 128))
    amax = groups.abs().amax(-1, keepdim=True).clamp(min=1e-4)
    return (groups * (torch.full_like(amax, 448) / amax)).to(torch.float8_e4m3fn).flatten(-2), (amax * torch.tensor(1 / 448, dtype=torch.float32)).squeeze(-1)


def dequantize(q, scales):
    """bf16 rows of e4m3 [..., H] with scales [..., H / 128]."""
    return (q.float().unflatten(-1, (-1, 128)) * scales.unsqueeze(-1)).flatten(-2).to(torch.bfloat16)


def bits(tensor):
    """e4m3 as bytes, because not every torch compares it."""
    return tensor.view(torch.uint8) if tensor.dtype == torch.float8_e4m3fn else tensor


def same(found, expected):
    """Whether all values are equal."""
    return torch.equal(bits(found), bits(expected))


def difference_of(found, expected):
    """Two values, or the first entry in which two lists of one length differ."""
    place = ""
    while isinstance(found, list) and isinstance(expected, list) and len(found) == len(expected):
        index = next(i for i, (a, b) in enumerate(zip(found, expected)) if a != b)
        place, found, expected = f"{place}[{index}]", found[index], expected[index]
    return f"{place}: is {str(found)[:200]}, must be {str(expected)[:200]}"


def first_difference(found, expected):
    """Where two tensors of one shape differ first, and in how many elements."""
    differs = (bits(found) != bits(expected)).cpu()
    place = tuple(differs.nonzero()[0].tolist())
    return (f"at {place} is {found[place].item()}, must be {expected[place].item()}; {int(differs.sum())} of {differs.numel()} "
            "elements differ")


def describe(value):
    """Dtype and shape of a tensor."""
    return f"{value.dtype} {list(value.shape)}" if isinstance(value, torch.Tensor) else repr(value)

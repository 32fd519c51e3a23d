# SPDX-License-Identifier: Apache-2.0
"""FlashInfer's all-to-all, one-sided as class and as functions, and two-sided: the sizes of its tests/comm."""
import functools

import torch
from drop_in_rank import is_highest_of_rank, owners_of, sum_in_order
from flashinfer.comm import Mapping, MnnvlMoe, MoeAlltoAll
from flashinfer.comm.mnnvl import MnnvlMemory
from flashinfer.comm.trtllm_moe_alltoall import (moe_a2a_combine, moe_a2a_dispatch, moe_a2a_get_workspace_size_per_rank, moe_a2a_initialize,
                                                 moe_a2a_sanitize_expert_ids, moe_a2a_wrap_payload_tensor_in_workspace)

# (tokens, hidden, experts, topk)
FULL_ONE_SIDED = [(902, 7168, 256, 8), (10, 288, 128, 4), (10, 8, 8, 2), (16, 1024, 32, 6), (16, 1024, 33, 8),
                  *((16, 1024, 64, topk) for topk in (2, 4, 6, 8, 10, 16, 22))]
ONE_SIDED_OF = {2: [(5, 8, 8, 2)], 4: [(32, 32768, 32, 8)]}  # by number of ranks
SMALL_ONE_SIDED = [(10, 288, 128, 4), (16, 64, 33, 8), (16, 64, 64, 22)]
RANDOM_TOKENS = (100, 256, 32, 8)  # at most, of each rank
# (max_token_count_per_rank, hidden, expert_count, slot_count, topk)
FULL_TWO_SIDED = [(1000, 1024, 96, 96, 8), (1, 1024, 128, 144, 8)]
TWO_SIDED_OF = {2: [(512, 7168, 16, 20, 8), (300, 1024, 16, 16, 3)],
                4: [(4000, 1024, 20, 24, 8), (2256, 1024, 72, 80, 4), (3333, 1024, 72, 80, 6)]}
SMALL_TWO_SIDED = [(30, 64, 16, 20, 8), (1, 64, 128, 144, 8)]
DTYPES = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}
INVALID = -1


def run(rank, process_group):
    """Returns the sizes. A mapping stands for the default process group, as there."""
    del process_group
    mapping = Mapping(world_size=rank.size, rank=rank.rank)
    one_sided = SMALL_ONE_SIDED if rank.is_small else FULL_ONE_SIDED + ONE_SIDED_OF.get(rank.size, [])
    for i, sizes in enumerate([*one_sided, RANDOM_TOKENS]):
        for form in (ClassCalls, FunctionCalls):
            tokens = random_counts(rank, sizes[0]) if sizes is RANDOM_TOKENS else [sizes[0]] * rank.size
            for name, dtype in list(DTYPES.items())[:3 if i == 1 else 1]:
                calls = form(rank, mapping, tokens, sizes, dtype, 5 + i % 2)
                rank.run(f"{calls.name}, {text_of(sizes, 'tokens', 'hidden', 'experts', 'topk')}{', random tokens' * (sizes is RANDOM_TOKENS)}"
                         f", {calls.num_payloads} payloads, {name}", calls.inputs, calls.step, calls.check)
    two_sided = SMALL_TWO_SIDED if rank.is_small else FULL_TWO_SIDED + TWO_SIDED_OF.get(rank.size, [])
    workspaces = MnnvlMoe.get_moe_workspaces(mapping), MnnvlMoe.get_moe_prepare_workspace(mapping)
    for sizes in two_sided:
        calls = TwoSidedCalls(rank, workspaces, sizes)
        rank.run(f"two-sided, {text_of(sizes, 'tokens', 'hidden', 'experts', 'slots', 'topk')}", calls.inputs, calls.step, calls.check)
    return {"one-sided (tokens, hidden, experts, topk)": one_sided, "two-sided (tokens, hidden, experts, slots, topk)": two_sided}


def text_of(sizes, *names):
    """Sizes with their names."""
    return " ".join(f"{name} {size}" for name, size in zip(names, sizes))


def random_counts(rank, most):
    """A number of tokens from 1 to `most` for each rank."""
    return torch.randint(1, most + 1, (rank.size,), generator=torch.Generator().manual_seed(rank.size)).tolist()


def batch_of(rank, number, source, tokens, sizes, dtype):
    """{x, ids, weights} of a rank: i32 ids, some of them none in odd rounds."""
    _, hidden, experts, topk = sizes
    place = {"generator": rank.generator(100 * number + source), "device": rank.device}
    x = torch.randn(tokens, hidden, **place).to(dtype)
    ids = torch.rand(tokens, experts, **place).topk(topk).indices.int()
    weights = torch.rand(tokens, topk, **place)
    if number % 2:
        ids[torch.rand(tokens, topk, **place) < 0.1] = INVALID
    return {"x": x, "ids": ids, "weights": weights}


def factor_of(owners):
    """What a rank multiplies its rows with."""
    return 1 + owners / 8


def expected_sums(x, owners):
    """One row of each rank, in f32, by the rank's highest k, rounded once."""

    def row_of(k):
        return (x.float() * factor_of(owners[:, k:k + 1])).to(x.dtype).float()

    return sum_in_order(torch.zeros_like(x, dtype=torch.float32), row_of, is_highest_of_rank(owners)).to(x.dtype)


class OneSidedCalls:
    """A dispatch of 5 or 6 payloads and a combine, twice: the second reuses the memory of the first."""

    def __init__(self, rank, mapping, tokens, sizes, dtype, num_payloads):
        self.rank, self.tokens, self.sizes, self.dtype, self.num_payloads = rank, tokens, sizes, dtype, num_payloads
        _, self.hidden, self.experts, self.topk = sizes
        self.max_tokens = max(tokens)
        self.open(mapping)

    def of_rank(self, number, source):
        """All payloads of a rank, and its ids by name."""
        batch = batch_of(self.rank, number, source, self.tokens[source], self.sizes, self.dtype)
        token = torch.arange(self.tokens[source], device=self.rank.device).view(-1, 1)
        batch |= {"scales": (batch["x"].abs() * 16).to(torch.uint8), "names": token + 1000 * source}
        return batch | ({"halves": batch["weights"].half()} if self.num_payloads == 6 else {})

    def inputs(self, number):
        """Of this rank."""
        return self.of_rank(number, self.rank.rank)

    def step(self, inputs):
        """Copies of what arrived, and both sums."""
        outputs = {}
        for turn in ("first", "second"):
            received = self.dispatch(inputs["ids"], list(inputs.values()))
            outputs[turn] = {name: payload.clone() for name, payload in zip(inputs, received)}
            results = (received[0].float() * factor_of(self.rank.rank)).to(self.dtype)
            outputs[turn]["combined"] = self.combine(results).clone()
        return outputs

    def check(self, case, number, outputs):
        """Rows of each source exactly, ids of rows without a token invalid, sums exactly."""
        batches = [self.of_rank(number, source) for source in range(self.rank.size)]
        for turn, found in outputs.items():
            for source, batch in enumerate(batches):
                owners = owners_of(batch["ids"].long(), self.experts, self.rank.size)
                sent = (owners == self.rank.rank).any(1)
                count = int(sent.sum())
                for name, payload in batch.items():
                    case.equal(f"{turn}: {name} from rank {source}", found[name][source, :count], payload[sent])
                case.equal(f"{turn}: ids of unused rows from rank {source}", bool((found["ids"][source, count:] == INVALID).all()), True)
                if source == self.rank.rank:
                    case.equal(f"{turn}: combined", found["combined"], expected_sums(batch["x"], owners))


class ClassCalls(OneSidedCalls):
    """MoeAlltoAll."""

    name = "one-sided, MoeAlltoAll"

    def open(self, mapping):
        self.moe = MoeAlltoAll(mapping, self.max_tokens, self.topk, self.experts, hidden_size=self.hidden)

    def dispatch(self, ids, payloads):
        return self.moe.dispatch(ids, payloads, self.max_tokens, invalid_token_expert_id=INVALID, expert_id_payload_index=1)

    def combine(self, results):
        rows = self.moe.get_combine_payload_tensor_in_workspace(self.max_tokens, self.hidden, self.dtype)
        rows.copy_(results)
        return self.moe.combine(rows, self.max_tokens, payload_in_workspace=True)


class FunctionCalls(OneSidedCalls):
    """moe_a2a_initialize, _dispatch, _sanitize_expert_ids, _wrap_payload_tensor_in_workspace and _combine."""

    name = "one-sided, moe_a2a functions"

    def open(self, mapping):
        element = torch.empty(0, dtype=self.dtype).element_size()
        size = moe_a2a_get_workspace_size_per_rank(self.rank.size, self.max_tokens, self.hidden * (element + 1) + self.topk * 10 + 8,
                                                   self.hidden * element)
        self.workspace = MnnvlMemory(mapping, size).as_torch_strided_tensor(torch.uint8)
        self.metainfo = moe_a2a_initialize(self.workspace, self.rank.rank, self.rank.size, self.max_tokens)
        self.offset, self.row_bytes = 0, self.hidden * element

    def dispatch(self, ids, payloads):
        received, self.offset, _ = moe_a2a_dispatch(ids, payloads, self.workspace, self.metainfo, self.max_tokens, self.rank.rank,
                                                    self.rank.size, self.topk, self.experts)
        moe_a2a_sanitize_expert_ids(received[1], self.workspace, self.metainfo, self.rank.rank, INVALID)
        return received

    def combine(self, results):
        shape = [self.rank.size, self.max_tokens]
        end = self.offset + shape[0] * shape[1] * self.row_bytes
        rows = moe_a2a_wrap_payload_tensor_in_workspace(self.workspace[self.rank.rank, :], shape, self.offset, end, self.dtype)
        rows.copy_(results)
        return moe_a2a_combine(rows, self.tokens[self.rank.rank], self.workspace, self.metainfo, self.max_tokens, self.rank.rank,
                               self.rank.size, self.topk, self.offset, payload_in_workspace=True)


class TwoSidedCalls:
    """prepare, two payloads and a combine. Rank r has r tokens less than allowed, but at least one."""

    def __init__(self, rank, workspaces, sizes):
        self.rank, (self.workspace, self.prepare_workspace) = rank, workspaces
        self.max_tokens, self.hidden, self.experts, self.slots, self.topk = sizes
        self.me = rank.rank, rank.size

    def of_rank(self, number, source):
        """{x, ids, weights, statics, codes} of a rank."""
        tokens = max(self.max_tokens - source, 1)
        batch = batch_of(self.rank, number, source, tokens, (tokens, self.hidden, self.slots, self.topk), torch.bfloat16)
        batch["ids"][batch["ids"] < 0] = self.slots  # none, as there
        statics = torch.arange(self.experts, dtype=torch.int32, device=self.rank.device) + 1000 * source + number
        return batch | {"statics": statics, "codes": (batch["x"].abs() * 16).to(torch.uint8)}

    def inputs(self, number):
        """Of this rank."""
        return self.of_rank(number, self.rank.rank)

    def step(self, inputs):
        """All that the calls return."""
        info, ids, weights, statics = MnnvlMoe.mnnvl_moe_alltoallv_prepare_without_allgather(
            inputs["ids"], inputs["weights"], inputs["statics"], self.prepare_workspace, self.max_tokens, *self.me, self.experts,
            self.slots, self.topk)
        payloads = {name: MnnvlMoe.mnnvl_moe_alltoallv(inputs[name], info, self.workspace, *self.me) for name in ("x", "codes")}
        results = (payloads["x"].float() * factor_of(self.rank.rank)).to(torch.bfloat16)
        combined = MnnvlMoe.mnnvl_moe_alltoallv_combine(results, info, self.workspace, *self.me, self.topk, len(inputs["ids"]))
        return {"info": info, "ids": ids, "weights": weights, "statics": statics, "payloads": payloads, "combined": combined}

    def check(self, case, number, outputs):
        """All of it exactly."""
        mine, size = self.me
        batches = [self.of_rank(number, source) for source in range(size)]
        owners = [owners_of(batch["ids"].long().masked_fill(batch["ids"] == self.slots, -1), self.slots, size) for batch in batches]
        is_sent = [(of_rank == mine).any(1) for of_rank in owners]
        counts = [int(sent.sum()) for sent in is_sent]
        total, info = sum(counts), outputs["info"]
        gather = functools.partial(gathered, batches, is_sent)
        case.equal("recv_rank_count_cumsum", info.recv_rank_count_cumsum.tolist(), [sum(counts[:rank + 1]) for rank in range(size)])
        sent_to = [int((owners[mine] == rank).any(1).sum()) for rank in range(size)]
        case.equal("send_rank_count_cumsum", info.send_rank_count_cumsum.tolist(), [sum(sent_to[:rank + 1]) for rank in range(size)])
        case.equal("local_token_allocation_count", info.local_token_allocation_count, size * self.max_tokens)
        if not self.rank.is_cuda:
            self.check_index_lists(case, info, owners[mine], total)
        is_local = torch.cat([of_rank[sent] for of_rank, sent in zip(owners, is_sent)]) == mine
        case.equal("expert_ids", outputs["ids"][:total], gather("ids").masked_fill(~is_local, self.slots))
        case.equal("expert_ids of unused rows", bool((outputs["ids"][total:] == self.slots).all()), True)
        case.equal("scales of local experts", outputs["weights"][:total][is_local], gather("weights")[is_local])
        case.equal("gathered expert_statics", outputs["statics"], torch.stack([batch["statics"] for batch in batches]))
        for name, payload in outputs["payloads"].items():
            case.equal(f"{name} that arrived", payload[:total], gather(name))
        case.equal("combined", outputs["combined"], expected_sums(batches[mine]["x"], owners[mine]))

    def check_index_lists(self, case, info, owners, total):
        """The three lists that are there on CPUs."""
        tokens, places = [], []
        for rank in range(self.rank.size):
            for token, row in enumerate(owners.tolist()):
                if rank in row:
                    tokens.append(token)
                    places.append(token * self.topk + row.index(rank))
        case.equal("send_rank_local_indices", info.send_rank_local_indices[:len(tokens)].tolist(), tokens)
        case.equal("backward_recv_rank_local_indices", info.backward_recv_rank_local_indices[:len(tokens)].tolist(), places)
        case.equal("recv_rank_local_indices", info.recv_rank_local_indices[:total].tolist(), list(range(total)))


def gathered(batches, is_sent, name):
    """A payload's rows from all ranks."""
    return torch.cat([batch[name][sent] for batch, sent in zip(batches, is_sent)])

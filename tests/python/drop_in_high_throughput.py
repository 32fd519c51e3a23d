# SPDX-License-Identifier: Apache-2.0
"""High-throughput calls of deep_ep.Buffer: the grid of DeepEP's tests/legacy/test_intranode.py."""
import itertools

import deep_ep
import torch
from drop_in_rank import HOST_COUNTS, Batches, calc_diff, dequantize, owners_of, quantize, sum_in_order

FULL = {"tokens": 4096, "hidden": 7168, "topk": 8, "experts": 256}
SMALL = {"tokens": 40, "hidden": 512, "topk": 4, "experts": 16}
ROUTINGS = ("topk_idx", "is_token_in_rank", "num_worst_tokens")


def run(rank, process_group):
    """Returns the sizes."""
    sizes = SMALL if rank.is_small else FULL
    batches = Batches(rank, *(sizes[name] for name in ("tokens", "hidden", "experts", "topk")))
    buffer = deep_ep.Buffer(process_group, num_nvl_bytes=1 << 30)
    for routing, form, has_previous, is_async in itertools.product(ROUTINGS, ("bf16", "fp8"), (False, True), (False, True)):
        calls = Calls(rank, buffer, batches, sizes["experts"], routing, form == "fp8", has_previous, is_async)
        name = ", ".join(["high throughput", routing, form] + ["previous_event"] * has_previous + ["async_finish"] * is_async)
        rank.run(name, calls.inputs, calls.step, calls.check, None if routing == "num_worst_tokens" else HOST_COUNTS)
    buffer.destroy()
    return sizes


class Calls:
    """The layout, a dispatch, a cached dispatch, and a combine of the rows as they arrived."""

    def __init__(self, rank, buffer, batches, experts, routing, is_fp8, has_previous, is_async):
        self.rank, self.buffer, self.batches, self.experts = rank, buffer, batches, experts
        self.routing, self.is_fp8, self.has_previous, self.is_async = routing, is_fp8, has_previous, is_async

    def inputs(self, number):
        """Of this rank."""
        batch, mine = self.batches[number], self.rank.rank
        bias = torch.randn(batch.x.shape[1:], generator=self.rank.generator(number), device=self.rank.device).to(torch.bfloat16)
        tensors = {"ids": batch.ids[mine], "weights": batch.weights[mine], "bias0": torch.ones_like(bias), "bias1": bias}
        if not self.is_fp8:
            return tensors | {"x": batch.x[mine]}
        codes, scales = quantize(batch.x[mine])
        return tensors | {"x": codes, "scales": scales}

    def options(self):
        """Of one call."""
        options = {"async_finish": self.is_async}
        if self.has_previous:
            options.update(previous_event=deep_ep.Buffer.capture(), allocate_on_comm_stream=self.is_async)
        return options

    def finish(self, event):
        """Waits for a call with async_finish."""
        if self.is_async:
            event.current_stream_wait()

    def step(self, inputs):
        """What the calls return, with copies of the received rows, which last until the combine."""
        sent = (inputs["x"], inputs["scales"]) if self.is_fp8 else inputs["x"]
        per_rank, _, per_expert, is_in_rank, event = self.buffer.get_dispatch_layout(inputs["ids"], self.experts, **self.options())
        self.finish(event)
        layout = {"num_tokens_per_rank": per_rank, "is_token_in_rank": is_in_rank, "num_tokens_per_expert": per_expert}
        if self.routing != "is_token_in_rank":
            layout |= {"topk_idx": inputs["ids"], "topk_weights": inputs["weights"]}
        if self.routing == "num_worst_tokens":
            layout["num_worst_tokens"] = self.rank.size * len(inputs["ids"])
        received, ids, weights, counts, handle, event = self.buffer.dispatch(sent, **layout, **self.options())
        self.finish(event)
        first = self.rows(received)
        sources = handle[3].clone()
        again, *rest, event = self.buffer.dispatch(sent, handle=handle, **self.options())
        self.finish(event)
        rows = self.rows(again)
        combined, back, event = self.buffer.combine(rows[0], handle, topk_weights=weights, bias=(inputs["bias0"], inputs["bias1"]),
                                                    **self.options())
        self.finish(event)
        return {"layout": (per_rank, per_expert, is_in_rank), "first": first, "again": rows, "ids": ids, "weights": weights,
                "counts": counts, "sources": sources, "rest": rest, "combined": combined, "back": back}

    def rows(self, received):
        """(bf16 rows, what arrived), copied."""
        if not self.is_fp8:
            return received.clone(), None
        return dequantize(*received), (received[0].clone(), received[1].clone())

    def check(self, case, number, outputs):
        """Layout and rows exactly, sums within 5e-6, weights within 1e-9."""
        batch, mine, size = self.batches[number], self.rank.rank, self.rank.size
        is_in_rank = batch.is_in_rank(self.experts, size)
        ids = batch.ids[mine]
        per_rank, per_expert, found_in_rank = outputs["layout"]
        case.equal("num_tokens_per_rank", per_rank, is_in_rank[mine].sum(0).int())
        case.equal("num_tokens_per_expert", per_expert, torch.bincount(ids[ids >= 0], minlength=self.experts).int())
        case.equal("is_token_in_rank", found_in_rank, is_in_rank[mine])
        self.check_rows(case, batch, is_in_rank[..., mine].nonzero(), outputs)
        case.equal("results of a cached dispatch beside the rows", outputs["rest"], [None] * 4)
        inputs, num_ranks = self.inputs(number), is_in_rank[mine].sum(1, keepdim=True)
        bias = inputs["bias0"].float() + inputs["bias1"].float()
        sent = (dequantize(*quantize(batch.x[mine])) if self.is_fp8 else batch.x[mine]).float()
        case.below("combine diff", calc_diff((outputs["combined"].float() - bias) / num_ranks, sent), 5e-6)
        exact = sum_in_order(bias, lambda _: sent, torch.arange(self.rank.size, device=sent.device) < num_ranks)
        case.equal("combined_x, rounded once", outputs["combined"], exact.to(torch.bfloat16))
        if self.routing == "is_token_in_rank":
            case.equal("combined_topk_weights", outputs["back"], None)
        else:
            case.below("weights diff", calc_diff(outputs["back"], batch.weights[mine].masked_fill(ids < 0, 0)), 1e-9)

    def check_rows(self, case, batch, place, outputs):
        """Rows by (source rank, token), then unused ones with ids -1."""
        source, token = place.unbind(1)
        count, mine, local = len(place), self.rank.rank, self.experts // self.rank.size
        is_worst = self.routing == "num_worst_tokens"
        sent, sent_ids = batch.x[source, token], batch.ids[source, token]
        is_local = owners_of(sent_ids, self.experts, self.rank.size) == mine
        for name in ("first", "again"):
            rows, pair = outputs[name]
            case.equal(f"rows of the {name} dispatch", len(rows), self.rank.size * batch.x.shape[1] if is_worst else count)
            if pair is None:
                case.equal(f"recv_x of the {name} dispatch", rows[:count], sent)
            else:
                for part, exact in zip(pair, quantize(sent)):
                    case.equal(f"recv_x of the {name} dispatch", part[:count], exact)
        case.equal("recv_src_idx", outputs["sources"][:count], token.int())
        per_expert = torch.bincount((sent_ids - mine * local)[is_local], minlength=local)
        case.equal("num_recv_tokens_per_expert_list", list(outputs["counts"]), [] if is_worst else per_expert.tolist())
        if self.routing == "is_token_in_rank":
            case.equal("recv_topk_idx, recv_topk_weights", (outputs["ids"], outputs["weights"]), (None, None))
            return
        case.equal("recv_topk_idx", outputs["ids"][:count], torch.where(is_local, sent_ids - mine * local, -1))
        case.equal("recv_topk_idx of unused rows", bool((outputs["ids"][count:] == -1).all()), True)
        weights = outputs["weights"][:count]
        case.equal("recv_topk_weights", weights[is_local], batch.weights[source, token][is_local])

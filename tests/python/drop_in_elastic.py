# SPDX-License-Identifier: Apache-2.0
"""deep_ep.ElasticBuffer: the grid of DeepEP's tests/elastic/test_ep.py."""
import itertools

import deep_ep
import torch
from drop_in_rank import HOST_COUNTS, Batches, dequantize, is_highest_of_rank, owners_of, quantize, sum_in_order

FULL = {"max_tokens": 512, "hidden": 7168, "topk": 6, "experts": 256}
SMALL = {"max_tokens": 24, "hidden": 512, "topk": 3, "experts": 16}
SHAPES = {"compact": {}, "expanded": {"do_expand": True}, "expanded, every row travels": {"do_expand": True}}
EVENTS = tuple(itertools.product((False, True), (False, True)))  # previous_event, async_with_compute_stream


def run(rank, process_group):
    """Returns the sizes."""
    sizes = SMALL if rank.is_small else FULL
    batches = Batches(rank, *(sizes[name] for name in ("max_tokens", "hidden", "experts", "topk")), 0.1)
    for shape, alignment, form in itertools.product(SHAPES, (128, 1), ("bf16", "fp8")):
        sums_per_rank = shape != "expanded, every row travels"
        buffer = deep_ep.ElasticBuffer(process_group, num_max_tokens_per_rank=sizes["max_tokens"], hidden=sizes["hidden"],
                                       num_topk=sizes["topk"], use_fp8_dispatch=form == "fp8", deterministic=True,
                                       allow_multiple_reduction=sums_per_rank)
        for i, (syncs, num_bias) in enumerate(itertools.product((True, False), range(3))):
            has_previous, is_async = EVENTS[i % len(EVENTS)]
            calls = Calls(rank, buffer, batches, sizes, {**SHAPES[shape], "expert_alignment": alignment, "do_cpu_sync": syncs,
                                                         "do_handle_copy": i % 2 == 0},
                          sums_per_rank, form == "fp8", num_bias, has_previous, is_async)
            name = ", ".join(["elastic", shape, f"alignment {alignment}", form, "do_cpu_sync" if syncs else "worst case", f"{num_bias} biases"]
                             + ["previous_event"] * has_previous + ["async"] * is_async)
            rank.run(name, calls.inputs, calls.step, calls.check, HOST_COUNTS if syncs else None)
        buffer.destroy()
    return sizes


class Calls:
    """A dispatch, a cached one, experts that scale their rows, and a combine. Rank r has max_tokens - r tokens."""

    def __init__(self, rank, buffer, batches, sizes, options, sums_per_rank, is_fp8, num_bias, has_previous, is_async):
        self.rank, self.buffer, self.batches, self.options = rank, buffer, batches, options
        self.max_tokens, self.experts, self.topk = sizes["max_tokens"], sizes["experts"], sizes["topk"]
        self.local, self.first = self.experts // rank.size, rank.rank * (self.experts // rank.size)
        self.expands, self.sums_per_rank, self.is_fp8, self.num_bias = "do_expand" in options, sums_per_rank, is_fp8, num_bias
        self.events = {"async_with_compute_stream": is_async}
        self.has_previous = has_previous

    def of_rank(self, number, source):
        """(x, ids, weights) of a rank's tokens."""
        batch, tokens = self.batches[number], self.max_tokens - source
        return batch.x[source, :tokens], batch.ids[source, :tokens], batch.weights[source, :tokens]

    def inputs(self, number):
        """Of this rank."""
        x, ids, weights = self.of_rank(number, self.rank.rank)
        tensors = {"ids": ids, "weights": weights, "bias0": x.roll(1, 0) * 3, "bias1": x.roll(1, 1)}
        if not self.is_fp8:
            return tensors | {"x": x}
        codes, scales = quantize(x)
        return tensors | {"x": codes, "sf": scales}

    def call_options(self):
        """What the events of one call are."""
        if not self.has_previous:
            return self.events
        return self.events | {"previous_event": self.buffer.capture(), "allocate_on_comm_stream": self.events["async_with_compute_stream"]}

    def finish(self, event):
        """Waits for an asynchronous call."""
        if self.events["async_with_compute_stream"]:
            event.current_stream_wait()

    def step(self, inputs):
        """What the calls return, with copies of the received rows, which last until the combine."""
        sent = (inputs["x"], inputs["sf"]) if self.is_fp8 else inputs["x"]
        stats = torch.zeros(self.local, dtype=torch.int32, device=self.rank.device)
        received, ids, weights, handle, event = self.buffer.dispatch(
            sent, inputs["ids"], inputs["weights"], cumulative_local_expert_recv_stats=stats, num_experts=self.experts,
            do_zero_padding=self.expands, **self.options, **self.call_options())
        self.finish(event)
        first = [part.clone() for part in (received if self.is_fp8 else (received,))]
        metadata, slots = handle.recv_src_metadata.clone(), handle.dst_buffer_slot_idx.clone()
        received, same_ids, _, same_handle, event = self.buffer.dispatch(sent, handle=handle, do_zero_padding=self.expands,
                                                                         **self.call_options())
        self.finish(event)
        again = [part.clone() for part in (received if self.is_fp8 else (received,))]
        rows = (dequantize(*again) if self.is_fp8 else again[0]).float()
        results = (rows * self.row_factors(handle, rows)).to(torch.bfloat16)
        bias = (None, inputs["bias0"], (inputs["bias0"], inputs["bias1"]))[self.num_bias]
        combined, back, event = self.buffer.combine(results, handle, topk_weights=weights if self.sums_per_rank else None, bias=bias,
                                                    **self.call_options())
        self.finish(event)
        return {"first": first, "again": again, "ids": ids, "weights": weights, "handle": handle, "metadata": metadata, "slots": slots,
                "is_same_handle": same_handle is handle, "same_ids": same_ids, "stats": stats, "combined": combined, "back": back}

    def factor(self, expert):
        """What an expert multiplies with; in layout compact, expert 0 of each rank speaks for all."""
        if not self.expands:
            expert = expert // self.local * self.local
        return 1 + (expert % 7) / 8

    def row_factors(self, handle, rows):
        """[N, 1] for received rows; found on the device, so that a graph has it too."""
        if not self.expands:
            return self.factor(self.first)
        ends = handle.psum_num_recv_tokens_per_expert
        begins = ends - handle.num_unaligned_recv_tokens_per_expert
        place = torch.arange(len(rows), dtype=torch.int32, device=rows.device)
        expert = torch.searchsorted(begins, place, right=True) - 1
        return self.factor(self.first + expert).float().unsqueeze(1)

    def check(self, case, number, outputs):
        """All of it exactly."""
        places = self.places(number)
        self.check_handle(case, number, outputs, places)
        case.equal("the handle of a cached dispatch is the first one", outputs["is_same_handle"], True)
        self.check_rows(case, number, outputs, places)
        case.equal("combined_x", outputs["combined"], self.expected_sums(number))
        _, ids, weights = self.of_rank(number, self.rank.rank)
        case.equal("combined_topk_weights", outputs["back"], weights.masked_fill(ids < 0, 0) if self.sums_per_rank else None)

    def places(self, number):
        """What this rank receives: {"tokens": (source, token) by row of layout compact, "rows": [(local expert, source, token,
        k)] of expanded rows, "counts": of the experts, "starts" of their rows}."""
        tokens, rows = [], []
        for source in range(self.rank.size):
            for token, ids in enumerate(self.of_rank(number, source)[1].tolist()):
                local = [(i - self.first, source, token, k) for k, i in enumerate(ids) if self.first <= i < self.first + self.local]
                rows += local
                tokens += [(source, token)] if local else []
        rows.sort()
        counts = [0] * self.local
        for expert, *_ in rows:
            counts[expert] += 1
        alignment = self.options["expert_alignment"]
        aligned = [-(-count // alignment) * alignment for count in counts]
        starts = [sum(aligned[:expert]) for expert in range(self.local)]
        return {"tokens": tokens, "rows": rows, "counts": counts, "aligned": aligned, "starts": starts}

    def row_indices(self, places):
        """The row of each entry of places["rows"]."""
        nexts, indices = list(places["starts"]), []
        for expert, *_ in places["rows"]:
            indices.append(nexts[expert])
            nexts[expert] += 1
        return indices

    def check_handle(self, case, number, outputs, places):
        """The fields of EPHandle that are there."""
        handle, counts, starts, aligned = outputs["handle"], places["counts"], places["starts"], places["aligned"]
        syncs, alignment, most = self.options["do_cpu_sync"], self.options["expert_alignment"], self.rank.size * self.max_tokens
        ends = [start + count for start, count in zip(starts, counts if self.expands else aligned)]
        per_rank = [sum(source <= rank for source, _ in places["tokens"]) for rank in range(self.rank.size)]
        case.equal("num_unaligned_recv_tokens_per_expert", handle.num_unaligned_recv_tokens_per_expert.tolist(), counts)
        case.equal("cumulative_local_expert_recv_stats", outputs["stats"].tolist(), counts)
        case.equal("psum_num_recv_tokens_per_expert", handle.psum_num_recv_tokens_per_expert.tolist(), ends)
        case.equal("psum_num_recv_tokens_per_scaleup_rank", handle.psum_num_recv_tokens_per_scaleup_rank.tolist(), per_rank)
        case.equal("num_recv_tokens_per_expert_list", handle.num_recv_tokens_per_expert_list, aligned if syncs else [])
        case.equal("num_recv_tokens", handle.num_recv_tokens, len(places["tokens"]) if syncs else most)
        case.equal("num_max_tokens_per_rank", handle.num_max_tokens_per_rank, self.max_tokens)
        if self.expands:
            room = most * self.topk + (alignment - 1) * min(self.local, most * self.topk)  # docs/differences.md
            case.equal("num_expanded_tokens", handle.num_expanded_tokens, sum(aligned) if syncs else room)
        if self.options["do_handle_copy"]:
            case.equal("topk_idx", handle.topk_idx, self.of_rank(number, self.rank.rank)[1])
        self.check_metadata(case, number, outputs, places)

    def check_metadata(self, case, number, outputs, places):
        """recv_src_metadata and dst_buffer_slot_idx."""
        row_of = {tuple(row[1:]): index for row, index in zip(places["rows"], self.row_indices(places))}
        lines = []
        for source, token in places["tokens"]:
            ks = [k for k in range(self.topk) if (source, token, k) in row_of]
            lines.append([source * self.max_tokens + token, source * self.topk + ks[-1],
                          *(row_of[source, token, k] if self.expands and k in ks else -1 for k in range(self.topk))])
        case.equal("recv_src_metadata", outputs["metadata"][:len(lines)].tolist(), lines)
        sent, slots = [0] * self.rank.size, []
        for ids in self.of_rank(number, self.rank.rank)[1].tolist():
            highest = {i // self.local: k for k, i in enumerate(ids) if i >= 0}
            row = [-1] * self.topk
            for owner, k in highest.items():
                row[k] = self.rank.rank * self.max_tokens + sent[owner]
                sent[owner] += 1
            slots.append(row)
        case.equal("dst_buffer_slot_idx", outputs["slots"].tolist(), slots)

    def check_rows(self, case, number, outputs, places):
        """Rows, ids and weights, and zeros in the gaps of expanded rows."""
        batch, syncs, device = self.batches[number], self.options["do_cpu_sync"], self.rank.device
        if self.expands:
            index = torch.tensor(self.row_indices(places), dtype=torch.long, device=device)
            _, source, token, k = torch.tensor(places["rows"], device=device).view(-1, 4).unbind(1)
        else:
            source, token = torch.tensor(places["tokens"], device=device).view(-1, 2).unbind(1)
            index = torch.arange(len(source), device=device)
        exact = quantize(batch.x[source, token]) if self.is_fp8 else (batch.x[source, token],)
        handle, weights = outputs["handle"], outputs["weights"]
        num_rows = handle.num_expanded_tokens if self.expands else len(source) if syncs else self.rank.size * self.max_tokens
        gaps = torch.ones(num_rows, dtype=torch.bool, device=device)
        gaps[index] = False
        gaps[sum(places["aligned"]):] = False  # behind the last expert
        for name in ("first", "again"):
            for part, one in zip(outputs[name], exact):
                case.equal(f"rows of the {name} dispatch", len(part), num_rows)
                case.equal(f"recv_x of the {name} dispatch", part[index], one)
                if self.expands:
                    case.equal(f"padding of the {name} dispatch", int((part[gaps].float() != 0).sum()), 0)
        if self.expands:
            case.equal("recv_topk_idx", outputs["ids"], None)
            case.equal("recv_topk_weights", weights[index], batch.weights[source, token, k])
            return
        ids = batch.ids[source, token]
        is_local = owners_of(ids, self.experts, self.rank.size) == self.rank.rank
        case.equal("recv_topk_idx", outputs["ids"][index], torch.where(is_local, ids - self.first, -1))
        case.equal("recv_topk_weights", weights[index], batch.weights[source, token])

    def expected_sums(self, number):
        """The sums in f32, biases first, then rows by k, one rounding per level. The row of a rank stands at its highest k."""
        x, ids, _ = self.of_rank(number, self.rank.rank)
        sent = (dequantize(*quantize(x)) if self.is_fp8 else x).float()
        owners = owners_of(ids, self.experts, self.rank.size)
        inputs, total = self.inputs(number), torch.zeros_like(sent)
        for name in ("bias0", "bias1")[:self.num_bias]:
            total = total + inputs[name].float()

        def result(k):
            return (sent * self.factor(ids[:, k]).float().unsqueeze(1)).to(torch.bfloat16).float()

        def sum_of_rank(k):
            lower = sum_in_order(torch.zeros_like(sent), result, owners[:, :k + 1] == owners[:, k:k + 1])
            return lower.to(torch.bfloat16).float()

        counts = is_highest_of_rank(owners) if self.sums_per_rank else owners >= 0
        return sum_in_order(total, sum_of_rank if self.sums_per_rank and self.expands else result, counts).to(torch.bfloat16)

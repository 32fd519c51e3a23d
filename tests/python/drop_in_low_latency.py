# SPDX-License-Identifier: Apache-2.0
"""Low-latency calls of deep_ep.Buffer: the grid of DeepEP's tests/legacy/test_low_latency.py."""
import itertools

import deep_ep
import torch
from drop_in_rank import Batches, calc_diff, dequantize, quantize

FULL = {"tokens": 128, "hidden": 7168, "topk": 8, "experts": 288}
SMALL = {"tokens": 24, "hidden": 512, "topk": 4, "experts": 16}
FORMATS = {"bf16": {"use_fp8": False}, "fp8": {}, "fp8 round_scale": {"round_scale": True},
           "fp8 use_ue8m0": {"round_scale": True, "use_ue8m0": True}}
ENDS = {"stream": {}, "async_finish": {"async_finish": True}, "return_recv_hook": {"return_recv_hook": True}}


def run(rank, process_group):
    """Returns the sizes."""
    sizes = SMALL if rank.is_small else FULL
    batches = Batches(rank, *(sizes[name] for name in ("tokens", "hidden", "experts", "topk")))
    hint = deep_ep.Buffer.get_low_latency_rdma_size_hint(sizes["tokens"], sizes["hidden"], rank.size, sizes["experts"])
    for form, options in FORMATS.items():
        buffer = deep_ep.Buffer(process_group, num_rdma_bytes=hint, low_latency_mode=True,
                                num_qps_per_rank=sizes["experts"] // rank.size)
        for end, zero_copy in itertools.product(ENDS, (False, True)):
            calls = Calls(rank, buffer, batches, sizes, options, ENDS[end], zero_copy)
            rank.run(f"low latency, {form}, {end}{', zero_copy' if zero_copy else ''}", calls.inputs, calls.step, calls.check)
        buffer.destroy()
    return sizes


def finish(event, hook):
    """Waits as the call was asked to; without either the results are there in the order of the stream."""
    if hook is not None:
        hook()
    elif event.event is not None:
        event.current_stream_wait()


def scales_of(packed):
    """f32 [..., 4 n] of i32 [..., n], each byte an exponent."""
    shifts = torch.arange(0, 32, 8, device=packed.device)
    exponents = (packed.unsqueeze(-1) >> shifts) & 255
    return (exponents << 23).int().view(torch.float32).flatten(-2)


class Calls:
    """A dispatch, experts that return their rows, and a combine."""

    def __init__(self, rank, buffer, batches, sizes, options, end, zero_copy):
        self.rank, self.buffer, self.batches = rank, buffer, batches
        self.options, self.end, self.zero_copy = options, end, zero_copy
        self.tokens, self.experts = sizes["tokens"], sizes["experts"]
        self.local = self.experts // rank.size
        self.is_fp8, self.is_packed = options.get("use_fp8", True), options.get("use_ue8m0", False)

    def inputs(self, number):
        """Of this rank."""
        batch = self.batches[number]
        return {"x": batch.x[self.rank.rank], "ids": batch.ids[self.rank.rank], "weights": batch.weights[self.rank.rank]}

    def step(self, inputs):
        """Copies of what arrived, the fields of the handle, and the combined rows."""
        x, ids, weights = inputs["x"], inputs["ids"], inputs["weights"]
        stats = torch.zeros(self.local, dtype=torch.int32, device=x.device)
        received, count, handle, event, hook = self.buffer.low_latency_dispatch(
            x, ids, self.tokens, self.experts, cumulative_local_expert_recv_stats=stats, **self.options, **self.end)
        finish(event, hook)
        quantized, scales = received if self.is_fp8 else (None, None)
        rows = dequantize(quantized, scales_of(scales) if self.is_packed else scales) if self.is_fp8 else received.clone()
        outputs = {"rows": rows, "count": count.clone(), "stats": stats, "sources": handle[0].clone(), "ranges": handle[1].clone(),
                   "handle": handle[2:]}
        if self.is_fp8:
            outputs.update(quantized=quantized.clone(), scales=scales.clone())
        if self.zero_copy:
            self.buffer.get_next_low_latency_combine_buffer(handle)[:] = rows
        out = torch.empty_like(x)
        combined, event, hook = self.buffer.low_latency_combine(rows, ids, weights, handle, zero_copy=self.zero_copy, out=out, **self.end)
        finish(event, hook)
        return outputs | {"combined": combined, "is_out": combined is out}

    def check(self, case, number, outputs):
        """Counts, segments and sources exactly, rows as their format allows, the sums within 1e-5 or 9e-4."""
        batch = self.batches[number]
        case.equal("handle[2:]", tuple(outputs["handle"]), (self.tokens, batch.x.shape[2], self.experts))
        case.equal("combine returns out", outputs["is_out"], True)
        place = self.check_segments(case, batch, outputs)
        if place is not None:
            self.check_rows(case, number, outputs, place)
        mine = {name: tensor for name, tensor in self.inputs(number).items() if name != "x"}
        expected = batch.x[self.rank.rank] * mine["weights"].masked_fill(mine["ids"] < 0, 0).sum(1, keepdim=True)
        case.equal("NaN in combined_x", int(outputs["combined"].isnan().sum()), 0)
        case.below("combine diff", calc_diff(expected, outputs["combined"]), 9e-4 if self.is_fp8 else 1e-5)

    def check_segments(self, case, batch, outputs):
        """Indices (local expert, row, source rank, token) of all received rows; None where they are not as they must be."""
        first = self.rank.rank * self.local
        tokens = [[[] for _ in range(self.rank.size)] for _ in range(self.local)]
        for source, ids in enumerate(batch.ids.tolist()):
            for token, row in enumerate(ids):
                for one in row:
                    if first <= one < first + self.local:
                        tokens[one - first][source].append(token)
        counts = [sum(map(len, of_expert)) for of_expert in tokens]
        case.equal("recv_count", outputs["count"].tolist(), counts)
        case.equal("cumulative_local_expert_recv_stats", outputs["stats"].tolist(), counts)
        sources, ranges = outputs["sources"].cpu(), outputs["ranges"].tolist()
        found, covered, place = [], [], []
        for expert, of_expert in enumerate(ranges):
            segments = [(packed >> 32, packed & 0xFFFFFFFF) for packed in of_expert]
            found.append([sorted(sources[expert, begin:begin + count].tolist()) for begin, count in segments])
            covered.append(sorted(i for begin, count in segments for i in range(begin, begin + count)))
            place += [(expert, i, source, int(sources[expert, i])) for source, (begin, count) in enumerate(segments)
                      for i in range(begin, begin + count)]
        case.equal("rows of layout_range", covered, [list(range(count)) for count in counts])
        case.equal("src_info of each segment", found, tokens)
        return torch.tensor(place, device=self.rank.device).unbind(1) if found == tokens else None

    def check_rows(self, case, number, outputs, place):
        """bf16: the bits; fp8: the codes and scales of the formula; constants come back as they were."""
        expert, row, source, token = place
        sent, rows = self.batches[number].x[source, token], outputs["rows"][expert, row]
        if not self.is_fp8:
            case.equal("recv_x", rows, sent)
            return
        rounds_scale = "round_scale" in self.options
        scales = outputs["scales"][expert, row]
        scales = scales_of(scales) if self.is_packed else scales
        codes, exact = quantize(sent)
        if rounds_scale:
            case.equal("scales", scales, ((exact.view(torch.int32) + 0x7FFFFF) & ~0x7FFFFF).view(torch.float32))  # the next power of two
        else:
            case.equal("scales", scales, exact)
            case.equal("recv_x", outputs["quantized"][expert, row], codes)
        if number % 2 == 0:
            constants = rows[:, :-128]
            case.equal("smallest elements of constant rows", constants.amin(1), constants.amax(1))
            if rounds_scale:
                case.below("round_scale dispatch diff", calc_diff(rows[:, -1], token), 7e-3)
            else:
                case.equal("constant rows", rows, sent)

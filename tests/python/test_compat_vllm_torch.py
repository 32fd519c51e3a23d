# SPDX-License-Identifier: Apache-2.0
"""vLLM-shaped classes with torch tensors, on CPUs and, where there is one per rank or one for all, on GPUs."""
import pytest

import switchyard
from switchyard import run_local
from switchyard.compat import vllm

torch = pytest.importorskip("torch", reason="torch is not installed")

P, E, K, H, T = 2, 4, 2, 512, 4
HAS_GPUS = switchyard.num_cuda_devices() >= P and torch.cuda.is_available()
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not HAS_GPUS, reason="fewer GPUs than ranks, or torch or this build has no CUDA"))]
PLAIN = vllm.FUSED_MOE_UNQUANTIZED_CONFIG
DELEGATE, NO_OP = vllm.TopKWeightAndReduceDelegate(), vllm.TopKWeightAndReduceNoOP()
CLASSES = {
    "low_latency": lambda m: vllm.DeepEPLLPrepareAndFinalize(m, T, P),
    "high_throughput": lambda m: vllm.DeepEPHTPrepareAndFinalize(m, P, P, m.rank * E // P),
    "v2_decode": lambda m: vllm.DeepEPV2PrepareAndFinalize(m, P, P, m.rank * E // P, E, K, use_cudagraph=True, max_num_tokens=T),
    "v2_prefill": lambda m: vllm.DeepEPV2PrepareAndFinalize(m, P, P, m.rank * E // P, E, K, max_num_tokens=T),
    "all_gather": lambda m: vllm.MoEPrepareAndFinalizeNaiveDPEPModular(num_dispatchers=P, all2all_manager=m, max_num_tokens=T),
    "two_sided": lambda m: vllm.FlashInferNVLinkTwoSidedPrepareAndFinalize(P, all2all_manager=m, max_num_tokens=T),
    "one_sided": lambda m: vllm.FlashInferNVLinkOneSidedPrepareAndFinalize(T, K, E, H, P, all2all_manager=m),
    "no_dp_ep": lambda m: vllm.MoEPrepareAndFinalizeNoDPEPModular()}


def batch(rank, one, device):
    """Every token times 0.5 + 0.5 * 3, where expert e multiplies by e: ids 1 and 3."""
    generator = torch.Generator().manual_seed(rank)
    hidden = torch.randint(-8, 8, (T, H), generator=generator).to(torch.bfloat16)
    ids = torch.tensor([[1, 3]]).repeat(T, 1).to(one.topk_indices_dtype() or torch.int64)
    return hidden.to(device), torch.full((T, K), 0.5, device=device), ids.to(device)


def experts(one, rank, rows, counts, ids):
    """Multiplies by the expert's number."""
    if rows.dim() == 3:
        first = rank * E // P
        return rows * torch.arange(first, first + E // P, device=rows.device)[:, None, None].to(rows.dtype)
    here = (ids >= 0) & (ids < E)
    if not isinstance(one, vllm.MoEPrepareAndFinalizeNoDPEPModular):
        here &= ids // (E // P) == rank
    return rows[:, None] * torch.where(here, ids, 0)[..., None].to(rows.dtype)


def place(device, group):
    return torch.device("cpu") if device == "cpu" else torch.device(str(group.default_gpu()))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", CLASSES)
def test_layers(name, device):
    def rank(group):
        one = CLASSES[name](vllm.All2AllManager(group))
        hidden, weights, ids = batch(group.rank, one, place(device, group))
        expected = hidden * 2
        for _ in range(2):
            rows, scales, counts, new_ids, new_weights = one.prepare(hidden, weights, ids, E, None, False, PLAIN)
            assert isinstance(rows, torch.Tensor) and rows.device == hidden.device and rows.dtype == torch.bfloat16 and scales is None
            if counts is not None:
                assert counts.expert_num_tokens.dtype == torch.int32 and counts.expert_num_tokens.device == hidden.device
            new_ids, new_weights = (ids, weights) if new_ids is None else (new_ids, new_weights)
            if new_ids is not ids and ids.dtype == torch.int64 and one.topk_indices_dtype() is not None:
                assert new_ids.dtype == torch.int64
            results, reduce = experts(one, group.rank, rows, counts, new_ids), DELEGATE
            if name.endswith("sided"):
                results, reduce = (results * new_weights[..., None].to(rows.dtype)).sum(1), NO_OP
            output = torch.empty_like(hidden)
            one.finalize(output, results, new_weights, new_ids, False, reduce)
            assert torch.equal(output, expected)

    run_local(P, rank)


@pytest.mark.parametrize("device", DEVICES)
def test_split_calls_and_block_scales(device):
    def rank(group):
        one = vllm.DeepEPLLPrepareAndFinalize(vllm.All2AllManager(group), T, P, True)
        hidden, weights, ids = batch(group.rank, one, place(device, group))
        scale = torch.ones(E, device=hidden.device)
        quant = vllm.fp8_w8a8_moe_quant_config(scale, scale, block_shape=[128, 128])
        assert quant.quant_dtype is torch.float8_e4m3fn and quant.use_fp8_w8a8
        hook, receiver = one.prepare_async(hidden, weights, ids, E, None, False, quant)
        hook()
        q, scales, counts, *_ = receiver()
        assert q.dtype == torch.float8_e4m3fn and scales.shape == (E // P, P * T, H // 128) and scales.stride()[1] == 1
        assert counts.expert_num_tokens.tolist() == [0, P * T]
        rows = (q.float().view(*q.shape[:2], H // 128, 128) * scales.unsqueeze(-1)).view(q.shape).to(torch.bfloat16)
        output = torch.empty_like(hidden)
        hook, receiver = one.finalize_async(output, rows, weights, ids, False, DELEGATE)
        hook()
        receiver()
        assert (output.float() - hidden.float()).abs().max() < 0.5

    run_local(P, rank)


@pytest.mark.parametrize("device", DEVICES)
def test_static_scales_of_tensors(device):
    one = vllm.MoEPrepareAndFinalizeNoDPEPModular()
    place_of_all = torch.device(device)
    hidden, weights, ids = batch(0, one, place_of_all)
    scale = torch.tensor([0.5], device=place_of_all)
    rows, scales, *_ = one.prepare(hidden, weights, ids, E, None, False, vllm.fp8_w8a8_moe_quant_config(scale, scale, scale, scale))
    assert torch.equal(scales.cpu(), scale.cpu()) and torch.equal(rows.float() * 0.5, hidden.float())


@pytest.mark.parametrize("device", DEVICES)
def test_the_reference_of_the_batched_format(device):
    one = vllm.BatchedPrepareAndFinalize(T, E, 1, 0)
    hidden, weights, ids = batch(0, one, torch.device(device))
    scale = torch.full((E,), 0.5, device=hidden.device)
    quant = vllm.fp8_w8a8_moe_quant_config(scale, scale, scale[:1], scale[:1])
    q, scales, counts, *_ = one.prepare(hidden, weights, ids, E, None, False, quant)
    assert counts.expert_num_tokens.tolist() == [0, T, 0, T] and q.dtype == torch.float8_e4m3fn and q.device == hidden.device
    assert torch.equal(q[1].float() * scales[1], hidden.float()) and not q[0].float().any()
    rows, *_ = one.prepare(hidden, weights, ids, E, None, False, PLAIN)
    output = torch.empty_like(hidden)
    one.finalize(output, rows * torch.arange(E, device=rows.device)[:, None, None].to(rows.dtype), weights, ids, False, DELEGATE)
    assert torch.equal(output, hidden * 2)


def test_counts_from_a_list():
    made = vllm.ExpertTokensMetadata.make_from_list([3, 0, 2], "cpu")
    assert made.expert_num_tokens.tolist() == [3, 0, 2] and made.expert_num_tokens_cpu.dtype == torch.int32

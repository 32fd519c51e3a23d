# SPDX-License-Identifier: Apache-2.0
"""The compat modules with torch tensors, on CPUs and, where there is one per rank or one for all, on GPUs."""
import pytest

import switchyard
from switchyard import run_local
from switchyard.compat import deep_ep, flashinfer

torch = pytest.importorskip("torch", reason="torch is not installed")

P, E, K, H, T = 2, 4, 2, 512, 4
HAS_GPUS = switchyard.num_cuda_devices() >= P and torch.cuda.is_available()
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not HAS_GPUS, reason="fewer GPUs than ranks, or torch or this build has no CUDA"))]


def batch(rank, device):
    generator = torch.Generator().manual_seed(rank)
    x = torch.randint(-8, 8, (T, H), generator=generator).to(torch.bfloat16)
    ids = torch.stack([torch.randperm(E, generator=generator)[:K] for _ in range(T)])
    return x.to(device), ids.to(device), torch.full((T, K), 0.5, device=device)


def place(device, group):
    return torch.device("cpu") if device == "cpu" else torch.device(str(group.default_gpu()))


@pytest.mark.parametrize("device", DEVICES)
def test_low_latency(device):
    def rank(group):
        x, ids, weights = batch(group.rank, place(device, group))
        buffer = deep_ep.Buffer(group, low_latency_mode=True)
        recv_x, count, handle, _, hook = buffer.low_latency_dispatch(x, ids, T, E, use_fp8=False, return_recv_hook=True)
        hook()
        assert recv_x.dtype == torch.bfloat16 and recv_x.shape == (E // P, P * T, H) and recv_x.device == x.device
        assert count.dtype == torch.int32 and handle[1].dtype == torch.int64 and handle[0].device == x.device
        out, event, _ = buffer.low_latency_combine(recv_x.clone(), ids, weights, handle, async_finish=True)
        event.current_stream_wait()
        assert torch.equal(out, x)
        (q, scales), count, handle, _, _ = buffer.low_latency_dispatch(x, ids, T, E)
        assert q.dtype == torch.float8_e4m3fn and scales.stride() == (H // 128 * P * T, 1, P * T)
        back = (q.float().view(*q.shape[:2], H // 128, 128) * scales.unsqueeze(-1)).view(q.shape).to(torch.bfloat16)
        out, _, _ = buffer.low_latency_combine(back, ids, weights, handle)
        assert (out.float() - x.float()).abs().max() < 0.5

    run_local(P, rank)


@pytest.mark.parametrize("device", DEVICES)
def test_high_throughput(device):
    def rank(group):
        x, ids, weights = batch(group.rank, place(device, group))
        buffer = deep_ep.Buffer(group)
        per_rank, _, per_expert, is_in_rank, _ = buffer.get_dispatch_layout(ids, E)
        assert is_in_rank.dtype == torch.bool and torch.equal(is_in_rank.sum(0), per_rank)
        recv_x, recv_ids, recv_weights, counts, handle, _ = buffer.dispatch(
            x, num_tokens_per_rank=per_rank, is_token_in_rank=is_in_rank, num_tokens_per_expert=per_expert, topk_idx=ids, topk_weights=weights)
        assert sum(counts) == int((recv_ids >= 0).sum()) and len(recv_x) == len(recv_ids)
        y = (recv_x * torch.where(recv_ids >= 0, recv_weights, 0).sum(1, keepdim=True)).to(torch.bfloat16)
        out, out_weights, _ = buffer.combine(y, handle, topk_weights=recv_weights)
        assert torch.equal(out, x) and torch.equal(out_weights, weights)
        rows, no_ids, no_weights, same_counts, without_ids, _ = buffer.dispatch(
            x, num_tokens_per_rank=per_rank, is_token_in_rank=is_in_rank, num_tokens_per_expert=per_expert)
        assert torch.equal(rows, recv_x) and same_counts == counts and no_ids is None and no_weights is None
        assert torch.equal(without_ids[4], is_in_rank)
        copies, _, _ = buffer.combine(rows.clone(), without_ids)
        assert torch.equal(copies, (x * is_in_rank.sum(1, keepdim=True)).to(torch.bfloat16))
        gradient, *_ = buffer.dispatch(x, handle=handle)
        assert gradient.dtype == torch.bfloat16 and gradient.shape == recv_x.shape

    run_local(P, rank)


def check_metadata(handle, recv_x, rank):
    lines, slots = handle.recv_src_metadata, handle.dst_buffer_slot_idx
    assert lines.device == slots.device == recv_x.device and lines.dtype == slots.dtype == torch.int32
    names = []
    for name, highest, *rows in lines.tolist():
        source, token = divmod(name, T)
        x, ids, _ = batch(source, "cpu")
        local = [k for k in range(K) if ids[token, k] // (E // P) == rank]
        assert highest == source * K + max(local)
        assert [k for k in range(K) if rows[k] >= 0] == (local if handle.do_expand else [])
        assert all(torch.equal(recv_x[row].cpu(), x[token]) for row in rows if row >= 0)
        names.append(name)
    assert names == sorted(set(names)) and len(names) == handle.num_recv_tokens
    owners = handle.topk_idx // (E // P)
    assert (slots >= 0).sum(1).tolist() == [len(set(row)) for row in owners.tolist()]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("expands", [False, True])
def test_elastic(device, expands):
    def rank(group):
        x, ids, weights = batch(group.rank, place(device, group))
        buffer = deep_ep.ElasticBuffer(group, num_max_tokens_per_rank=T)
        stats = torch.zeros(E // P, dtype=torch.int32, device=x.device)
        recv_x, recv_ids, recv_weights, handle, _ = buffer.dispatch(
            x, ids, weights, cumulative_local_expert_recv_stats=stats, num_experts=E, do_expand=expands, do_zero_padding=expands)
        assert stats.tolist() == handle.num_recv_tokens_per_expert_list and torch.equal(handle.topk_idx, ids)
        check_metadata(handle, recv_x, group.rank)
        first_weights = recv_weights.clone()
        recv_x, *_ = buffer.dispatch(x, handle=handle, do_zero_padding=expands)
        assert torch.equal(recv_weights, first_weights)
        if not expands:
            recv_weights = torch.where(recv_ids >= 0, recv_weights, 0).sum(1)
        out, _, _ = buffer.combine((recv_x * recv_weights[:, None]).to(torch.bfloat16), handle)
        assert out.device == x.device and torch.equal(out, x)

    run_local(P, rank)


@pytest.mark.parametrize("device", DEVICES)
def test_flashinfer(device):
    def rank(group):
        x, ids, weights = batch(group.rank, place(device, group))
        ids = ids.to(torch.int32)
        moe = flashinfer.MoeAlltoAll(group, T, K, E)
        rows, row_ids, row_weights = moe.dispatch(ids, [x, ids, weights], T, invalid_token_expert_id=-1, expert_id_payload_index=1)
        local = torch.where(row_ids // (E // P) == group.rank, row_weights, 0).sum(-1, keepdim=True)
        payload = moe.get_combine_payload_tensor_in_workspace(T, H, torch.bfloat16)
        payload.copy_(rows * local)
        assert torch.equal(moe.combine(payload, T), x)
        workspace = flashinfer.MnnvlMoe.get_moe_workspaces(group)
        info, row_ids, row_weights, statics = flashinfer.MnnvlMoe.mnnvl_moe_alltoallv_prepare_without_allgather(
            ids, weights, None, workspace, T, group.rank, P, E, E, K)
        rows = flashinfer.MnnvlMoe.mnnvl_moe_alltoallv(x, info, workspace, group.rank, P)
        local = torch.where(row_ids < E, row_weights, 0).sum(-1, keepdim=True)
        out = flashinfer.MnnvlMoe.mnnvl_moe_alltoallv_combine((rows * local).to(x.dtype), info, workspace, group.rank, P, K, T)
        assert statics is None and out.device == x.device and torch.equal(out, x)

    run_local(P, rank)

# SPDX-License-Identifier: Apache-2.0
"""GPUs: the same bits as on CPUs, streams, torch's memory, CUDA graphs. Needs a GPU, the CUDA module and torch."""
import gc
import time

import numpy as np
import pytest

import switchyard
from switchyard import Exchange, Experts, ModularKernel, Tensor, make_prepare_finalize, run_local

if switchyard.num_cuda_devices() == 0:
    pytest.skip("no GPU, or no CUDA module in this build", allow_module_level=True)
torch = pytest.importorskip("torch", reason="torch is not installed")
if not torch.cuda.is_available():
    pytest.skip("this torch has no CUDA", allow_module_level=True)

E, K, H, T = 8, 2, 256, 6


def batch(rank, device="cpu"):
    random = np.random.default_rng(rank)
    tokens = random.integers(-8, 8, (T, H)).astype(np.float32)
    ids = np.array([random.permutation(E)[:K] for _ in range(T)], np.int64)
    weights = (random.integers(1, 5, (T, K)) / 4).astype(np.float32)
    return (torch.from_numpy(tokens).to(device, torch.bfloat16), torch.from_numpy(ids).to(device),
            torch.from_numpy(weights).to(device))


def to_numpy(tensor):
    return (tensor if isinstance(tensor, Tensor) else Tensor.wrap(tensor)).to("cpu").numpy()


@pytest.mark.parametrize("scheme", ["fp8_block", "fp8_ue8m0", "fp8_token", "int8_token", "mxfp4", "mxfp8"])
def test_quantize_gives_the_bits_of_cpus(scheme):
    tokens, _, _ = batch(0)
    host = switchyard.quantize(tokens, scheme)
    device = switchyard.quantize(tokens.cuda(), scheme)
    for a, b in zip(host, device):
        assert b.device.is_cuda and a.numpy().tobytes() == to_numpy(b).tobytes()
    y = switchyard.dequantize(*device, scheme).torch()
    assert y.is_cuda and y.dtype == torch.bfloat16
    out = torch.empty_like(y)
    assert switchyard.dequantize(*device, scheme, out=out) is out and torch.equal(out, y)


def test_tensors_of_every_kind():
    tensor = torch.arange(6, device="cuda", dtype=torch.float32).reshape(2, 3)
    wrapped = Tensor.wrap(tensor)
    assert wrapped.data_ptr() == tensor.data_ptr() and wrapped.device == "cuda:0" == wrapped.device
    assert wrapped.torch().data_ptr() == tensor.data_ptr() and wrapped.__dlpack_device__() == (2, 0)
    with pytest.raises(TypeError, match="not on the CPU"):
        wrapped.numpy()
    own = Tensor([4], "f32", "cuda:0")
    assert own.torch().sum().item() == 0 and Tensor.wrap(np.ones(3, np.float32)).to("cuda").torch().tolist() == [1, 1, 1]
    eight = torch.zeros(4, device="cuda", dtype=torch.float8_e4m3fn)
    assert Tensor.wrap(eight).torch().dtype == torch.float8_e4m3fn


def test_cupy_arrays():
    cupy = pytest.importorskip("cupy", reason="cupy is not installed")
    tokens = cupy.ones((2, 256), cupy.float32)
    q, scales = switchyard.quantize(tokens, "int8_token")
    assert cupy.from_dlpack(q).shape == (2, 256) and float(cupy.from_dlpack(scales)[0, 0]) > 0


@pytest.mark.parametrize("stream", ["none", "torch", "int"])
@pytest.mark.parametrize("layout", ["batched", "expanded", "compact"])
def test_exchange_gives_the_bits_of_cpus(layout, stream):
    if stream == "none" and switchyard.num_cuda_devices() < 2:
        pytest.skip("two ranks of one process on one GPU cannot both use torch's default stream")

    def rank(group, device):
        if device != "cpu":
            device = str(group.default_gpu())
            torch.cuda.set_device(device)
        tokens, ids, weights = batch(group.rank, device)
        with Exchange(group, num_experts=E, num_topk=K, hidden=H, max_tokens_per_rank=T, layout=layout, device=device) as exchange:
            options = {}
            if device != "cpu" and stream != "none":
                side = torch.cuda.Stream()
                side.wait_stream(torch.cuda.current_stream())
                options = {"stream": side if stream == "torch" else side.cuda_stream}
            for _ in range(3):
                received = exchange.dispatch(tokens, ids, weights, **options)
                output = exchange.combine(received, received.rows, torch.empty_like(tokens), **options)
            if device != "cpu":
                torch.cuda.synchronize()
                exchange.check()
            return output.float().cpu().numpy()

    for a, b in zip(run_local(2, rank, "cpu"), run_local(2, rank, "cuda")):
        np.testing.assert_array_equal(a, b)


@pytest.mark.skipif(switchyard.num_cuda_devices() < 2, reason="two ranks of one process need a GPU each for torch's default stream")
def test_close_ends_for_all_ranks_and_keeps_rows():
    order = []

    def rank(group):
        device = str(group.default_gpu())
        tokens, ids, weights = batch(group.rank, device)
        sizes = {"num_experts": E, "num_topk": K, "hidden": H, "max_tokens_per_rank": T, "device": device}
        with Exchange(group, **sizes) as exchange:
            received = exchange.dispatch(tokens, ids, weights)
            exchange.combine(received, received.rows)
            torch.cuda.synchronize()
            before = to_numpy(received.rows)
            if group.rank == 1:
                time.sleep(0.3)
            order.append(group.rank)
        assert len(order) == 2  # the end of a block waits for the other rank
        rows = received.rows.torch()
        assert (to_numpy(rows) == before).all()
        group.barrier()
        if group.rank == 0:  # alone: what is left needs no other rank
            del received, rows
            gc.collect()
        group.barrier()
        for _ in range(2):
            with pytest.raises(ZeroDivisionError):
                with Exchange(group, **sizes) as exchange:
                    exchange.dispatch(tokens, ids, weights)
                    torch.cuda.synchronize()
                    raise ZeroDivisionError
        return True

    assert run_local(2, rank) == [True, True]


@pytest.mark.skipif(switchyard.num_cuda_devices() > 1, reason="every rank has a GPU of its own")
def test_ranks_of_one_gpu_need_streams_of_their_own():
    def rank(group):
        tokens, ids, weights = batch(group.rank, "cuda")
        with Exchange(group, num_experts=E, num_topk=K, hidden=H, max_tokens_per_rank=T, device="cuda:0") as exchange:
            with pytest.raises(switchyard.InvalidArgumentError, match="give each rank a stream of its own"):
                exchange.dispatch(tokens, ids, weights)

    run_local(2, rank)


def test_graphs():
    def rank(group):
        tokens, ids, weights = batch(0, "cuda")
        with Exchange(group, num_experts=E, num_topk=K, hidden=H, max_tokens_per_rank=T, layout="batched", device="cuda:0") as exchange:
            def pair():
                received = exchange.dispatch(tokens, ids, weights)
                return exchange.combine(received, received.rows).torch()

            pair()
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                output = pair()
            for factor in (1, 2, 3):
                tokens.copy_(batch(0)[0] * factor)
                graph.replay()
                torch.cuda.synchronize()
                exchange.check()
                expected = tokens.float() * weights.sum(dim=1, keepdim=True)
                torch.testing.assert_close(output.float(), expected, rtol=2**-6, atol=0)

    run_local(1, rank)


def test_a_layer_with_experts_in_torch():
    down = torch.randn(E, H, H, device="cuda", dtype=torch.bfloat16) / H**0.5

    def experts(rows, output):
        assert rows.rows.stream == torch.cuda.current_stream().cuda_stream or rows.rows.stream == 1
        torch.bmm(rows.rows.torch(), down.transpose(1, 2), out=output.torch())

    prepare = make_prepare_finalize("low_latency", switchyard.Group.from_env(), num_experts=E, num_topk=K, hidden=H,
                                    max_tokens_per_rank=T, device="cuda:0")
    kernel = ModularKernel(prepare, Experts.from_function(experts, device="cuda:0"))
    tokens, ids, weights = batch(0, "cuda")
    output = kernel.apply(tokens, ids, weights).torch().float()
    torch.cuda.synchronize()
    kernel.check()
    expected = sum(weights[:, k, None] * torch.einsum("th,toh->to", tokens.float(), down.float()[ids[:, k]]) for k in range(K))
    torch.testing.assert_close(output, expected, rtol=0.05, atol=0.3)


def test_permute():
    tokens, ids, weights = batch(0, "cuda")
    made = switchyard.permute(tokens, ids, E, alignment=8)
    back = switchyard.unpermute_and_reduce(made.x, made, weights).torch()
    torch.testing.assert_close(back.float(), tokens.float() * weights.sum(dim=1, keepdim=True), rtol=2**-6, atol=0)
    counts = switchyard.count_expert_num_tokens(ids, E).torch()
    assert counts.tolist() == torch.bincount(ids.flatten(), minlength=E).tolist() == made.expert_num_tokens.torch().tolist()


def test_errors_of_kernels():
    def rank(group):
        tokens, ids, weights = batch(0, "cuda")
        with Exchange(group, num_experts=E, num_topk=K, hidden=H, max_tokens_per_rank=T, device="cuda:0") as exchange:
            exchange.dispatch(tokens, ids + 100, weights)
            torch.cuda.synchronize()
            with pytest.raises(switchyard.InvalidArgumentError, match="topk_ids"):
                exchange.check()

    run_local(1, rank)


def test_tensors_of_the_wrong_device():
    def rank(group):
        with Exchange(group, num_experts=E, num_topk=K, hidden=H, max_tokens_per_rank=T, device="cuda:0") as exchange:
            with pytest.raises(switchyard.InvalidArgumentError):
                exchange.dispatch(*batch(0))

    run_local(1, rank)

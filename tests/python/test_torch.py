# SPDX-License-Identifier: Apache-2.0
"""switchyard.torch: operators, gradients, torch.compile, and on GPUs graphs and streams. Needs torch."""
import pathlib
import shutil
import subprocess
import sys

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import torch_layer
from torch_layer import (E, H, K, LAYOUTS, T, VARIANTS, batch, compare, dense_layer, experts, layer, leaves, local_weights, make_exchange,
                         train, two_layers)

import switchyard
from switchyard import run_local

ops = torch.ops.switchyard
HAS_GPU = switchyard.num_cuda_devices() > 0 and torch.cuda.is_available()
needs_gpu = pytest.mark.skipif(not HAS_GPU, reason="no GPU, or torch or this build has no CUDA")
DEVICES = ["cpu", pytest.param("cuda", marks=needs_gpu)]


@pytest.fixture
def group():
    with switchyard.Group.from_env() as alone:
        yield alone


def opcheck(op, arguments, **options):
    assert set(torch.library.opcheck(op, arguments, **options).values()) == {"SUCCESS"}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("layout, options", [*((layout, {}) for layout in LAYOUTS), ("expanded", {"exact_rows": True})])
def test_opcheck_of_the_exchange(group, layout, options, device):
    with make_exchange(group, layout, device, **options) as exchange:
        x, ids, weights = leaves(0, device)
        received = exchange.dispatch(x, ids, weights)
        rows = torch.randn_like(received.rows, requires_grad=True)
        row_weights = None if exchange.is_token_major else received.weights.detach().requires_grad_()
        plain = weights.detach()
        opcheck(ops.dispatch, (x, ids, weights, None, None, exchange.name, 0))
        opcheck(ops.combine, (rows, row_weights, received.total_rows, ids, plain, exchange.name, 0))
        opcheck(ops.combine, (rows, None, received.total_rows, ids, None, exchange.name, 0))
        opcheck(ops.combine_backward, (torch.randn_like(x).detach(), ids, plain, rows.shape[0], exchange.name, 0))
        for grad_weights in (torch.rand_like(received.weights).detach(), None):
            opcheck(ops.dispatch_backward, (rows.detach(), grad_weights, ids, plain, torch.bfloat16, exchange.name, 0))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("scheme", ["int8_token", "fp8_block", "fp8_ue8m0", "fp8_token", "fp8_tensor", "nvfp4", "mxfp4", "mxfp8",
                                    "mxfp6_e3m2"])
def test_quantize(scheme, device):
    x = torch.randn(6, 256, device=device)
    scale = torch.full((1,), 100.0, device=device) if scheme == "nvfp4" else None
    expected = switchyard.quantize(x, scheme, static_scale=scale)
    q, scales = switchyard.torch.quantize(x, scheme, static_scale=scale)
    assert torch.equal(q.view(torch.uint8), expected[0].torch().view(torch.uint8))
    assert (scales is None) == (expected[1] is None)
    if scales is not None:
        assert torch.equal(scales.view(torch.uint8), expected[1].torch().view(torch.uint8))
    y = switchyard.torch.dequantize(q, scales, scheme, dtype=torch.float32, tensor_scale=scale)
    assert torch.equal(y, switchyard.dequantize(*expected, scheme, dtype="f32", tensor_scale=scale).torch())
    for layout in ("row_major", "column_major", "column_major_aligned"):
        opcheck(ops.quantize, (x, scheme, scale, None, layout))
    # test_schema multiplies its arguments, which torch cannot with fp8.
    checks = ("test_schema", "test_faketensor", "test_aot_dispatch_dynamic")[0 if scheme in ("int8_token", "mxfp6_e3m2") else 1:2]
    opcheck(ops.dequantize, (q, scales, scheme, torch.float32, scale), test_utils=checks)


@pytest.mark.parametrize("wrong", [None, [[1.0] * H], np.ones((T, H), np.float32)], ids=["None", "list", "numpy"])
def test_what_is_no_tensor(group, wrong):
    x, ids, weights = leaves(0, "cpu")
    functions = {
        switchyard.torch.quantize: {"x": x, "scheme": "fp8_token"},
        switchyard.torch.dequantize: {"q": x, "scales": None, "scheme": "fp8_token"},
        switchyard.torch.permute: {"x": x, "topk_ids": ids, "num_local_experts": E},
        switchyard.torch.unpermute_and_reduce: {"expert_output": x, "inv_perm": ids},
        switchyard.torch.weight_and_reduce: {"expert_output": x, "topk_weights": weights, "topk_ids": ids},
    }
    with make_exchange(group, "compact", "cpu") as exchange:
        received = exchange.dispatch(x, ids, weights)
        functions |= {exchange.dispatch: {"x": x, "topk_ids": ids}, exchange.combine: {"received": received, "rows": received.rows}}
        for function, arguments in functions.items():
            for name, value in arguments.items():
                if value is not None:
                    with pytest.raises(switchyard.ArgumentTypeError, match=rf"{function.__name__}: {name} is (None|a \w+), must be "):
                        function(**{**arguments, name: wrong})
        exchange.combine(received, received.rows)
    for options in ({"static_scale": 1.0}, {"scale_ub": "1"}, {"scale_layout": None}):
        with pytest.raises(TypeError, match=f"quantize: {next(iter(options))} is "):
            switchyard.torch.quantize(x, "fp8_token", **options)


def test_quantize_of_unknown_names():
    with pytest.raises(ValueError, match="fp9"):
        switchyard.torch.quantize(torch.ones(1, 128), "fp9")
    with pytest.raises(ValueError, match="diagonal"):
        switchyard.torch.quantize(torch.ones(1, 128), "fp8_block", scale_layout="diagonal")
    for shape in ((128,), (2, 3, 128)):
        with pytest.raises(switchyard.InvalidArgumentError, match=r"must be \[T, H\]"):
            switchyard.torch.quantize(torch.ones(shape), "fp8_token")


@pytest.mark.parametrize("scheme", ["fp8_token", "nvfp4", "mxfp6_e2m3"])
def test_quantize_of_any_strides_is_a_constant(scheme):
    x = torch.randn(256, 6).T.requires_grad_()
    scale = torch.full((1,), 100.0) if scheme == "nvfp4" else None
    q, scales = switchyard.torch.quantize(x, scheme, static_scale=scale)
    assert torch.equal(q.view(torch.uint8), switchyard.torch.quantize(x.contiguous(), scheme, static_scale=scale)[0].view(torch.uint8))
    y = switchyard.torch.dequantize(q, scales, scheme, tensor_scale=scale)
    assert q.is_contiguous() and not q.requires_grad and not y.requires_grad


@pytest.mark.parametrize("device", DEVICES)
def test_permute(device):
    x, ids, weights = leaves(0, device)
    made = switchyard.torch.permute(x, ids, E, alignment=8, scales=torch.rand(T, 2, device=device))
    assert made.x.shape[0] == switchyard.compute_aligned_m(T, K, E, 8) == made.m_indices.shape[0] == made.scales.shape[0]
    assert made.expert_num_tokens.sum() == (ids >= 0).sum() and not made.x[made.m_indices < 0].any()
    y = switchyard.torch.unpermute_and_reduce(torch.tanh(made.x), made.inv_perm, weights)
    dense = torch.tanh(x) * (weights * (ids >= 0)).sum(dim=1, keepdim=True)
    torch.testing.assert_close(y, dense)
    seed = torch.randn_like(y)
    for a, b in zip(torch.autograd.grad(y, (x, weights), seed), torch.autograd.grad(dense, (x, weights), seed)):
        torch.testing.assert_close(a, b)
    expert_map = torch.tensor([0, -1] * (E // 2), dtype=torch.int32, device=device)
    opcheck(ops.permute, (x, ids, E, None, None, 8))
    opcheck(ops.permute, (x, ids, 1, torch.rand(T, 2, device=device), expert_map, 1))
    rows = made.x.detach().requires_grad_()
    opcheck(ops.unpermute_and_reduce, (rows, made.inv_perm, weights))
    opcheck(ops.unpermute_and_reduce, (rows, made.inv_perm, None))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kind, rank", [("contiguous", 0), ("naive_batched", 0), ("naive_batched", 1)])
def test_weight_and_reduce(kind, rank, device):
    _, ids, weights = leaves(0, device)
    ids[1, 1] = ids[1, 0]  # an expert twice
    local = E // 2
    shape = (T, K, H) if kind == "contiguous" else (local, T, H)
    rows = torch.randn(shape, device=device, requires_grad=True)
    opcheck(ops.weight_and_reduce, (rows, weights, ids, kind, rank))
    y = switchyard.torch.weight_and_reduce(rows, weights, ids, kind=kind, rank=rank)
    dense = torch.zeros_like(y)
    if kind == "contiguous":
        dense = (rows * weights.unsqueeze(-1)).sum(dim=1)
    else:
        for e in range(local):
            tokens = (ids == e + rank * local).any(dim=1).nonzero().flatten()
            weight = (weights * (ids == e + rank * local)).sum(dim=1)[tokens]
            dense = dense.index_add(0, tokens, rows[e, : len(tokens)] * weight.unsqueeze(-1))
    torch.testing.assert_close(y, dense)
    seed = torch.randn_like(y)
    for a, b in zip(torch.autograd.grad(y, (rows, weights), seed), torch.autograd.grad(dense, (rows, weights), seed)):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("layout, options", VARIANTS)
def test_gradients(layout, options):
    def rank(group):
        with make_exchange(group, layout, **options) as exchange:
            compare(group, train(lambda *inputs: two_layers(exchange, *inputs), leaves(group.rank), local_weights(group)))

    run_local(2, rank)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("counts", [(2, 1), (0, 3), (3, 0), (1, 2)])
def test_experts_per_rank(layout, counts):
    ids, weights = torch.tensor([[0, 1], [1, 2], [2, 0], [1, -1]]), torch.tensor([[.25, .5], [1, .5], [.5, .125], [1, 0]])
    factors = torch.tensor([1., 2, 3, 0])  # of the experts, and of none

    def rank(group):
        first, count = sum(counts[:group.rank]), counts[group.rank]
        x = (torch.arange(32).reshape(4, 8) % 7 + 1.0 + group.rank).requires_grad_()
        with switchyard.torch.Exchange(group, num_experts=3, num_topk=2, hidden=8, max_tokens_per_rank=4, layout=layout, scheme="f32",
                                       combine_scheme="f32", experts_per_rank=list(counts)) as exchange:
            received = exchange.dispatch(x, ids, weights)
            assert len(received.num_rows) == count
            mine = factors[first:first + count]
            if layout == "batched":
                results = received.rows * mine[:, None, None]
            elif layout == "expanded":
                of_row = torch.zeros(len(received.rows))
                for one, start, rows in zip(mine, received.first_row, received.num_rows):
                    of_row[start:start + rows] = one
                results = received.rows * of_row[:, None]
            else:
                ids_here = received.topk_ids
                assert ((ids_here >= -1) & (ids_here < count)).all()
                local = torch.cat([mine, torch.zeros(1)])[ids_here.long()]
                results = received.rows * (local * received.weights).sum(1, keepdim=True)
            output = exchange.combine(received, results)
            output.sum().backward()
        sums = (factors[ids] * weights).sum(1, keepdim=True)
        assert torch.equal(output, sums * x) and torch.equal(x.grad, sums.expand(4, 8))

    run_local(2, rank)


def test_gradients_of_dropped_choices():
    """Where capacity drops a choice, its gradient is 0."""
    def rank(group):
        x, ids, weights = torch.ones(2, H, requires_grad=True), torch.tensor([[0, 1], [0, 2]]), torch.tensor([[0.75, 0.5], [0.25, 0.5]])
        weights.requires_grad_()
        with make_exchange(group, "batched", capacity=2, overflow="drop") as exchange:
            received = exchange.dispatch(x, ids, weights)
            exchange.combine(received, received.rows).sum().backward()
        # Expert 0 accepts two rows of four: those of weight 0.75.
        torch.testing.assert_close(x.grad, torch.tensor([[1.25], [0.5]]).expand(2, H))
        torch.testing.assert_close(weights.grad, torch.tensor([[1.0, 1.0], [0.0, 1.0]]) * H)

    run_local(2, rank)


def test_rows_with_their_weights_and_bf16():
    def rank(group):
        x, ids, weights = leaves(group.rank)
        with make_exchange(group) as exchange:
            received = exchange.dispatch(x.to(torch.bfloat16), ids, weights)
            assert received.rows.dtype == torch.float32  # the scheme of the exchange
            plain = exchange.combine(received, received.rows)
            by_hand = exchange.combine(received, received.rows * received.weights.unsqueeze(-1), weighted=True)
            torch.testing.assert_close(plain, by_hand)
            grads = [torch.autograd.grad(y.sum(), (x, weights), retain_graph=True) for y in (plain, by_hand)]
            for a, b in zip(*grads):
                torch.testing.assert_close(a, b, rtol=1e-2, atol=1e-2)

    run_local(2, rank)


def test_second_derivatives_are_refused(group):
    with make_exchange(group, "batched") as exchange:
        x, ids, weights = leaves(0)
        y = layer(exchange, x, ids, weights, local_weights(group))
        grad, = torch.autograd.grad(y.sum(), x, create_graph=True)
        with pytest.raises(switchyard.NotSupportedError, match="second derivatives"):
            grad.sum().backward()


def test_without_weights():
    def rank(group):
        x, ids, _ = leaves(group.rank)
        with make_exchange(group) as exchange:
            received = exchange.dispatch(x, ids)
            assert received.weights is None
            exchange.combine(received, received.rows).sum().backward()
            torch.testing.assert_close(x.grad, (ids >= 0).sum(dim=1, keepdim=True).float().expand_as(x))

    run_local(2, rank)


@pytest.mark.parametrize("max_in_flight", [1, 2])
def test_batches_in_flight(max_in_flight):
    """Two dispatches before two combines, in one slot and in two, and two combines of one dispatch."""
    def rank(group):
        w = local_weights(group)
        with make_exchange(group, max_in_flight=max_in_flight) as exchange:
            first, second = leaves(group.rank), leaves(group.rank, seed=1)
            a = exchange.dispatch(*first)
            b = exchange.dispatch(*second, slot=max_in_flight - 1)
            rows = experts(a, w)
            outputs = exchange.combine(a, rows), exchange.combine(b, experts(b, w)), exchange.combine(a, 2 * rows)
            torch.testing.assert_close(outputs[2], 2 * outputs[0])
            for seed, (y, inputs) in enumerate(zip(outputs, (first, second))):
                found = (y.detach(), *torch.autograd.grad(torch_layer.loss_of(y), (inputs[0], inputs[2], w), retain_graph=True))
                compare(group, found, seed, function=dense_layer)

    run_local(2, rank)


def test_activation_checkpointing():
    from torch.utils.checkpoint import checkpoint

    def rank(group):
        w = local_weights(group)
        with make_exchange(group, "batched") as exchange:
            x, ids, weights = leaves(group.rank)
            y = checkpoint(layer, exchange, x, ids, weights, w, use_reentrant=False)
            y = checkpoint(layer, exchange, y, ids, weights, w, use_reentrant=False)
            compare(group, (y.detach(), *torch.autograd.grad(torch_layer.loss_of(y), (x, weights, w))))

    run_local(2, rank)


def test_results_are_memory_of_their_own():
    def rank(group):
        with make_exchange(group) as exchange:
            with torch.no_grad():
                first = exchange.dispatch(*batch(group.rank))
                kept = [value.clone() for value in first if isinstance(value, torch.Tensor)]
                exchange.dispatch(*batch(group.rank, seed=1))
        for a, b in zip((value for value in first if isinstance(value, torch.Tensor)), kept):
            assert torch.equal(a, b)

    run_local(2, rank)


def test_quantized_rows():
    def rank(group):
        tokens = torch.randn(T, 256, requires_grad=True)
        _, ids, weights = batch(0)
        with switchyard.torch.Exchange(group, num_experts=E, num_topk=K, hidden=256, max_tokens_per_rank=T, layout="batched",
                                       scheme="fp8_block", scale_layout="column_major_aligned") as exchange:
            opcheck_shapes = torch.library.opcheck(ops.dispatch, (tokens.detach(), ids, weights, None, None, exchange.name, 0),
                                                   test_utils="test_faketensor")
            assert set(opcheck_shapes.values()) == {"SUCCESS"}
            received = exchange.dispatch(tokens, ids, weights)
            assert received.rows.dtype == torch.float8_e4m3fn and received.scales.stride(1) == 1
            y = switchyard.torch.dequantize(received.rows.detach(), received.scales, "fp8_block")
            output = exchange.combine(received, y.requires_grad_())
            expected = tokens.detach() * (weights * (ids >= 0)).sum(dim=1, keepdim=True)
            torch.testing.assert_close(output.float(), expected, rtol=0.1, atol=0.1)
            with pytest.raises(switchyard.NotSupportedError, match="quantizes has no gradient"):
                output.sum().backward()

    rank(switchyard.Group.from_env())


def test_refused():
    def rank(group):
        for options, phrase in (({"payload_bytes": [4]}, "payload_bytes"), ({"sends_weights": False}, "sends_weights")):
            with pytest.raises(switchyard.NotSupportedError, match=phrase):
                make_exchange(group, **options)
        with make_exchange(group) as exchange:
            with pytest.raises(switchyard.ArgumentTypeError, match="received is a NoneType, must be what dispatch returned"):
                exchange.combine(None, batch(0)[0])
            with pytest.raises(ValueError, match="topk_weights"):
                exchange.dispatch(*batch(0)[:2], torch.ones(T, K, dtype=torch.float16))
            name, received = exchange.name, exchange.dispatch(*batch(0))
        with pytest.raises(ValueError, match="closed"):
            exchange.combine(received, received.rows)
        del exchange
        with pytest.raises(ValueError, match=f'no "{name}"'):
            ops.combine(received.rows, None, received.total_rows, *batch(0)[1:], name, 0)

    rank(switchyard.Group.from_env())


def run_ranks(mode, device, folder, size=2, timeout=600):
    """Runs torch_layer.py on every rank, each a process."""
    program = pathlib.Path(torch_layer.__file__)
    ranks = [subprocess.Popen([sys.executable, program, mode, str(rank), str(size), str(folder / "store"), device], stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, text=True) for rank in range(size)]
    try:
        for process in ranks:
            output, errors = process.communicate(timeout=timeout)
            assert process.returncode == 0 and "equal" in output, errors
    finally:
        for process in ranks:
            process.kill()
            process.wait()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
def test_compile(backend, device, tmp_path):
    """Forward and backward of two layers between processes: eager in every layout, and compiled with fullgraph=True."""
    if backend == "inductor" and device == "cpu" and shutil.which("g++") is None:
        pytest.skip("no C++ compiler")
    if backend == "inductor" and device == "cuda":
        pytest.importorskip("triton", reason="triton is not installed")
    run_ranks(backend, device, tmp_path)


class Layer(torch.nn.Module):
    def __init__(self, exchange, group):
        super().__init__()
        self.exchange, self.w = exchange, torch.nn.Parameter(local_weights(group).detach())

    def forward(self, x, ids, weights):
        return layer(self.exchange, x, ids, weights, self.w)


def test_compile_of_a_module_with_any_number_of_tokens(group):
    with make_exchange(group, "batched") as exchange:
        module = Layer(exchange, group)
        compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
        for num_tokens in (T, 3, 2, 0, 1):
            inputs = [value.detach()[:num_tokens] for value in leaves(0)]
            inputs[0].requires_grad_()
            grads = [torch.autograd.grad(function(*inputs).sum(), (inputs[0], module.w)) for function in (compiled, module)]
            for a, b in zip(*grads):
                torch.testing.assert_close(a, b)


def test_compile_with_exact_rows(group):
    with make_exchange(group, exact_rows=True) as exchange:
        def function(x, ids, weights):
            received = exchange.dispatch(x, ids, weights)
            return exchange.combine(received, torch.tanh(received.rows))

        with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
            compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
            for seed in range(3):
                x, ids, weights = leaves(0, seed=seed)
                grads = [torch.autograd.grad(f(x, ids, weights).sum(), (x, weights)) for f in (compiled, function)]
                for a, b in zip(*grads):
                    torch.testing.assert_close(a, b)


@pytest.mark.parametrize("scale_layout", ["row_major", "column_major", "column_major_aligned"])
def test_compile_with_exact_scales(group, scale_layout):
    if scale_layout == "column_major_aligned" and torch.__version__.startswith("2.4"):
        pytest.skip("torch 2.4 compiles no strides that are a rounded unbacked size")
    _, ids, weights = batch(0)
    x = torch.randn(T, 256, dtype=torch.bfloat16)
    with switchyard.torch.Exchange(group, num_experts=E, num_topk=K, hidden=256, max_tokens_per_rank=T, scheme="fp8_block",
                                   scale_layout=scale_layout, exact_rows=True) as exchange:
        def function(x):
            scales = exchange.dispatch(x, ids, weights).scales
            return scales.T.contiguous(), scales * 2

        with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
            compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
            for a, b in zip(compiled(x), function(x)):
                assert torch.equal(a, b) and a.stride() == b.stride()


def test_names_tell_shapes(group):
    """Compilers keep programs on disk by the names of exchanges."""
    exchanges = [make_exchange(group, max_in_flight=n, exact_rows=exact) for n, exact in ((1, False), (1, False), (2, False), (1, True))]
    digests = [exchange.name.split()[-1] for exchange in exchanges]
    assert digests[0] == digests[1] and len(set(digests)) == 3 and len({exchange.name for exchange in exchanges}) == 4
    for exchange in exchanges:
        exchange.close()


def test_options_that_follow_from_others_are_refused(group):
    for name in ("worst_case_rows", "zero_padding"):
        with pytest.raises(switchyard.InvalidArgumentError, match=f"{name} is given, must be left out"):
            switchyard.torch.Exchange(group, num_experts=2, num_topk=1, hidden=8, max_tokens_per_rank=1, **{name: False})


@needs_gpu
@pytest.mark.parametrize("mode", ["graph", "training_graph", "reduce-overhead"])
def test_cuda_graphs(mode, tmp_path):
    if mode == "reduce-overhead":
        pytest.importorskip("triton", reason="triton is not installed")
    run_ranks(mode, "cuda", tmp_path)


def test_compiled_local_operators():
    @torch.compile(fullgraph=True, backend="aot_eager", dynamic=True)
    def compiled(x, ids, weights):
        made = switchyard.torch.permute(x, ids, E, alignment=4)
        y = switchyard.torch.unpermute_and_reduce(made.x, made.inv_perm, weights)
        q, scales = switchyard.torch.quantize(y.detach(), "int8_token")
        return y, switchyard.torch.dequantize(q, scales, "int8_token", dtype=torch.float32)

    for seed in range(2):
        x, ids, weights = leaves(seed)
        y, rounded = compiled(x, ids, weights)
        torch.testing.assert_close(y, x * (weights * (ids >= 0)).sum(dim=1, keepdim=True))
        torch.testing.assert_close(rounded, y, rtol=0.02, atol=0.05)
        y.sum().backward()
        torch.testing.assert_close(x.grad, (weights * (ids >= 0)).sum(dim=1, keepdim=True).expand_as(x))


def test_tensors_keep_their_memory():
    expected = torch.arange(1024, dtype=torch.float32).view(4, 256)
    shown = switchyard.Tensor.wrap(expected.clone()).torch()
    q = switchyard.quantize(expected, "int8_token")[0].torch()
    copy = q.clone()
    for _ in range(10):
        switchyard.quantize(torch.zeros(4, 256), "int8_token")
    assert torch.equal(shown, expected) and torch.equal(q, copy)


def wait_on(stream):
    with torch.cuda.stream(stream):
        torch.cuda._sleep(500_000_000)  # a quarter of a second


@needs_gpu
def test_memory_that_another_stream_reads_is_not_reused():
    side = torch.cuda.Stream()
    x = torch.randn(512, 512, device="cuda")
    expected = switchyard.quantize(x, "int8_token")[0].torch().clone()
    torch.cuda.synchronize()
    place = x.data_ptr()
    wait_on(side)
    q = switchyard.quantize(x, "int8_token", stream=side)[0]
    assert q.stream == side.cuda_stream
    del x
    others = [torch.full((512, 512), 7.0, device="cuda") for _ in range(4)]
    assert not side.query() and all(other.data_ptr() != place for other in others)
    assert torch.equal(q.torch(), expected)  # waits for `side`


@needs_gpu
def test_results_of_another_stream_are_not_reused():
    side = torch.cuda.Stream()
    x = torch.randn(512, 512, device="cuda")
    expected = switchyard.quantize(x, "int8_token")[0].torch().float()
    side.wait_stream(torch.cuda.current_stream())
    q = switchyard.quantize(x, "int8_token", stream=side)[0]
    shown = q.torch()
    assert shown.data_ptr() == q.data_ptr()
    place = q.data_ptr()
    wait_on(torch.cuda.current_stream())
    read = shown.float()
    del q, shown
    with torch.cuda.stream(side):
        others = [torch.full((512, 512), 7, dtype=torch.int8, device="cuda") for _ in range(4)]
    assert not torch.cuda.current_stream().query() and all(other.data_ptr() != place for other in others)
    assert torch.equal(read, expected)


@needs_gpu
def test_phases_in_another_stream(group):
    side = torch.cuda.Stream()
    options = {"num_experts": E, "num_topk": K, "hidden": H, "max_tokens_per_rank": T, "scheme": "f32", "combine_scheme": "f32"}
    with switchyard.Exchange(group, device="cuda:0", layout="batched", **options) as exchange:
        x, ids, weights = (value.cuda() for value in batch(0))
        expected = x * (weights * (ids >= 0)).sum(dim=1, keepdim=True)
        for _ in range(3):
            copies = x.clone(), ids.clone(), weights.clone()
            torch.cuda.synchronize()
            wait_on(side)
            handle = exchange.dispatch_send(*copies, stream=side)
            received = exchange.dispatch_receive(handle, stream=side)
            output = exchange.combine(received, received.rows, torch.empty_like(x), stream=side)
            del copies
            others = [torch.full_like(x, 7.0) for _ in range(8)]
            torch.cuda.current_stream().wait_stream(side)
            torch.testing.assert_close(output, expected)
            del others
        exchange.check()

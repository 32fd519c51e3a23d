# SPDX-License-Identifier: Apache-2.0
"""Torch tensors as arguments: those that are empty, and those whose memory does not hold their values."""
import numpy as np
import pytest

import switchyard
from switchyard import Exchange, InvalidArgumentError, make_prepare_finalize, run_local
from switchyard.compat import deep_ep

torch = pytest.importorskip("torch")

# Libraries differ in the strides of an array without elements.
EMPTIES = {
    "torch.zeros": torch.zeros,
    "of numpy": lambda *shape, dtype: torch.tensor(np.zeros(shape, np.float32)).to(dtype),
    "of numpy's ids": lambda *shape, dtype: torch.from_numpy(np.zeros(shape, np.int32)) if dtype == torch.int32
                      else torch.tensor(np.zeros(shape, np.float32)).to(dtype),
    "a slice": lambda *shape, dtype: torch.ones((3, *shape[1:]), dtype=dtype)[:0],
    "columns": lambda *shape, dtype: torch.ones((*shape[1:], 3), dtype=dtype)[..., :0].permute(-1, *range(len(shape) - 1)),
    "expanded": lambda *shape, dtype: torch.zeros(1, 1, dtype=dtype).expand(1, shape[-1])[:0],
}
SIZES = {"num_experts": 8, "num_topk": 2, "hidden": 16, "max_tokens_per_rank": 8}


@pytest.mark.parametrize("kind", EMPTIES)
def test_no_tokens(kind):
    x, weights = EMPTIES[kind](0, 16, dtype=torch.float32), EMPTIES[kind](0, 2, dtype=torch.float32)
    ids, half = EMPTIES[kind](0, 2, dtype=torch.int32), EMPTIES[kind](0, 16, dtype=torch.bfloat16)

    def rank(group):
        with Exchange(group, **SIZES, scheme="f32", combine_scheme="f32") as exchange:
            received = exchange.dispatch(x, ids, weights)
            assert exchange.combine(received, received.rows).shape == (0, 16)
        for name in ("local", "low_latency"):
            with make_prepare_finalize(name, group, **SIZES) as prepare:
                prepared = prepare.prepare(x, ids, weights)
                assert prepare.finalize(prepared.experts.rows.to("cpu"), num_tokens=0, **({} if name == "low_latency" else
                                        {"weight_and_reduce": "no_op"})).shape == (0, 16)
        buffer = deep_ep.Buffer(group, low_latency_mode=True)
        rows, _, handle, _, _ = buffer.low_latency_dispatch(half, ids.long(), 4, 8, use_fp8=False)
        assert tuple(buffer.low_latency_combine(rows, ids.long(), weights, handle)[0].shape) == (0, 16)

    run_local(1, rank)
    q, scales = switchyard.quantize(x, "fp8_token")
    assert switchyard.dequantize(q.torch(), scales.torch(), "fp8_token").shape == (0, 16)
    permuted = switchyard.permute(x, ids, 8)
    assert switchyard.unpermute_and_reduce(permuted.x, ids, weights).shape == (0, 16)
    assert switchyard.count_expert_num_tokens(ids, 8).numpy().sum() == 0
    assert switchyard.select_experts(switchyard.router_logits(x, torch.ones(8, 16)), 2)[0].shape == (0, 2)


def freed(*shape):
    """As FSDP leaves it."""
    tensor = torch.ones(*shape)
    tensor.untyped_storage().resize_(0)
    return tensor


def fake(*shape):
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        return torch.ones(*shape)


@pytest.mark.parametrize("make, phrase", [
    (freed, "at a null pointer"), (fake, "null pointer|no memory of it"),
    (lambda *shape: torch.ones(*shape).to_sparse(), "layout is torch.sparse_coo, must be torch.strided; call to_dense"),
    (lambda *shape: torch.ones(*shape).to_sparse_csr(), "layout is torch.sparse_csr"),
    (lambda *shape: torch.conj(torch.ones(*shape, dtype=torch.complex64)), "(x|tokens|q|hidden): dtype: .*complex64"),
    (lambda *shape: torch.ones(*shape, device="meta"), "(x|tokens|q|hidden): it is on meta"),
])
def test_tensors_whose_memory_is_not_their_values(make, phrase):
    x, ids = make(4, 256), np.array([[0, 1]] * 4)

    def rank(group):
        with Exchange(group, num_experts=4, num_topk=2, hidden=256, max_tokens_per_rank=4) as exchange:
            with pytest.raises(InvalidArgumentError, match=phrase):
                exchange.dispatch(x, ids)

    run_local(1, rank)
    for call in (lambda: switchyard.quantize(x, "fp8_block"), lambda: switchyard.silu_mul_quantize(x, "fp8_block"),
                 lambda: switchyard.quantize(torch.ones(4, 256), "f32", out=(x, None)), lambda: switchyard.router_logits(x, x)):
        with pytest.raises(InvalidArgumentError, match=phrase):
            call()


@pytest.mark.parametrize("make", [lambda *shape: torch._neg_view(torch.ones(*shape)),
                                  lambda *shape: torch.conj(torch.ones(*shape, dtype=torch.complex64) * 1j).imag])
def test_the_negative_bit(make):
    x = make(1, 8)
    assert x.is_neg() and (x == -1).all()

    def rank(group):
        with Exchange(group, num_experts=1, num_topk=1, hidden=8, max_tokens_per_rank=4, scheme="f32", combine_scheme="f32") as exchange:
            handle = exchange.dispatch_send(make(1, 8), np.zeros((1, 1), np.int32))  # which keeps the copy
            received = exchange.dispatch_receive(handle)
            return exchange.combine(received, received.rows).numpy().tolist()

    assert run_local(1, rank) == [[[-1] * 8]]
    assert (switchyard.dequantize(*switchyard.quantize(x, "int8_token"), "int8_token", dtype="f32").numpy() == -1).all()
    for call in (lambda: switchyard.Tensor.wrap(x), lambda: switchyard.dequantize(*switchyard.quantize(x, "int8_token"), "int8_token", out=x)):
        with pytest.raises(InvalidArgumentError, match="negative bit is set.* call resolve_neg"):
            call()

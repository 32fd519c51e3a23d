# SPDX-License-Identifier: Apache-2.0
"""Memory after many calls of everything that is cheap."""
import ml_dtypes
import numpy as np
import pytest

import switchyard
from switchyard import Exchange, ExchangeConfig, Group, QuantScheme, Tensor, run_local
from switchyard.compat import deep_ep, flashinfer

CALLS = 100_000
SLACK_BYTES = 4 << 20  # of what 100,000 leaks of a Python object would be at least


def resident_bytes():
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * 4096


def expect_no_growth(call, calls=CALLS):
    for _ in range(calls // 20):
        call()
    before = resident_bytes()
    for _ in range(calls):
        call()
    assert resident_bytes() - before < SLACK_BYTES


ARRAY = np.ones((2, 128), np.float32)
BF16 = np.ones((2, 128), ml_dtypes.bfloat16)
OUT = (np.zeros((2, 128), np.int8), np.zeros((2, 1), np.float32))


def refused():
    with pytest.raises(switchyard.InvalidArgumentError):
        QuantScheme("nothing")


@pytest.mark.parametrize("call", [
    lambda: Tensor.wrap(ARRAY), lambda: Tensor.wrap(BF16).numpy(), lambda: Tensor([4, 8], "bf16"),
    lambda: np.from_dlpack(Tensor.wrap(ARRAY)), lambda: Tensor.wrap(ARRAY).__dlpack__(max_version=(1, 0)),
    lambda: Tensor.wrap(ARRAY).view("u8").shape, lambda: switchyard.quantize(ARRAY, "int8_token", out=OUT),
    lambda: switchyard.quantize(BF16, "fp8_block"), lambda: repr(ExchangeConfig(num_experts=3, scheme="mxfp8")),
    lambda: ExchangeConfig() == ExchangeConfig(hidden=1), lambda: str(switchyard.Device("cuda:1")),
    lambda: switchyard.num_cuda_devices(),
], ids=["wrap", "wrap numpy", "new", "from_dlpack", "capsule", "view", "quantize out", "quantize", "config", "equal", "device",
        "num devices"])
def test_calls(call):
    expect_no_growth(call)


def test_errors():
    expect_no_growth(refused, CALLS // 4)


def test_exchanges():
    def rank(group):
        ids, weights, out = np.array([[0], [1]], np.int64), np.ones((2, 1), np.float32), np.zeros((2, 128), np.float32)
        exchange = Exchange(group, num_experts=2, num_topk=1, hidden=128, max_tokens_per_rank=2, scheme="f32", combine_scheme="f32")

        def pair():
            received = exchange.dispatch(ARRAY, ids, weights)
            assert received.host.num_rows == 2
            exchange.combine(received, received.rows, out)

        expect_no_growth(pair)

        def phases():
            handle = exchange.dispatch_send(ARRAY, ids)
            received = exchange.dispatch_receive(handle)
            exchange.combine_send(received, received.rows)
            exchange.combine_receive(received)

        expect_no_growth(phases, CALLS // 4)

        def failed():
            with pytest.raises(switchyard.InvalidArgumentError):
                exchange.dispatch(ARRAY, ids + 5)

        expect_no_growth(failed, CALLS // 10)

    run_local(1, rank)


def test_objects_with_memory():
    def make():
        with Group.from_env() as group:
            Exchange(group, num_experts=2, num_topk=1, hidden=128, max_tokens_per_rank=64).close()

    expect_no_growth(make, 500)


def test_callbacks():
    values = {}

    def make():
        values.clear()
        with Group(0, 1, (values.__setitem__, lambda key, timeout_ms: values.get(key))):
            pass

    expect_no_growth(make, 500)


def test_compat_calls():
    def rank(group):
        ids, weights = np.array([[0], [1]], np.int64), np.ones((2, 1), np.float32)
        per_expert = np.zeros(2, np.int32)
        buffer, elastic = deep_ep.Buffer(group), deep_ep.ElasticBuffer(group, num_max_tokens_per_rank=2)
        moe = flashinfer.MoeAlltoAll(group, 2, 1, 2)

        def pairs():
            rows, _, handle, _, hook = buffer.low_latency_dispatch(BF16, ids, 2, 2, use_fp8=False, return_recv_hook=True)
            hook()
            buffer.low_latency_combine(rows, ids, weights, handle)
            rows, _, _, _, handle, _ = buffer.dispatch(BF16, topk_idx=ids, num_tokens_per_expert=per_expert)
            buffer.combine(rows, handle)
            rows, _, _, handle, _ = elastic.dispatch(BF16, ids, num_experts=2)
            elastic.combine(rows, handle)
            moe.combine(moe.dispatch(ids, [BF16], 2)[0], 2)

        expect_no_growth(pairs, CALLS // 20)

    run_local(1, rank)


def test_batches_and_scales():
    batch, counts = np.ones((2, 3, 256), np.float32), np.array([3, 1], np.int32)
    expect_no_growth(lambda: switchyard.quantize_batched(batch, counts, "fp8_block"), CALLS // 10)
    expect_no_growth(lambda: switchyard.silu_mul_quantize(batch, "fp8_block", counts=counts), CALLS // 10)
    expect_no_growth(lambda: switchyard.relayout_scales(batch, "column_major_aligned"), CALLS // 10)
    expect_no_growth(switchyard.settings, CALLS // 20)


def test_the_tuple_of_a_handle():
    def rank(group):
        ids, per_expert = np.array([[0], [1]], np.int64), np.zeros(2, np.int32)
        buffer = deep_ep.Buffer(group)

        def unpack():
            *_, handle, _ = buffer.dispatch(BF16, topk_idx=ids, num_tokens_per_expert=per_expert)
            assert len(tuple(handle)) == 6
            buffer.combine(BF16, handle)

        expect_no_growth(unpack, CALLS // 20)

    run_local(1, rank)


def test_functions_that_raise_on_threads_of_the_library():
    weights = np.ones((2, 1), np.float32)

    def function(rows, output):
        raise LookupError(f"{rows} {output}")

    def fail():
        prepare = switchyard.make_prepare_finalize("local", None, num_experts=2, num_topk=1, hidden=128, max_tokens_per_rank=2,
                                                   num_micro_batches=2)
        with switchyard.ModularKernel(prepare, switchyard.Experts.from_function(function)) as kernel:
            with pytest.raises(LookupError):
                kernel.apply_overlapped(BF16, np.array([[0], [1]]), weights)

    expect_no_growth(fail, 500)

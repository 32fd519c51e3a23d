# SPDX-License-Identifier: Apache-2.0
"""Exchange: every layout and call on threads, against plain numpy and the golden vectors."""
import threading
import time

import ml_dtypes
import numpy as np
import pytest

import golden
import switchyard
from switchyard import Exchange, ExchangeConfig, run_local

E, K, H = 7, 3, 32
TOKENS = [5, 0, 4]


def batch(rank, dtype=np.float32):
    """Tokens of small integers, distinct experts and weights of one rank."""
    random = np.random.default_rng(rank)
    num = TOKENS[rank]
    tokens = random.integers(-8, 8, (num, H)).astype(dtype)
    ids = np.array([random.permutation(E)[:K] for _ in range(num)], np.int64).reshape(num, K)
    ids[random.random((num, K)) < 0.2] = -1
    return tokens, ids, (random.integers(1, 5, (num, K)) / 4).astype(np.float32)


def identity_sum(rank):
    """What comes back when every expert returns its input."""
    tokens, ids, weights = batch(rank)
    return tokens * (weights * (ids >= 0)).sum(axis=1, keepdims=True)


F32 = {"scheme": "f32", "combine_scheme": "f32"}


def exchange_of(group, **options):
    return Exchange(group, num_experts=E, num_topk=K, hidden=H, max_tokens_per_rank=max(TOKENS), **{**F32, **options})


@pytest.mark.parametrize("layout", ["batched", "expanded", "compact", "by_rank", "all_gather"])
@pytest.mark.parametrize("reduce", ["per_rank", "per_expert"])
@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
def test_identity_in_every_layout(layout, reduce, dtype):
    is_expert_major = layout in ("batched", "expanded")
    if reduce == "per_expert" and not is_expert_major:
        pytest.skip("sums per expert need a row per expert")

    name = switchyard.Tensor.wrap(np.zeros(1, dtype)).dtype

    def rank(group):
        tokens, ids, weights = batch(group.rank, dtype)
        with exchange_of(group, layout=layout, reduce=reduce, scheme=name, combine_scheme=name) as exchange:
            received = exchange.dispatch(tokens, ids, weights)
            rows = received.rows
            assert rows.dtype == name and received.host.num_rows == received.total_rows.numpy()[0]
            returned = rows
            if not is_expert_major:  # a row stands for all local experts: their weighted sum
                local = received.topk_ids.numpy()
                first, last = ((0, 3), (3, 5), (5, 7))[group.rank]
                mine = local >= 0 if layout == "compact" else (local >= first) & (local < last)
                sums = np.where(mine, received.topk_weights.numpy(), 0).sum(axis=1, keepdims=True)
                returned = (rows.numpy().astype(np.float32) * sums).astype(dtype)
                output = exchange.combine(received, returned, rows_are_weighted=True)
            else:
                output = exchange.combine(received, returned)
            assert output.shape == (len(tokens), H) and output.dtype == rows.dtype
            return output.numpy().astype(np.float32)

    for number, output in enumerate(run_local(3, rank)):
        np.testing.assert_allclose(output, identity_sum(number), rtol=2**-6)


@pytest.mark.parametrize("layout, reduce", [("batched", "per_rank"), ("batched", "per_expert"), ("expanded", "per_rank"),
                                            ("expanded", "per_expert"), ("compact", "per_rank"), ("by_rank", "per_rank"), ("all_gather", "per_rank")])
def test_weights_are_values_of_ieee(layout, reduce):
    """A weight that is NaN or infinite makes its token so, and no other; that of an id -1 is not read."""
    special = [{1: np.nan, 3: np.inf}, {}, {2: -np.inf}]

    def rank(group):
        tokens, ids, weights = batch(group.rank)
        tokens = np.abs(tokens) + 1
        for token, weight in special[group.rank].items():
            ids[token], weights[token, 0] = (2, 4, 6), weight  # on three ranks
        ids[:1, 2], weights[:1, 2] = -1, np.nan
        with exchange_of(group, layout=layout, reduce=reduce) as exchange:
            received = exchange.dispatch(tokens, ids, weights)
            rows = received.rows.numpy()
            if layout not in ("batched", "expanded"):
                local, (first, last) = received.topk_ids.numpy(), ((0, 3), (3, 5), (5, 7))[group.rank]
                mine = local >= 0 if layout == "compact" else (local >= first) & (local < last)
                sums = np.where(mine, received.topk_weights.numpy(), 0).sum(axis=1, keepdims=True)
                rows = np.where(mine.any(axis=1, keepdims=True), rows * sums, 0).astype(np.float32)
            output = exchange.combine(received, rows).numpy()
        np.testing.assert_array_equal(output, tokens * np.where(ids >= 0, weights, 0).sum(axis=1, keepdims=True))
        assert np.flatnonzero(~np.isfinite(output).all(axis=1)).tolist() == sorted(special[group.rank])

    run_local(3, rank)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_rows_are_not_rounded_unasked(dtype):
    def rank(group):
        tokens = np.full((1, H), 1 + 2.0 ** -10, dtype)  # no bf16
        ids, name = np.array([[0, 4, 5]]), switchyard.Tensor.wrap(tokens).dtype  # experts of both ranks
        with exchange_of(group, scheme="none", combine_scheme="none", max_in_flight=2) as exchange:
            with pytest.raises(switchyard.InvalidArgumentError, match=f"tokens is {name} .*; set scheme to {name}"):
                exchange.dispatch(tokens, ids)
            received = exchange.dispatch(tokens.astype(ml_dtypes.bfloat16), ids)
            with pytest.raises(switchyard.InvalidArgumentError, match=f"rows is {name} .*; set combine_scheme to {name}"):
                exchange.combine(received, received.rows.numpy().astype(dtype))
            exchange.release(received)
        with exchange_of(group, scheme=name, combine_scheme=name) as exchange:
            received = exchange.dispatch(tokens, ids)
            again = exchange.combine(received, received.rows).numpy()
            received = exchange.dispatch(tokens, ids)
            exchange.combine_send(received, received.rows)
            in_phases = exchange.combine_receive(received).numpy()
            assert again.dtype == in_phases.dtype == dtype
            return (again == 3 * tokens) & (in_phases == 3 * tokens)

    assert all(same.all() for same in run_local(2, rank))


def test_copied_inputs_may_be_overwritten_once_sent():
    def rank(group):
        tokens, ids, weights = batch(group.rank)
        with exchange_of(group, layout="expanded") as exchange:
            lent = tokens.copy()
            handle = exchange.dispatch_send(lent, ids, weights, copies_inputs=True)
            lent[:] = 77
            received = exchange.dispatch_receive(handle)
            rows = received.rows.numpy().copy()
            exchange.combine_send(received, rows, copies_inputs=True)
            rows[:] = 77
            np.testing.assert_allclose(exchange.combine_receive(received, dtype="f32").numpy(), identity_sum(group.rank))

    run_local(3, rank)


def test_golden_low_latency_sums():
    vectors = golden.load("combine")

    def rank(group):
        path = f"{group.rank}/"
        ids, weights, x = (vectors[path + name] for name in ("ids", "weights", "x"))
        exchange = Exchange(group, num_experts=7, num_topk=4, hidden=x.shape[1], max_tokens_per_rank=5, layout="batched",
                            reduce="per_expert")
        received = exchange.dispatch(x, ids, weights)
        rows = received.rows.numpy().astype(np.float32)
        first = [0, 3, 5][group.rank]
        with np.errstate(over="ignore"):  # the vectors have the largest numbers too
            for local, count in enumerate(received.num_rows.numpy()):
                rows[local, :count] *= 2.0 ** ((first + local) % 3 - 1)
        output = exchange.combine(received, rows.astype(ml_dtypes.bfloat16))
        return golden.same_bytes(output.numpy(), vectors[path + "low_latency"])

    assert run_local(3, rank) == [True, True, True]


def test_origins_and_sources_agree():
    def rank(group):
        tokens, ids, weights = batch(group.rank)
        with exchange_of(group, layout="expanded") as exchange:
            received = exchange.dispatch(tokens, ids, weights)
            origins = exchange.row_origins(received)
            ranks, token, per_rank, k = exchange.row_sources(received)
            rows = received.rows.numpy()
            for row, source, index, choice in zip(origins["row"], origins["rank"], origins["token"], origins["k"]):
                assert (ranks.numpy()[row], token.numpy()[row], k.numpy()[row]) == (source, index, choice)
                np.testing.assert_array_equal(rows[row], batch(source)[0][index])
            assert per_rank.numpy().tolist() == received.host.rows_per_rank
            dispatched, combined = exchange.wire_bytes(received)
            assert (dispatched > 0) == (len(tokens) > 0) and combined >= 0
            exchange.release(received)
            return len(origins["row"])

    assert sum(run_local(3, rank)) == sum((batch(rank)[1] >= 0).sum() for rank in range(3))


def test_phases_keep_their_inputs():
    def rank(group):
        tokens, ids, weights = batch(group.rank)
        expected = identity_sum(group.rank)
        with exchange_of(group, layout="expanded", max_in_flight=2) as exchange:
            handle = exchange.dispatch_send(tokens, ids, weights)
            del tokens, ids, weights  # the handle has them
            received = exchange.dispatch_receive(handle)
            assert received.handle.num_tokens == TOKENS[group.rank] and "Handle(" in repr(handle)
            rows = received.rows.numpy().copy()
            exchange.combine_send(received, rows)
            del rows
            output = exchange.combine_receive(received, dtype="f32")
            np.testing.assert_allclose(output.numpy(), expected)
            out = np.zeros_like(expected)
            again = exchange.dispatch_again(received, batch(group.rank)[0], batch(group.rank)[2])
            assert exchange.combine(again, again.rows, out) is out
            np.testing.assert_allclose(out, expected)
            sent = exchange.dispatch_again_send(received, batch(group.rank)[0])
            exchange.release(exchange.dispatch_receive(sent))
            opened = exchange.reopen(again)
            exchange.combine(opened, again.rows, np.zeros_like(expected))

    run_local(3, rank)


@pytest.mark.parametrize("scheme", ["fp8_block", "fp8_token", "int8_token", "nvfp4", "mxfp4", "mxfp8", "fp8_ue8m0"])
def test_schemes_on_the_wire(scheme):
    scale = np.array([64.0], np.float32)

    def rank(group):
        tokens, ids, _ = batch(group.rank, ml_dtypes.bfloat16)
        options = {"tensor_scale": scale} if scheme == "nvfp4" else {}
        with exchange_of(group, layout="expanded", scheme=scheme) as exchange:
            received = exchange.dispatch(tokens, ids, **options)
            origins = exchange.row_origins(received)
            y = switchyard.dequantize(received.rows, received.scales, scheme, dtype="f32",
                                      tensor_scale=scale if options else None).numpy()
            assert received.experts.scheme.name == scheme
            for row, source, index in zip(origins["row"], origins["rank"], origins["token"]):
                q, s = switchyard.quantize(batch(source, ml_dtypes.bfloat16)[0][index:index + 1], scheme,
                                           static_scale=scale if options else None)
                one = switchyard.dequantize(q, s, scheme, dtype="f32", tensor_scale=scale if options else None)
                np.testing.assert_array_equal(y[row], one.numpy()[0])
            exchange.release(received)

    run_local(3, rank)


def test_tokens_that_are_quantized_already():
    def rank(group):
        tokens, ids, weights = batch(group.rank)
        q, scales = switchyard.quantize(tokens, "fp8_token")
        with exchange_of(group, scheme="fp8_token", payload_bytes=[8]) as exchange:
            payload = np.arange(len(tokens), dtype=np.int64)
            received = exchange.dispatch(q, ids, weights, scales=scales, payloads=[payload])
            origins = exchange.row_origins(received)
            got = received.payloads[0].numpy().view(np.int64)
            assert all(got[row, 0] == token for row, token in zip(origins["row"], origins["token"]))
            exchange.release(received)

    run_local(3, rank)


def test_options_of_combine():
    def rank(group):
        tokens, ids, weights = batch(group.rank)
        num = len(tokens)
        bias = np.ones((num, H), ml_dtypes.bfloat16)
        back = np.full((num, K), -1, np.float32)
        with exchange_of(group, layout="expanded", reduce="per_expert") as exchange:
            received = exchange.dispatch(tokens, ids, weights)
            row_weights = np.full(received.rows.shape[0], 0.25, np.float32)
            output = exchange.combine(received, received.rows, np.zeros((num, H), np.float32), bias=[bias, bias], shared=bias,
                                      topk_weights=weights * 2, row_weights=row_weights, returned_weights=back)
            np.testing.assert_allclose(output, 2 * identity_sum(group.rank) + 3)
            np.testing.assert_array_equal(back, np.where(ids >= 0, 0.25, 0))

    run_local(3, rank)


def test_capacity():
    def rank(group):
        tokens, ids = np.ones((4, H), np.float32), np.zeros((4, 1), np.int32)
        config = ExchangeConfig(num_experts=2, num_topk=1, hidden=H, max_tokens_per_rank=4, layout="batched", capacity=3, **F32)
        with Exchange(group, config, overflow="drop") as exchange:
            received = exchange.dispatch(tokens, ids)
            assert received.num_dropped.numpy()[0] == received.host.num_dropped
            exchange.release(received)
            dropped = received.host.num_dropped
        with Exchange(group, config) as exchange:
            with pytest.raises(switchyard.CapacityExceededError):
                exchange.dispatch(tokens, ids)
        return dropped

    assert sum(run_local(2, rank)) == 5


def test_experts_on_one_rank():
    def rank(group):
        tokens, ids = np.ones((2, H), np.float32), np.array([[group.rank], [2]], np.int32)
        with Exchange(group, num_experts=3, num_topk=1, hidden=H, max_tokens_per_rank=2, experts_per_rank=[0, 3],
                      **F32) as exchange:
            received = exchange.dispatch(tokens, ids)
            counts = received.experts.num_rows.numpy().tolist()
            exchange.release(received)
            return counts

    assert run_local(2, rank) == [[], [1, 1, 2]]


def test_configs():
    config = ExchangeConfig(num_experts=8, num_topk=2, hidden=64, max_tokens_per_rank=4, layout="batched", scheme="fp8_block")
    assert repr(config) == ("ExchangeConfig(num_experts=8, num_topk=2, hidden=64, max_tokens_per_rank=4, layout='batched', "
                            "scheme=QuantScheme('fp8_block'))")
    assert config == config.replace() and config != config.replace(hidden=128)
    config.payload_bytes = [4, 8]
    assert config.payload_bytes == [4, 8] and config.scheme.name == "fp8_block" and config.reduce == "per_rank"
    window, receive = config.memory(2)
    assert window > 0 and receive > 0
    with pytest.raises(switchyard.InvalidArgumentError, match='layout: "flat"'):
        config.layout = "flat"
    with pytest.raises(TypeError, match="hidden: None"):
        config.hidden = None

    def rank(group):
        with Exchange(group, config) as exchange:
            assert exchange.config == config and exchange.device == "cpu" and exchange.heap == "host"
            assert exchange.memory == (window, receive) and exchange.max_buffer_rows > 0 and not exchange.is_shared_gpu
            assert repr(exchange).startswith("Exchange(ExchangeConfig(num_experts=8")
            exchange.check()

    run_local(2, rank)


@pytest.mark.parametrize("call, phrase", [
    (lambda e, t, i: e.dispatch(t, i + 9), r"topk_ids\[0, 0\] is"),
    (lambda e, t, i: e.dispatch(t[:, :4], i), "hidden|\\[T, 32\\]|4"),
    (lambda e, t, i: e.dispatch(t, i.astype(np.float32)), "topk_ids"),
    (lambda e, t, i: e.dispatch(t.tolist(), i), "tokens: a list"),
    (lambda e, t, i: e.combine(3, t), "handle: 3, must be what dispatch"),
    (lambda e, t, i: e.combine(switchyard.Handle, t), "handle: a "),
])
def test_wrong_arguments_change_nothing(call, phrase):
    def rank(group):
        tokens, ids = np.ones((2, H), np.float32), np.zeros((2, K), np.int32) + np.arange(K, dtype=np.int32)
        with exchange_of(group) as exchange:
            with pytest.raises(switchyard.InvalidArgumentError, match=phrase):
                call(exchange, tokens, ids)
            exchange.release(exchange.dispatch(tokens, ids))

    run_local(1, rank)


def test_unknown_keywords():
    def rank(group):
        with pytest.raises(TypeError, match="unexpected keyword argument 'colour'"):
            exchange_of(group, colour=1)
        with exchange_of(group) as exchange:
            for call in (exchange.dispatch, exchange.dispatch_send):
                with pytest.raises(TypeError, match="unexpected keyword argument 'colour'"):
                    call(np.ones((1, H), np.float32), np.zeros((1, K), np.int32), colour=1)

    run_local(1, rank)


def test_ranks_that_disagree():
    def rank(group):
        with pytest.raises(switchyard.InvalidArgumentError, match="hidden"):
            Exchange(group, num_experts=4, num_topk=1, hidden=8 + group.rank, max_tokens_per_rank=1)
        return True

    assert run_local(2, rank) == [True, True]


def test_closed_exchanges_and_used_handles():
    def rank(group):
        tokens, ids = np.ones((1, H), np.float32), np.array([[0, 1, 2]], np.int32)
        exchange = exchange_of(group)
        received = exchange.dispatch(tokens, ids)
        output = exchange.combine(received, received.rows)
        with pytest.raises(switchyard.InvalidArgumentError):
            exchange.combine(received, received.rows)
        rows = received.rows.numpy()
        exchange.close()
        assert exchange.is_closed and repr(exchange) == "Exchange(closed)"
        assert rows.shape[1] == H and rows.sum() >= 0  # its memory is still there
        exchange.close()
        for use in (lambda: exchange.dispatch(tokens, ids), lambda: exchange.combine(received, tokens), exchange.check,
                    lambda: exchange.config, lambda: exchange.release(received)):
            with pytest.raises(switchyard.InvalidArgumentError, match="Exchange: it was closed"):
                use()
        return output.numpy()[0, 0]

    assert run_local(1, rank) == [3.0]


def test_one_thread_at_a_time():
    """A second thread is refused while the first one waits for a rank that is late."""
    refused = []

    def rank(group):
        tokens, ids = np.ones((1, H), np.float32), np.array([[0, 1, 2]], np.int32)
        with exchange_of(group) as exchange:
            first = exchange.dispatch(tokens, ids)
            exchange.combine(first, first.rows)
            if group.rank == 1:
                time.sleep(0.3)
            else:
                def intrude():
                    time.sleep(0.1)
                    for call in (lambda: exchange.dispatch(tokens, ids), lambda: exchange.dispatch_send(tokens, ids),
                                 lambda: exchange.release(first), lambda: exchange.row_origins(first),
                                 lambda: exchange.wire_bytes(first)):
                        try:
                            call()
                        except switchyard.InvalidArgumentError as error:
                            refused.append(str(error))

                threading.Thread(target=intrude).start()
            received = exchange.dispatch(tokens, ids)
            exchange.combine(received, received.rows)
            return received.host.num_rows

    assert sum(run_local(2, rank)) == 6
    assert len(refused) == 5 and all("another thread is in a call" in text for text in refused)

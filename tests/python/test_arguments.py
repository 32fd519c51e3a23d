# SPDX-License-Identifier: Apache-2.0
"""Arguments that no call takes: arrays without memory, and types of another kind. Each is an error that names the argument."""
import ctypes
import gc
import weakref

import ml_dtypes
import numpy as np
import pytest

import switchyard
from switchyard import Exchange, Experts, InvalidArgumentError, QuantConfig, Tensor, make_prepare_finalize, run_local
from switchyard.compat import deep_ep

SIZES = {"num_experts": 4, "num_topk": 2, "hidden": 256, "max_tokens_per_rank": 4}
X = np.ones((4, 256), np.float32)
IDS = np.array([[0, 1]] * 4, np.int32)
WEIGHTS = np.ones((4, 2), np.float32)
MAP = np.array([0, 1, -1, -1], np.int32)
BATCH = np.ones((2, 4, 256), np.float32)
COUNTS = np.array([1, 2], np.int32)
Q, SCALES = switchyard.quantize(X, "fp8_block")
GATE, DOWN = np.ones((2, 8, 256), ml_dtypes.bfloat16), np.ones((2, 256, 8), ml_dtypes.bfloat16)
PERMUTED = switchyard.permute(X, IDS, 2)


def without_memory(array):
    """As torch has where FSDP freed the storage."""
    array = Tensor.wrap(array) if isinstance(array, np.ndarray) else array
    return Tensor.from_pointer(0, array.dtype, list(array.shape))


# Each array argument of each function, once without memory: (function, arguments by name).
CALLS = {
    "quantize": (switchyard.quantize, {"x": X, "scheme": "fp8_token", "static_scale": np.ones((4, 1), np.float32)}),
    "dequantize": (switchyard.dequantize, {"q": Q, "scales": SCALES, "scheme": "fp8_block", "out": X.copy()}),
    "quantize_batched": (switchyard.quantize_batched, {"x": BATCH, "counts": COUNTS, "scheme": "fp8_tensor",
                                                       "static_scale": np.ones(1, np.float32)}),
    "silu_mul_quantize": (switchyard.silu_mul_quantize, {"x": BATCH, "scheme": "fp8_tensor", "counts": COUNTS,
                                                         "tensor_scale": np.ones(1, np.float32)}),
    "relayout_scales": (switchyard.relayout_scales, {"scales": SCALES, "out": np.zeros((4, 2), np.float32)}),
    "permute": (switchyard.permute, {"x": X, "topk_ids": IDS, "num_local_experts": 2, "scales": SCALES, "expert_map": MAP,
                                     "expert_num_tokens": np.array([4, 4], np.int32), "out": np.zeros((256, 256), np.float32)}),
    "unpermute_and_reduce": (switchyard.unpermute_and_reduce, {"expert_output": PERMUTED.x, "permuted": PERMUTED.inv_perm,
                                                               "topk_weights": WEIGHTS, "out": X.copy()}),
    "ep_gather": (switchyard.ep_gather, {"expert_output": PERMUTED.x, "topk_ids": IDS, "topk_weights": WEIGHTS,
                                         "inv_perm": PERMUTED.inv_perm, "expert_map": MAP, "out": X.copy()}),
    "count_expert_num_tokens": (switchyard.count_expert_num_tokens, {"topk_ids": IDS, "num_local_experts": 2, "expert_map": MAP}),
    "apply_expert_map": (switchyard.apply_expert_map, {"topk_ids": IDS, "expert_map": MAP, "out": IDS.copy()}),
    "weight_and_reduce": (switchyard.weight_and_reduce, {"expert_output": np.ones((4, 2, 256), np.float32), "topk_weights": WEIGHTS,
                                                         "topk_ids": IDS, "expert_map": MAP, "out": X.copy(), "skips_padding": True}),
    "router_logits": (switchyard.router_logits, {"hidden": X, "gate": X}),
    "select_experts": (switchyard.select_experts, {"logits": X, "num_topk": 2, "bias": np.zeros(256, np.float32)}),
    "map_logical_to_physical": (lambda topk_ids, out: switchyard.map_logical_to_physical(
        topk_ids, switchyard.compute_logical_maps([0, 1], 2), out), {"topk_ids": IDS, "out": IDS.copy()}),
    "map_expert_ids": (switchyard.map_expert_ids, {"ids": IDS, "table": [1, 0], "out": IDS.copy()}),
    "Experts": (Experts, {"gate": GATE, "up": GATE, "down": DOWN, "gate_bias": np.ones((2, 8), np.float32)}),
    "experts_from_config": (lambda w1, w2, w1_bias: switchyard.experts_from_config(w1, w2, QuantConfig.biased(w1_bias=w1_bias, w2_bias=None)),
                            {"w1": np.ones((2, 16, 256), ml_dtypes.bfloat16), "w2": DOWN, "w1_bias": np.ones((2, 16), np.float32)}),
    "Experts.apply": (lambda rows, num_rows, first_row, out: Experts(GATE, GATE, DOWN).apply(
        switchyard.expert_rows(rows, num_rows, first_row), out),
        {"rows": X.astype(ml_dtypes.bfloat16), "num_rows": COUNTS, "first_row": np.array([0, 2]), "out": X.astype(ml_dtypes.bfloat16)}),
    "Tensor.to": (lambda tensor: tensor.to("cpu"), {"tensor": Tensor.wrap(X)}),
}
ARRAYS = [(name, argument) for name, (_, arguments) in CALLS.items() for argument, value in arguments.items()
          if isinstance(value, (np.ndarray, Tensor))]


@pytest.mark.parametrize("name, argument", ARRAYS)
def test_arrays_without_memory(name, argument):
    function, arguments = CALLS[name]
    function(**arguments)
    with pytest.raises(InvalidArgumentError, match="null"):
        function(**{**arguments, argument: without_memory(arguments[argument])})


def test_results_without_memory():
    q, scales = without_memory(Q), without_memory(SCALES)
    for out in ((q, SCALES), (Q, scales)):
        with pytest.raises(InvalidArgumentError, match="null pointer"):
            switchyard.quantize(X, "fp8_block", out=out)
    with pytest.raises(InvalidArgumentError, match="null pointer"):
        switchyard.quantize_batched(BATCH, COUNTS, "int8_token", out=(Tensor.from_pointer(0, "i8", [2, 4, 256]), Tensor([2, 4, 1])))


class Exporter:
    """An array of DLPack whose fields the caller chooses; `shape` None: NULL."""

    class Managed(ctypes.Structure):
        _fields_ = [("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32), ("ndim", ctypes.c_int32),
                    ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16), ("shape", ctypes.c_void_p),
                    ("strides", ctypes.c_void_p), ("byte_offset", ctypes.c_uint64), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p)]

    def __init__(self, data, shape, ndim=2):
        self.shape = shape and (ctypes.c_int64 * len(shape))(*shape)
        self.managed = self.Managed(data, 1, 0, ndim, 2, 32, 1, shape and ctypes.addressof(self.shape), None, 64, None, None)

    def __dlpack_device__(self):
        return 1, 0

    def __dlpack__(self, **_):
        new = ctypes.pythonapi.PyCapsule_New
        new.restype, new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
        return new(ctypes.addressof(self.managed), b"dltensor", None)


def test_dlpack_without_memory_or_shape():
    with pytest.raises(InvalidArgumentError, match="quantize: x is f32 .* at a null pointer"):
        switchyard.quantize(Exporter(None, [4, 256]), "fp8_block")  # with a byte offset
    with pytest.raises(InvalidArgumentError, match="shape is NULL"):
        switchyard.quantize(Exporter(X.ctypes.data, None), "fp8_block")
    assert switchyard.quantize(Exporter(None, [0, 256]), "fp8_block")[0].shape == (0, 256)

    class NoCapsule(Exporter):
        def __dlpack__(self, **_):
            return 3

    with pytest.raises(InvalidArgumentError, match="__dlpack__ returned: 3"):
        switchyard.quantize(NoCapsule(None, [4, 256]), "fp8_block")


def test_a_tensor_that_was_never_initialized():
    empty = Tensor.__new__(Tensor)
    with pytest.raises(InvalidArgumentError, match="Tensor.wrap: a Tensor whose __init__ did not run"):
        Tensor.wrap(empty)
    with pytest.raises(InvalidArgumentError, match="whose __init__ did not run"):
        switchyard.quantize(empty, "fp8_block")


def test_new_classes_of_arrays_are_given_back():
    classes = []
    for _ in range(300):
        kind = type("Once", (np.ndarray,), {})
        Tensor.wrap(X.view(kind))
        classes.append(weakref.ref(kind))
    del kind
    gc.collect()
    assert sum(reference() is not None for reference in classes) < 100


def one_rank(function):
    return run_local(1, function)[0]


@pytest.mark.parametrize("call, phrase", [
    (lambda: one_rank(lambda g: Exchange(g, 5)), "Exchange: config: 5, must be an ExchangeConfig"),
    (lambda: one_rank(lambda g: make_prepare_finalize("local", g, {})), "config: a dict, must be a PrepareFinalizeConfig"),
    (lambda: make_prepare_finalize("low_latency", "group", **SIZES), "group: 'group', must be a Group"),
    (lambda: one_rank(lambda g: Exchange(g, **{**SIZES, "hidden": "8"})), "hidden: '8', must be int"),
    (lambda: one_rank(lambda g: Exchange(g, **{**SIZES, "num_experts": 8.0})), "num_experts: 8.0, must be int"),
    (lambda: one_rank(lambda g: Exchange(g, **SIZES, timeout_ms=None)), "timeout_ms: None, must be int"),
    (lambda: switchyard.quantize(X, 5), "scheme: 5, must be a QuantScheme or its name"),
    (lambda: switchyard.quantize(X, "fp8_block", out=[Q, SCALES]), "quantize: out: a list, must be a pair"),
    (lambda: switchyard.quantize([[1.0]], "fp8_block"), "quantize: x: a list, must be a switchyard.Tensor"),
    (lambda: Experts(GATE, GATE, DOWN, alpha="x"), "alpha: 'x', must be float"),
    (lambda: Experts(GATE, GATE, DOWN, block=(1, None)), r"block\[1\]: None, must be int"),
    (lambda: Experts(GATE, GATE, DOWN, activation=3), "activation: 3, must be str"),
    (lambda: Experts.from_function(3), "function: 3, must be callable"),
    (lambda: QuantConfig.fp8_w8a8(per_act_token_quant="yes"), "per_act_token_quant: 'yes', must be of the type"),
    (lambda: QuantConfig.make(quant_dtype=3), "quant_dtype: 3, must be of the type"),
    (lambda: QuantConfig.fp8_w8a8(per_act_token_quant="\u00e9\ud800" * 99), r"per_act_token_quant: '\\xe9\\ud800\\xe9.*, must be of the type"),
    (lambda: switchyard.set_log_callback(3), "callback: 3, must be callable"),
    (lambda: switchyard.Group(0, 1, 3), "store: 3, must be an address"),
    (lambda: switchyard.balance_experts("12345678", 16, 4), "logical_load is '12345678', must be a list or an array of numbers"),
    (lambda: switchyard.load_balance({}, [0], 1), "logical_load is {}"),
    (lambda: switchyard.compute_logical_maps([0, "1"], 2), "physical_to_logical is .*, must be a list or an array of numbers"),
])
def test_wrong_types(call, phrase):
    for kind in (TypeError, switchyard.Error, InvalidArgumentError):
        with pytest.raises(kind, match=phrase):
            call()


def test_wrong_types_of_calls():
    def rank(group):
        with Exchange(group, **SIZES, scheme="f32") as exchange:
            with pytest.raises(TypeError, match="host_counts: 'x', must be bool"):
                exchange.dispatch(X, IDS, host_counts="x")
            received = exchange.dispatch(X, IDS)
            for keywords, phrase in (({"rows_are_weighted": "x"}, "rows_are_weighted: 'x', must be bool"), ({"bias": 3}, "iterable")):
                with pytest.raises(TypeError, match=phrase):
                    exchange.combine(received, received.rows, **keywords)
            exchange.release(received)
        with make_prepare_finalize("local", None, **SIZES, scheme="f32") as prepare:
            for keywords in ({"micro_batch": "x"}, {"defer_input_quant": 2.0}):
                with pytest.raises(TypeError, match=next(iter(keywords))):
                    prepare.prepare(X, IDS, WEIGHTS, **keywords)
            prepared = prepare.prepare(X, IDS, WEIGHTS)
            for keywords in ({"num_tokens": "4"}, {"num_tokens": 4, "micro_batch": "x"}, {"num_tokens": 4, "weight_and_reduce": 3}):
                with pytest.raises(TypeError, match=list(keywords)[-1]):
                    prepare.finalize(prepared.experts.rows, **keywords)
            prepare.abandon(0, "not needed")

    run_local(1, rank)


# What no signature takes is an error of ours, too, in each of the package's layers.
@pytest.mark.parametrize("call", [
    lambda: one_rank(lambda g: Exchange(g, **SIZES).dispatch(None, IDS)),
    lambda: switchyard.balance_experts(np.ones(8)),
    lambda: switchyard.permute(X, IDS, "4"),
    lambda: switchyard.Group.from_env(timeout_ms="x"),
    lambda: run_local("2", len),
    lambda: run_local(2, None),
    lambda: one_rank(lambda g: deep_ep.Buffer(g, low_latency_mode=True).low_latency_dispatch(X, IDS, 2**70, 4)),
    lambda: one_rank(lambda g: deep_ep.Buffer(g, low_latency_mode=True).low_latency_dispatch(None, IDS, 4, 4)),
    lambda: one_rank(lambda g: deep_ep.Buffer(g).combine(X, None)),
    lambda: one_rank(lambda g: deep_ep.Buffer(g).dispatch(X, handle=(1, 2))),
    lambda: one_rank(lambda g: deep_ep.ElasticBuffer(g).combine(X, None)),
])
def test_arguments_that_fit_no_signature(call):
    with pytest.raises(switchyard.errors.ArgumentTypeError, match="must be|The following argument types are supported"):
        call()


def test_numbers_out_of_range():
    with pytest.raises(InvalidArgumentError, match="num_experts is 1099511627776, must fit into 32 bits") as caught:
        one_rank(lambda g: Exchange(g, **{**SIZES, "num_experts": 2**40}))
    assert not isinstance(caught.value, TypeError)


# Keywords that no call has, misspelled from those that it has: (call, right name), each called with a wrong one.
def unknown_keywords(group):
    found = {}
    rows = X.astype(ml_dtypes.bfloat16)

    def refuse(call, function, name, right):
        with pytest.raises(switchyard.ArgumentTypeError, match=rf"{function}\(\) got an unexpected keyword argument '{name}'") as error:
            call(**{name: 1})
        found[function, name] = right is None or f'nearest: "{right}"' in str(error.value)

    with Exchange(group, **SIZES) as exchange:
        received = exchange.dispatch(rows, IDS)
        refuse(lambda **word: Exchange(group, **SIZES, **word), "Exchange", "max_in_flights", "max_in_flight")
        refuse(lambda **word: exchange.dispatch(rows, IDS, **word), "dispatch", "max_token", "max_tokens")
        refuse(lambda **word: exchange.combine(received, received.rows, **word), "combine", "row_weight", "row_weights")
    refuse(lambda **word: make_prepare_finalize("local", None, **SIZES, **word), "make_prepare_finalize", "num_micro_batch", "num_micro_batches")
    refuse(lambda **word: Experts(GATE, GATE, DOWN, **word), "Experts", "activations", "activation")
    refuse(QuantConfig.fp8_w8a8, "fp8_w8a8", "block_shapes", "block_shape")
    refuse(switchyard.ExchangeConfig, "ExchangeConfig", "num_expert", "num_experts")
    kernel = switchyard.ModularKernel(make_prepare_finalize("local", None, **SIZES), Experts(*[np.ones((4, *w.shape[1:]), w.dtype) for w in (GATE, GATE, DOWN)]))
    refuse(lambda **word: kernel.apply(rows, IDS, WEIGHTS, **word), "apply", "max_token", "max_tokens")
    refuse(lambda **word: kernel.apply(rows, IDS, WEIGHTS, **word), "apply", "copies_inputs", None)
    refuse(lambda **word: kernel.apply_overlapped(rows, IDS, WEIGHTS, **word), "apply_overlapped", "micro_batch", None)
    return found


def test_unknown_keywords_are_errors_that_name_the_nearest():
    found = run_local(1, unknown_keywords)[0]
    assert all(found.values()), [call for call, ok in found.items() if not ok]


def test_arrays_in_the_place_of_names():
    """torch reads the memory of a tensor for its text, which ends the process where that is freed."""
    torch = pytest.importorskip("torch")
    freed = torch.ones(4, 64)
    freed.untyped_storage().resize_(0)
    for call in (lambda: switchyard.Device(freed), lambda: switchyard.Tensor((4,), freed), lambda: switchyard.Tensor((4,), "f32", freed),
                 lambda: switchyard.Tensor.wrap(X).view(freed), lambda: switchyard.QuantScheme(freed)):
        with pytest.raises(switchyard.ArgumentTypeError):
            call()
    assert switchyard.Device("cpu") != freed

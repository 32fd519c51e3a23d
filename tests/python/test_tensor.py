# SPDX-License-Identifier: Apache-2.0
"""Tensors: in from every kind of array and out again, without a copy."""
import ctypes
import gc
import weakref

import ml_dtypes
import numpy as np
import pytest

import switchyard
from switchyard import Tensor

DTYPES = {"f32": np.float32, "f16": np.float16, "bf16": ml_dtypes.bfloat16, "e4m3": ml_dtypes.float8_e4m3fn,
          "e5m2": ml_dtypes.float8_e5m2, "e8m0": ml_dtypes.float8_e8m0fnu, "i8": np.int8, "u8": np.uint8,
          "u16": np.uint16, "i32": np.int32, "i64": np.int64}


@pytest.mark.parametrize("name", DTYPES)
def test_numpy_shares_memory_in_both_directions(name):
    array = np.arange(6).astype(DTYPES[name]).reshape(2, 3)
    tensor = Tensor.wrap(array)
    assert (tensor.dtype, tensor.shape, tensor.strides, tensor.device) == (name, (2, 3), (3, 1), "cpu")
    assert tensor.data_ptr() == array.ctypes.data
    back = tensor.numpy()
    assert back.dtype == array.dtype and back.ctypes.data == array.ctypes.data
    back[1, 2] = 1
    assert array[1, 2] == 1


@pytest.mark.parametrize("spelling", ["bf16", "bfloat16", ml_dtypes.bfloat16, np.dtype(ml_dtypes.bfloat16)])
def test_dtypes_have_several_spellings(spelling):
    assert Tensor([1], spelling).dtype == "bf16"


def test_strides_are_kept():
    array = np.zeros((4, 6), np.int32)[::2, 1:5]
    tensor = Tensor.wrap(array)
    assert (tensor.shape, tensor.strides, tensor.is_contiguous) == ((2, 4), (12, 1), False)
    tensor.numpy()[1, 0] = 7
    assert array[1, 0] == 7


def test_new_tensors_are_zero_and_aligned():
    tensor = Tensor([3, 5], "f16")
    assert tensor.data_ptr() % 128 == 0 and not tensor.numpy().any() and tensor.nbytes == 30
    assert len(tensor) == 3 and tensor.ndim == 2 and repr(tensor) == "Tensor(f16 [3, 5])"


def test_fp4_is_bytes_elsewhere():
    tensor = Tensor([2, 8], "e2m1")
    assert tensor.numpy().shape == (2, 4) and tensor.numpy().dtype == np.uint8
    array = np.arange(8, dtype=np.uint8).reshape(2, 4)
    assert Tensor.wrap(array).view("e2m1").shape == (2, 8)
    assert Tensor.wrap(array).view("f32").shape == (2, 1)
    with pytest.raises(switchyard.InvalidArgumentError, match="rows of 32 bits"):
        Tensor.wrap(array).view("i64")


@pytest.mark.parametrize("version", [None, (1, 0)])
def test_dlpack_out_and_in(version):
    tensor = Tensor([2, 3], "f32")
    assert tensor.__dlpack_device__() == (1, 0)
    capsule = tensor.__dlpack__(max_version=version)
    assert ("dltensor_versioned" if version else "dltensor") in repr(capsule)

    class Exporter:
        """Has DLPack and nothing else."""

        __dlpack_device__ = tensor.__dlpack_device__

        def __dlpack__(self, **options):
            return tensor.__dlpack__(**options) if version else tensor.__dlpack__(stream=options.get("stream"))

    again = Tensor.wrap(Exporter())
    assert again.data_ptr() == tensor.data_ptr() and again.strides == (3, 1)
    del tensor, Exporter
    again.numpy()[:] = 1


def test_dlpack_of_old_exporters():
    class Exporter:
        """Takes no max_version."""

        def __dlpack_device__(self):
            return (1, 0)

        def __dlpack__(self, stream=None):
            return np.arange(4, dtype=np.int64).__dlpack__(stream=stream)

    assert Tensor.wrap(Exporter()).numpy().tolist() == [0, 1, 2, 3]


def test_dlpack_of_a_newer_major_version_is_refused():
    tensor = Tensor([2], "f32")
    api = ctypes.pythonapi
    api.PyCapsule_GetPointer.restype, api.PyCapsule_GetPointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]

    class Exporter:
        """Of a version that is not there yet."""

        __dlpack_device__ = tensor.__dlpack_device__

        def __dlpack__(self, **_):
            capsule = tensor.__dlpack__(max_version=(1, 0))
            ctypes.c_uint32.from_address(api.PyCapsule_GetPointer(capsule, b"dltensor_versioned")).value = 2
            return capsule

    with pytest.raises(switchyard.InvalidArgumentError, match="DLPack 2.0, must be of version 1"):
        Tensor.wrap(Exporter())


def test_strided_bytes_have_other_names():
    array = np.arange(24, dtype=np.uint8).reshape(4, 6)[::2, 1:5]
    for name in ("e4m3", "e8m0"):
        eight = Tensor.wrap(array).view(name)
        assert (eight.dtype, eight.strides, eight.data_ptr()) == (name, (12, 1), array.ctypes.data)
        assert eight.view("u8").numpy().tolist() == array.tolist()
    with pytest.raises(switchyard.InvalidArgumentError, match="must be contiguous"):
        Tensor.wrap(array).view("u16")


def test_half_a_byte_is_not_shown():
    with pytest.raises(switchyard.NotSupportedError, match="even last dimension"):
        Tensor([2, 3], "e2m1").numpy()


def test_objects_that_change_have_no_hash():
    for config in (switchyard.ExchangeConfig(), switchyard.PrepareFinalizeConfig()):
        with pytest.raises(TypeError, match="unhashable"):
            hash(config)


def test_dlpack_refuses_what_it_cannot_do():
    tensor = Tensor([1], "f32")
    for options in ({"dl_device": (2, 0)}, {"copy": True}):
        with pytest.raises(BufferError):
            tensor.__dlpack__(**options)
    assert tensor.__dlpack__(dl_device=(1, 0), copy=False)
    assert np.from_dlpack(tensor).ctypes.data == tensor.data_ptr()


def test_memory_lives_as_long_as_a_view_of_it():
    class Owned(np.ndarray):
        """Can be referenced weakly."""

    array = np.zeros(4, np.float32).view(Owned)
    alive = weakref.ref(array)
    tensor = Tensor.wrap(array)
    del array
    gc.collect()
    assert alive() is not None
    view = tensor.numpy()
    del tensor
    gc.collect()
    assert alive() is not None and view.sum() == 0
    del view
    gc.collect()
    assert alive() is None


def test_memory_by_pointer():
    array = np.arange(12, dtype=np.float32)
    tensor = Tensor.from_pointer(array.ctypes.data, "f32", [3, 2], [4, 1], owner=array)
    assert tensor.numpy().tolist() == [[0, 1], [4, 5], [8, 9]]
    with pytest.raises(switchyard.InvalidArgumentError, match="2 sizes and 1 strides"):
        Tensor.from_pointer(array.ctypes.data, "f32", [3, 2], [4])


def test_to_copies():
    array = np.arange(3, dtype=np.int64)
    copy = Tensor.wrap(array).to("cpu")
    array[0] = 9
    assert copy.numpy().tolist() == [0, 1, 2]


@pytest.mark.parametrize("value, phrase", [
    ([1.0], "a list, must be a switchyard.Tensor"),
    (np.zeros(2, np.complex64), "Tensor.wrap: dtype: complex64"),
    (np.zeros(2, ">f4"), "Tensor.wrap: dtype: .* foreign byte order"),
    (np.zeros((1,) * 7, np.float32), "Tensor.wrap: 7 dimensions"),
    (np.zeros(4, np.float32)[::-1], "Tensor.wrap: a stride of -4 bytes"),
    (np.ma.masked_array(np.zeros(4, np.float32), mask=[True, False, False, False]), "a MaskedArray, must be a switchyard.Tensor"),
])
def test_what_is_not_a_tensor_here(value, phrase):
    with pytest.raises(switchyard.InvalidArgumentError, match=phrase):
        Tensor.wrap(value)


def test_the_argument_that_is_no_tensor_here_is_named():
    x, ids = np.ones((2, 128), np.float32), np.zeros((2, 1), np.int32)
    for call, argument in ((lambda: switchyard.permute(x, ids.astype(np.int16), 1), "topk_ids: dtype: int16"),
                           (lambda: switchyard.permute(x, ids, 1, expert_map=np.zeros(1, np.uint32)), "expert_map: dtype: uint32"),
                           (lambda: switchyard.permute(x[:, ::-1], ids, 1), "x: a stride of -4 bytes")):
        with pytest.raises(switchyard.InvalidArgumentError, match=f"permute: {argument}"):
            call()


def test_read_only_arrays_are_inputs_only():
    array = np.zeros((1, 4), np.float32)
    array.flags.writeable = False
    q, scales = switchyard.quantize(array, "int8_token")
    assert q.shape == (1, 4) and scales.shape == (1, 1)
    with pytest.raises(switchyard.InvalidArgumentError, match="read-only"):
        switchyard.dequantize(q, scales, "int8_token", out=array)


@pytest.mark.parametrize("name, phrase", [("gpu", "must be \"cpu\""), ("cuda:x", "cuda:0"), ("cuda:99999", "cuda:0")])
def test_devices_by_name(name, phrase):
    assert switchyard.Device("cpu") == switchyard.Device() == "cpu" and hash(switchyard.Device()) == hash(switchyard.Device("cpu"))
    assert str(switchyard.Device("cuda:3")) == "cuda:3" and switchyard.Device("cuda").index == 0
    with pytest.raises(switchyard.InvalidArgumentError, match=phrase):
        switchyard.Device(name)


def test_no_gpu_is_an_error_with_a_reason():
    if switchyard.num_cuda_devices() > 0:
        pytest.skip("this machine has a GPU")
    with pytest.raises(switchyard.NotAvailableError, match="cuda: "):
        Tensor([1], "f32", "cuda:0")


def test_streams_are_for_gpus():
    with pytest.raises(switchyard.InvalidArgumentError, match="stream: the tensors are on cpu"):
        switchyard.quantize(np.zeros((1, 4), np.float32), "int8_token", stream=5)


def test_torch_tensors():
    torch = pytest.importorskip("torch", reason="torch is not installed")
    for dtype in ("float32", "bfloat16", "float8_e4m3fn", "float8_e5m2", "int64", "uint8"):
        tensor = torch.zeros(2, 3, dtype=getattr(torch, dtype))
        wrapped = Tensor.wrap(tensor)
        assert wrapped.data_ptr() == tensor.data_ptr() and wrapped.strides == (3, 1)
        back = wrapped.torch()
        assert back.data_ptr() == tensor.data_ptr() and back.dtype == tensor.dtype
        part = Tensor.wrap(tensor[:, 1:]).torch()
        assert part.data_ptr() == tensor[:, 1:].data_ptr() and part.stride() == (3, 1)


def test_jax_arrays():
    jax = pytest.importorskip("jax", reason="jax is not installed")
    array = jax.numpy.arange(6, dtype=jax.numpy.bfloat16).reshape(2, 3)
    q, scales = switchyard.quantize(array, "fp8_token")
    assert q.shape == (2, 3)
    assert jax.numpy.from_dlpack(scales).shape == (2, 1)

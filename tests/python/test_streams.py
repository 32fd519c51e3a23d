# SPDX-License-Identifier: Apache-2.0
"""What torch's allocator is told of tensors that another stream works with: with a stand-in for torch, so without a GPU."""

STAND_IN = """
    import sys
    import types

    CURRENT = 5


    class Stream:
        def __init__(self, number, device=0):
            self.number = number


    class Tensor:
        dtype, shape, is_cuda = "float32", (2, 3), True

        def __init__(self):
            self.recorded = []

        def data_ptr(self):
            return 4096

        def stride(self):
            return 3, 1

        def is_neg(self):
            return False

        def get_device(self):
            return 0

        def record_stream(self, stream):
            self.recorded.append(stream.number)


    Tensor.__module__ = "torch"
    torch, cuda, inner = (types.ModuleType(name) for name in ("torch", "torch.cuda", "torch._C"))
    torch.cuda, torch._C = cuda, inner
    cuda.ExternalStream, cuda.default_stream = Stream, lambda index: Stream(0)
    inner._cuda_getCurrentRawStream = lambda index: CURRENT
    sys.modules.update({"torch": torch, "torch.cuda": cuda, "torch._C": inner})
    import switchyard


    def quantize(tensor, stream):  # there is no GPU, but the arguments have been looked at
        try:
            switchyard.quantize(tensor, "int8_token", out=(tensor, tensor), stream=stream)
        except switchyard.Error:
            pass

"""


def check(run_program, program):
    code, _, errors = run_program(STAND_IN + program)
    assert code == 0, errors


def test_streams_other_than_the_current_one_are_recorded(run_program):
    check(run_program, """
    for stream, recorded in ((None, []), (CURRENT, []), (7, [7]), (0, [0]), (1, [0])):  # 0 and 1: the legacy default stream
        tensor = Tensor()
        switchyard.Tensor.wrap(tensor, stream)
        assert tensor.recorded == recorded, (stream, tensor.recorded)
    """)


def test_tensors_over_memory_of_torch_pass_it_on(run_program):
    check(run_program, """
    tensor = Tensor()
    wrapped = switchyard.Tensor.wrap(tensor)
    assert wrapped.stream == CURRENT and tensor.recorded == [] and wrapped._torch_memory() is tensor
    for view in (wrapped, wrapped.view("i32"), wrapped.view("u8")):
        quantize(view, 9)
    assert set(tensor.recorded) == {9}
    tensor.recorded.clear()
    quantize(wrapped, None)
    assert tensor.recorded == []
    """)


def test_memory_of_one_stream_is_recorded_where_a_call_works_in_another(run_program):
    check(run_program, """
    first, second = Tensor(), Tensor()
    x, q = switchyard.Tensor.wrap(first, 9), switchyard.Tensor.wrap(second, 7)
    first.recorded.clear()
    second.recorded.clear()
    try:
        switchyard.quantize(x, "int8_token", out=(q, q))  # in the stream that fills x
    except switchyard.Error:
        pass
    assert first.recorded == [] and set(second.recorded) == {9}
    """)


def test_an_error_of_torch_does_not_end_the_call(run_program):
    check(run_program, """
    class Refusing(Tensor):
        def record_stream(self, stream):
            raise RuntimeError("no")


    messages = []
    sys.unraisablehook = messages.append
    assert switchyard.Tensor.wrap(Refusing(), 7).stream == 7
    assert len(messages) == 1 and str(messages[0].exc_value) == "no"
    """)

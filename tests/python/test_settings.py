# SPDX-License-Identifier: Apache-2.0
"""Settings and messages."""
import socket
import threading
import time

import pytest

import switchyard


def test_settings_say_where_their_value_comes_from(run_program):
    settings = switchyard.settings()
    timeout = settings["SWITCHYARD_TIMEOUT_MS"]
    assert timeout.name == "SWITCHYARD_TIMEOUT_MS" and timeout.default == "30000" and "milliseconds" in timeout.help
    assert len(settings) >= 10 and all(one.origin in ("default", "environment", "program") for one in settings.values())
    source = """
        import os
        os.environ["SWITCHYARD_TIMEOUT_MS"] = "777"
        import switchyard
        before = switchyard.settings()["SWITCHYARD_TIMEOUT_MS"]
        switchyard.set_setting("SWITCHYARD_TIMEOUT_MS", "888")
        after = switchyard.settings()["SWITCHYARD_TIMEOUT_MS"]
        print(before.value, before.origin, after)
        switchyard.set_setting("SWITCHYARD_TIMEOUT_MS", "soon")
        try:
            switchyard.Group(0, 1, "/tmp/unused")
        except switchyard.InvalidArgumentError as error:
            print("soon" in str(error))
    """
    code, out, error = run_program(source)
    assert code == 0, error
    assert out.splitlines() == ["777 environment Setting(SWITCHYARD_TIMEOUT_MS='888', origin='program')", "True"]
    with pytest.raises(switchyard.InvalidArgumentError, match='there is no setting "TIMEOUT"'):
        switchyard.set_setting("TIMEOUT", "1")


def test_texts_that_are_not_utf_8(run_program):
    source = r"""
        import os
        os.environb[b"SWITCHYARD_MPI_MODULE"] = b"/absent/\xff.so"
        import switchyard
        setting = switchyard.settings()["SWITCHYARD_MPI_MODULE"]
        print(setting.value, setting)
        for call in (lambda: switchyard.Group(0, 1, "/tmp/unused", engine="mpi"), lambda: switchyard.Device("\udcff"),
                     lambda: switchyard.Tensor((1,), "\udcff")):
            try:
                call()
            except switchyard.Error as error:
                print(type(error).__name__, "xff" in str(error) or "udcff" in str(error))

        def rank(group):
            if group.rank == 0:
                raise LookupError("\udcff")
            group.barrier()

        try:
            switchyard.run_local(2, rank, timeout_ms=20000)
        except LookupError:
            print("raised")
    """
    code, out, error = run_program(source)
    assert code == 0 and not error, error
    assert out.splitlines() == [r"/absent/\xff.so Setting(SWITCHYARD_MPI_MODULE='/absent/\xff.so', origin='environment')",
                                "NotAvailableError True", "InvalidArgumentError True", "InvalidArgumentError True", "raised"]


def messages_of(run):
    """What the library logs meanwhile, at level debug."""
    seen = []
    switchyard.set_log_callback(lambda *message: seen.append((*message, threading.get_ident())))
    switchyard.set_log_level("debug")
    try:
        run()
    finally:
        switchyard.set_log_level("warn")
        switchyard.set_log_callback(None)
    return seen


def refuse_a_stranger():
    """A group whose store is asked by somebody without its secret: a warning."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]

    def join(rank):
        with switchyard.Group(rank, 2, f"127.0.0.1:{port}", secret="known", timeout_ms=20000) as group:
            group.barrier()

    first = threading.Thread(target=join, args=(0,))
    first.start()
    for _ in range(1000):
        try:
            with socket.create_connection(("127.0.0.1", port)) as stranger:
                stranger.sendall(b"GET / HTTP/1.1\r\n" * 20)
                stranger.recv(1)  # the end
            break
        except ConnectionRefusedError:
            time.sleep(0.01)  # the store has not started
        except ConnectionResetError:
            break
    join(1)
    first.join()


def test_messages_go_to_a_callback(capfd):
    seen = messages_of(refuse_a_stranger)
    assert seen and capfd.readouterr().err == ""
    for level, rank, subsystem, text, _ in seen:
        assert level in ("error", "warn", "info", "debug") and -1 <= rank < 2 and subsystem and text
    assert any((level, subsystem) == ("warn", "store") and "refuses" in text for level, _, subsystem, text, _ in seen)
    assert threading.get_ident() not in [thread for *_, thread in seen]
    assert not messages_of(lambda: switchyard.set_log_level("off") or refuse_a_stranger())


def test_a_callback_that_raises_harms_nobody(monkeypatch):
    raised = []
    monkeypatch.setattr("sys.unraisablehook", lambda unraisable: raised.append(unraisable.exc_value))

    def callback(*_):
        raise KeyError("log")

    switchyard.set_log_callback(callback)
    switchyard.set_log_level("debug")
    try:
        refuse_a_stranger()
    finally:
        switchyard.set_log_level("warn")
        switchyard.set_log_callback(None)
    assert raised and all(isinstance(one, KeyError) for one in raised)


def test_refusals():
    with pytest.raises(switchyard.InvalidArgumentError, match="must be callable"):
        switchyard.set_log_callback(3)
    with pytest.raises(switchyard.InvalidArgumentError, match='"loud", must be error'):
        switchyard.set_log_level("loud")


def test_an_interpreter_ends_with_a_callback(run_program):
    source = """
        import switchyard
        switchyard.set_log_level("trace")
        switchyard.set_log_callback(print)
        switchyard.run_local(2, lambda group: group.barrier())
    """
    code, _, error = run_program(source)
    assert code == 0, error


def test_the_secret_is_not_shown(monkeypatch):
    assert switchyard.settings()["SWITCHYARD_SECRET"].value == ""
    monkeypatch.setenv("SWITCHYARD_SECRET", "hush")
    shown = switchyard.settings()["SWITCHYARD_SECRET"]
    assert (shown.value, shown.origin) == ("(set)", "environment") and "hush" not in repr(shown)

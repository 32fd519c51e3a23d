# SPDX-License-Identifier: Apache-2.0
"""Parts of a layer: who owns them and their memory, and one thread at a time."""
import gc
import threading
import time
import weakref

import ml_dtypes
import numpy as np
import pytest

import switchyard
from switchyard import Experts, ModularKernel, make_prepare_finalize, run_local
from test_layer import DOWN, E, GATE, H, P, SIZES, T, UP, batch, exact_experts


def test_tensors_of_a_part_outlive_its_kernel():
    prepare = make_prepare_finalize("local", None, **SIZES)
    shown = prepare.expert_map.numpy()
    kernel = ModularKernel(prepare, Experts(GATE, UP, DOWN))
    kernel.close()
    del kernel, prepare
    others = [make_prepare_finalize("local", None, **{**SIZES, "num_experts": num}) for num in range(E, 3 * E)]
    assert shown.tolist() == list(range(E)) + [-1] and len(others) == 2 * E


class Watched(np.ndarray):
    """Can be referenced weakly."""


def watched(array):
    array = np.array(array).view(Watched)
    return array, weakref.ref(array)


def test_what_functions_keep_is_alive_without_a_kernel():
    kept = []
    experts = Experts.from_function(lambda rows, output: kept.append((rows.rows.numpy(), output.numpy())))
    values, values_alive = watched(np.full((2, 3, H), 3, ml_dtypes.bfloat16))
    out, out_alive = watched(np.full((2, 3, H), 4, ml_dtypes.bfloat16))
    experts.apply(switchyard.expert_rows(values, np.array([3, 1], np.int32), np.array([0, 3], np.int64)), out)
    del values, out
    gc.collect()
    assert values_alive() is not None and out_alive() is not None
    assert (kept[0][0] == 3).all() and (kept[0][1] == 4).all()
    kept.clear()
    gc.collect()
    assert values_alive() is None and out_alive() is None


def test_what_functions_keep_of_a_shared_expert_is_alive():
    kept = []
    shared = Experts.from_function(lambda rows, output: kept.append((rows.rows.numpy(), output)))
    kernel = ModularKernel(make_prepare_finalize("local", None, **SIZES), Experts(GATE, UP, DOWN), shared)
    hidden, ids, weights = batch(0)
    tokens, alive = watched(hidden)
    kernel.apply(tokens, ids, weights)
    del tokens, kernel, shared
    gc.collect()
    assert alive() is not None and kept[0][0].reshape(-1, H)[:T].tolist() == hidden.tolist()
    kept[0][1].numpy()[:] = 0  # scratch of the kernel
    kept.clear()
    gc.collect()
    assert alive() is None


def test_a_kernel_that_cannot_be_made_leaves_its_parts():
    prepare = make_prepare_finalize("local", None, **SIZES)
    experts, shared = Experts(GATE, UP, DOWN), Experts(GATE[:1], UP[:1], DOWN[:1])
    closed = Experts(GATE[:1], UP[:1], DOWN[:1])
    closed.close()
    for arguments, phrase in [((prepare, experts, experts), "shared_experts are the experts"),
                              ((prepare, experts, shared, None, "later"), "shared_order"),
                              ((prepare, experts, shared, np.zeros(H + 1, np.float32)), "gate"),
                              ((prepare, experts, closed), "it was closed")]:
        with pytest.raises(switchyard.InvalidArgumentError, match=phrase):
            ModularKernel(*arguments)
    kernel = ModularKernel(prepare, experts, shared)
    kernel.apply(*batch(0))
    for part in (experts, shared):
        with pytest.raises(switchyard.InvalidArgumentError, match="part of a ModularKernel"):
            ModularKernel(make_prepare_finalize("local", None, **SIZES), part)


def test_one_thread_at_a_time():
    """A second thread is refused while the first one waits for a rank that is late."""
    refused = []

    def rank(group):
        prepare, experts = make_prepare_finalize("low_latency", group, **SIZES), exact_experts(group.rank)

        def intrude(calls):
            time.sleep(0.1)
            for call in calls:
                with pytest.raises(switchyard.InvalidArgumentError) as raised:
                    call()
                refused.append(str(raised.value))

        of_prepare = (lambda: prepare.abandon(0, "no reason"), lambda: prepare.post_init_setup(experts),
                      lambda: ModularKernel(prepare, experts))
        of_group = (lambda: make_prepare_finalize("low_latency", group, **SIZES),)
        for wait, calls in ((group.barrier, of_group), (lambda: prepare.prepare(*batch(group.rank)), of_prepare)):
            intruder = threading.Thread(target=intrude, args=(calls,))
            if group.rank == 1:
                time.sleep(0.4)
            else:
                intruder.start()
            wait()
            if group.rank == 0:
                intruder.join()
        prepare.finalize(np.zeros((E // P, P * T, H), ml_dtypes.bfloat16), num_tokens=T - group.rank)
        return ModularKernel(prepare, experts).apply(*batch(group.rank)).shape

    assert run_local(P, rank) == [(T, H), (T - 1, H)]
    assert len(refused) == 4 and all("another thread is in a call" in text for text in refused)


def test_experts_of_another_layer_are_refused():
    prepare = make_prepare_finalize("local", None, **SIZES)
    with pytest.raises(switchyard.InvalidArgumentError, match=f"experts have the weights of 2 experts, must have those of {E}"):
        ModularKernel(prepare, Experts(GATE[:2], UP[:2], DOWN[:2]))
    with pytest.raises(switchyard.InvalidArgumentError, match="shared experts have the weights of 2 experts, must have those of 1"):
        ModularKernel(prepare, Experts(GATE, UP, DOWN), Experts(GATE[:2], UP[:2], DOWN[:2]))
    assert ModularKernel(prepare, Experts(GATE, UP, DOWN)).apply(*batch(0)).shape == (T, H)


@pytest.mark.parametrize("num_micro_batches", [0, 1, 2])
def test_micro_batches_give_the_bits_of_apply(num_micro_batches):
    def rank(group):
        hidden, ids, weights = batch(group.rank)
        with ModularKernel(make_prepare_finalize("low_latency", group, **SIZES), exact_experts(group.rank)) as kernel:
            plain = kernel.apply(hidden, ids, weights).numpy()
            split = kernel.apply_overlapped(hidden, ids, weights, num_micro_batches=num_micro_batches)
            out = np.zeros_like(plain)
            assert kernel.apply_overlapped(hidden, ids, weights, out, num_micro_batches) is out
            with pytest.raises(switchyard.InvalidArgumentError, match="num_micro_batches is 3, must be from 1 to 2"):
                kernel.apply_overlapped(hidden, ids, weights, num_micro_batches=3)
            return plain.tobytes() == split.numpy().tobytes() == out.tobytes()

    assert all(run_local(P, rank))


def test_functions_on_threads_of_the_library():
    """What a function keeps is alive, and what it raises is raised from the call, whichever thread ran it."""
    kept, threads = [], set()

    def experts(rows, output):
        kept.append(rows.rows.numpy())
        threads.add(threading.get_ident())
        output.numpy()[:] = rows.rows.numpy().astype(np.float32)
        if len(kept) == 4:
            raise LookupError("the fourth")

    kernel = ModularKernel(make_prepare_finalize("local", None, num_micro_batches=2, **SIZES), Experts.from_function(experts))
    hidden, ids, weights = batch(0)
    kernel.apply_overlapped(hidden, ids, weights)
    assert len(kept) == 2 and len(threads) == 2
    with pytest.raises(LookupError, match="the fourth"):
        kernel.apply_overlapped(hidden, ids, weights)
    del kernel
    gc.collect()
    assert all(np.isfinite(rows.astype(np.float32)).all() for rows in kept)

# SPDX-License-Identifier: Apache-2.0
"""Load balancing: maps of logical and physical experts, and loads."""
import numpy as np
import pytest

import switchyard


def test_maps():
    physical = switchyard.initial_physical_to_logical(4, 2)
    assert physical == [0, 1, 2, 3, 0, 1]
    for given in (physical, np.array(physical), np.array(physical, np.int32)):
        maps = switchyard.compute_logical_maps(given, 4)
        assert maps.replica_counts.numpy().tolist() == [2, 2, 1, 1]
        assert maps.logical_to_physical.numpy().tolist() == [[0, 4], [1, 5], [2, -1], [3, -1]]
    assert repr(maps) == "LogicalMaps(num_logical=4, max_replicas=2)" and (maps.num_logical, maps.max_replicas) == (4, 2)


def test_balance():
    load = [90, 132, 40, 61, 104, 165, 39, 4, 73, 56, 183, 86]
    want = [5, 6, 5, 7, 8, 4, 3, 4, 10, 9, 10, 2, 0, 1, 11, 1]  # DeepSeek's example
    for given in (load, np.array(load)):
        assert switchyard.balance_experts(given, 16, 8, num_hosts=2, num_groups=4) == want
    initial = switchyard.initial_physical_to_logical(12, 4)
    assert switchyard.load_balance(load, initial, 8) < switchyard.load_balance(load, want, 8) < 1
    with pytest.raises(switchyard.InvalidArgumentError, match="num_physical is 15, want a multiple of num_ranks"):
        switchyard.balance_experts(load, 15, 8)


def test_memory_over_hosts():
    config = switchyard.ExchangeConfig(num_experts=8, num_topk=2, hidden=64, max_tokens_per_rank=4)
    assert config.memory([3, 3]) == config.memory(2) == config.memory(hosts=[0, 0], rank=1)
    window, receive = config.memory([0, 1])  # messages alone
    assert window == 0 and receive > config.memory(2)[1]
    windows = [config.memory(hosts)[0] for hosts in ([0, 0, 0, 0], [0, 0, 1, 1])]
    assert windows[0] < windows[1]  # with the rows that are passed on
    with pytest.raises(switchyard.InvalidArgumentError, match="rank 2 of 2"):
        config.memory([0, 1], 2)


def test_ids():
    maps = switchyard.compute_logical_maps([0, 1, 0, 0], 2)
    ids = np.zeros((50, 1), np.int32)
    got = switchyard.map_logical_to_physical(ids, maps).numpy()
    copies = [0, 2, 3]
    assert got[:, 0].tolist() == [copies[switchyard.choose_replica(token, 3)] for token in range(50)]
    assert switchyard.choose_replica(7, 3) == (7 * 2654435769 % 2**32) % 3
    out = np.full((50, 1), -1, np.int64)
    assert switchyard.map_logical_to_physical(out, maps, out) is out and (out == -1).all()


@pytest.mark.parametrize("num_replicas", [0, -1])
def test_an_expert_has_a_copy(num_replicas):
    with pytest.raises(switchyard.InvalidArgumentError, match=f"num_replicas is {num_replicas}"):
        switchyard.choose_replica(5, num_replicas)


def test_loads():
    load = switchyard.ExpertLoad(4, window=2)
    load.add_counts([1, 0, 0, 5])
    load.add_ids(np.array([[0, 3], [1, -1], [2, 2]], np.int64), num_tokens=2)
    assert (load.num_steps, load.physical_load) == (2, [2, 1, 0, 6])
    assert load.logical_load([0, 1, 0, -1], 2) == [2, 1] and repr(load) == "ExpertLoad(num_physical=4, num_steps=2)"
    load.add_counts(np.array([7, 7, 7, 7]))
    assert load.physical_load == [8, 8, 7, 8]
    load.reset()
    assert load.num_steps == 0


@pytest.mark.parametrize("call, phrase", [
    (lambda: switchyard.compute_logical_maps([0, 7], 2), "7"),
    (lambda: switchyard.initial_physical_to_logical(0, 1), "num_logical"),
    (lambda: switchyard.ExpertLoad(2).add_counts([1]), "1"),
    (lambda: switchyard.ExpertLoad(0), "num_physical"),
    (lambda: switchyard.ExpertLoad(2).add_ids(np.array([[9]], np.int32)), "9"),
])
def test_errors(call, phrase):
    with pytest.raises(switchyard.InvalidArgumentError, match=phrase):
        call()

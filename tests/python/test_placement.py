# SPDX-License-Identifier: Apache-2.0
"""Load balancing: maps of logical and physical experts, and loads."""
import ml_dtypes
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
    with pytest.raises(switchyard.InvalidArgumentError, match="num_physical is 15, must be a multiple of num_ranks"):
        switchyard.balance_experts(load, 15, 8)


LOAD = [10, 20, 30, 40, 50, 60, 70, 80]


@pytest.mark.parametrize("given", [
    np.array(LOAD, np.float32), np.array(LOAD, np.uint64), [float(load) for load in LOAD], tuple(LOAD), range(10, 90, 10), list(np.array(LOAD)),
    [load * 2**60 for load in LOAD], [load * 2**70 for load in LOAD], [np.float32(load) / 1024 for load in LOAD], np.array(LOAD) * 2.0**90, np.array(LOAD, np.float64) * 1e-300 * 2, switchyard.Tensor.wrap(np.array(LOAD)),
    switchyard.Tensor.wrap(np.array(LOAD, ml_dtypes.bfloat16)),
], ids=lambda given: f"{type(given).__name__} {getattr(given, 'dtype', '')}")
def test_loads_of_any_type(given):
    """EPLB and vLLM pass floats; only ratios count."""
    want = switchyard.balance_experts(LOAD, 16, 4)
    assert switchyard.balance_experts(given, 16, 4) == want
    assert switchyard.load_balance(given, want, 4) == pytest.approx(switchyard.load_balance(LOAD, want, 4))


def test_loads_by_layer():
    layers = np.array([LOAD, LOAD[::-1]], np.float32)
    assert switchyard.balance_experts(layers, 16, 4) == [switchyard.balance_experts(layer, 16, 4) for layer in (LOAD, LOAD[::-1])]
    assert switchyard.balance_experts(layers.astype(int).tolist(), 16, 4) == switchyard.balance_experts(layers, 16, 4)


def test_loads_of_torch():
    torch = pytest.importorskip("torch")
    want = switchyard.balance_experts(LOAD, 16, 4)
    for dtype in (torch.float32, torch.bfloat16, torch.int32):
        assert switchyard.balance_experts(torch.tensor(LOAD, dtype=dtype), 16, 4) == want
    assert switchyard.balance_experts(list(torch.tensor(LOAD)), 16, 4) == want
    assert switchyard.balance_experts(torch.tensor([LOAD, LOAD]).float(), 16, 4) == [want, want]
    assert switchyard.compute_logical_maps(torch.arange(8), 8).replica_counts.numpy().tolist() == [1] * 8
    freed = torch.ones(8)
    freed.untyped_storage().resize_(0)
    for load in (freed, torch.ones(8).to_sparse(), torch.ones(8, device="meta")):
        for call in (lambda: switchyard.balance_experts(load, 8, 1), lambda: switchyard.ExpertLoad(8).add_counts(load)):
            with pytest.raises(switchyard.InvalidArgumentError, match="load shows no values .*, must be an array with memory"):
                call()


def test_loads_in_lists_of_arrays():
    torch = pytest.importorskip("torch")
    want = switchyard.balance_experts(LOAD, 16, 4)
    for rows in (torch.tensor([LOAD, LOAD]), np.array([LOAD, LOAD]), [switchyard.Tensor.wrap(np.array(LOAD))] * 2):
        assert switchyard.balance_experts(list(rows), 16, 4) == [want, want]
    freed = [torch.ones(()), torch.ones(1), torch.ones(8)]
    for tensor in freed:
        tensor.untyped_storage().resize_(0)
    with torch._subclasses.FakeTensorMode():  # pylint: disable=protected-access
        fake = torch.ones(8)
    without = [*freed, torch.ones(8).to_sparse(), torch.ones(8, device="meta"), fake]
    calls = (lambda values: switchyard.balance_experts(values, 8, 1), lambda values: switchyard.load_balance(values, range(8), 1),
             lambda values: switchyard.compute_logical_maps(values, 8), switchyard.ExpertLoad(8).add_counts,
             lambda values: switchyard.compute_sp_num_tokens(values, 2))
    for values in [[tensor] for tensor in without] + [([1.0, freed[0]],)]:
        for call in calls:
            with pytest.raises(switchyard.InvalidArgumentError, match="shows no values .*, must be an array with memory, or a list of them"):
                call(values)
    hidden = [np.ma.array(1.0, mask=True)] * 8
    for call in calls:
        with pytest.raises(switchyard.ArgumentTypeError, match="must be a list or an array of numbers"):
            call(hidden)


@pytest.mark.parametrize("call, phrase", [
    (lambda: switchyard.balance_experts(np.array(LOAD) * np.nan, 16, 4), r"balance_experts: logical_load\[0\] is nan"),
    (lambda: switchyard.balance_experts([1.0, np.inf], 16, 4), r"logical_load\[1\] is inf"),
    (lambda: switchyard.balance_experts([-1.5, 1.5], 16, 4), "load of logical expert 0 is -"),
    (lambda: switchyard.balance_experts(np.ones((1, 2, 2)), 16, 4), r"logical_load has the shape \(1, 2, 2\)"),
    (lambda: switchyard.balance_experts(np.ones((0, 4)), 16, 4), r"logical_load has the shape \(0"),
    (lambda: switchyard.load_balance(np.ones((2, 4)), range(4), 2), "logical_load has two dimensions"),
    (lambda: switchyard.load_balance(LOAD, np.arange(8) / 2, 2), r"physical_to_logical\[1\] is 0.5, must be a whole number"),
    (lambda: switchyard.compute_logical_maps(np.arange(8).reshape(2, 4), 8), r"physical_to_logical has the shape \(2, 4\)"),
    (lambda: switchyard.ExpertLoad(2).add_counts([2**63, 1]), r"expert_load\[0\] is 9223372036854775808|expert_load\[0\] is 9.22"),
    (lambda: switchyard.ExpertLoad(2).add_counts([2**70, 1]), r"expert_load\[0\] is 1.18"),
    (lambda: switchyard.compute_logical_maps([0, 2**40], 8), r"physical_to_logical\[1\] is 1099511627776"),
    (lambda: switchyard.ExpertLoad(2).add_counts([1.5, 1]), r"expert_load\[0\] is 1.5"),
    (lambda: switchyard.ExpertLoad(2).add_counts([[1], [1, 2]]), "expert_load is"),
])
def test_numbers_that_are_none(call, phrase):
    with pytest.raises(switchyard.InvalidArgumentError, match=phrase):
        call()


def test_whole_floats_are_ids_and_counts():
    assert switchyard.compute_logical_maps(np.arange(8.0), 8).num_logical == 8
    load = switchyard.ExpertLoad(8)
    load.add_counts(np.array(LOAD, np.float32))
    assert load.physical_load == LOAD and load.logical_load(np.arange(8.0), 8) == LOAD


def test_expert_maps():
    maps = [switchyard.determine_expert_map(4, rank, 9, "round_robin") for rank in range(4)]
    assert [m.global_ids for m in maps] == [[0, 4, 8], [1, 5], [2, 6], [3, 7]]
    assert maps[1].num_local_experts == 2 and maps[1].expert_map == [-1, 0, -1, -1, -1, 1, -1, -1, -1]
    ids = np.array([[1, 5], [2, -1]])
    local = switchyard.global_to_local_ids(ids, maps[1])
    assert local.dtype == "i64" and local.numpy().tolist() == [[0, 1], [-1, -1]]
    back = np.zeros((2, 2), np.int32)
    assert switchyard.local_to_global_ids(local, maps[1], back) is back and back.tolist() == [[1, 5], [-1, -1]]
    assert switchyard.determine_expert_map(2, 1, 5).global_ids == [3, 4]
    with pytest.raises(switchyard.InvalidArgumentError, match='strategy: "spiral"'):
        switchyard.determine_expert_map(2, 1, 5, "spiral")


def test_routing_tables():
    tables = switchyard.round_robin_routing_tables(2, 1, 8)
    assert tables.global_to_physical == [0, 4, 1, 5, 2, 6, 3, 7] and tables.physical_to_global == [0, 2, 4, 6, 1, 3, 5, 7]
    assert tables.local_expert_global_ids == [1, 3, 5, 7]
    ids = np.array([[7, 0], [-1, 2]], np.int32)
    physical = switchyard.map_expert_ids(ids, tables.global_to_physical)
    assert physical.numpy().tolist() == [[7, 0], [-1, 1]]
    assert switchyard.map_expert_ids(physical, np.array(tables.physical_to_global)).numpy().tolist() == ids.tolist()
    with pytest.raises(switchyard.InvalidArgumentError, match="ids is 9"):
        switchyard.map_expert_ids(np.array([9]), tables.global_to_physical)


def test_choice_of_a_placement():
    parallel = switchyard.ParallelConfig.make(dp_size=2, enable_expert_parallel=True, all2all_backend="deepep_low_latency")
    facts = {"use_all2all_kernels": parallel.use_all2all_kernels,
             "needs_round_robin_routing_tables": parallel.needs_round_robin_routing_tables}
    assert parallel.needs_round_robin_routing_tables
    assert switchyard.choose_placement("round_robin", num_expert_groups=4, **facts) == ("round_robin", "")
    strategy, reason = switchyard.choose_placement("round_robin", num_expert_groups=4, enable_eplb=True)
    assert strategy == "linear" and reason


def test_token_counts():
    assert switchyard.compute_sp_num_tokens([5, 0], 2) == [3, 3, 0, 0]
    assert switchyard.cu_tokens_across_sp(np.array([5, 0]), 2) == [3, 6, 6, 6]
    assert switchyard.compute_chunked_local_num_tokens((5, 0), 2, 2, 1) == [1, 1, 1, 1]
    with pytest.raises(switchyard.InvalidArgumentError, match="sp_size"):
        switchyard.compute_sp_num_tokens([5], 0)


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

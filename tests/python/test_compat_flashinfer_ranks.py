# SPDX-License-Identifier: Apache-2.0
"""switchyard.compat.flashinfer: where the ranks of a mapping come from, and the names that engines import."""
import sys
import threading
import types

import numpy as np
import pytest

from switchyard import InvalidArgumentError, run_local
from switchyard.compat import flashinfer
from switchyard.compat.flashinfer.mnnvl import CommBackend, MnnvlConfig, TorchDistBackend


class OneRank:
    """As a communicator of mpi4py with one rank."""

    def Get_rank(self):  # pylint: disable=invalid-name
        return 0

    def Get_size(self):  # pylint: disable=invalid-name
        return 1

    def bcast(self, value, root):
        return value if root == 0 else None

    def allgather(self, value):
        return [value]

    def Barrier(self):  # pylint: disable=invalid-name
        pass


@pytest.fixture(autouse=True)
def nothing_else(monkeypatch):
    """Neither use_group() nor torch nor mpi4py names ranks."""
    flashinfer.use_group(None)
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.delitem(sys.modules, "mpi4py.MPI", raising=False)


def test_one_rank_needs_no_group():
    moe = flashinfer.MoeAlltoAll(flashinfer.Mapping(), 4, 1, 2, hidden_size=8)
    x, ids = np.arange(32, dtype=np.float32).reshape(4, 8), np.zeros((4, 1), np.int32)
    rows, = moe.dispatch(ids, [x], 4)
    np.testing.assert_array_equal(rows[0], x)
    np.testing.assert_array_equal(moe.combine(rows, 4), x)
    assert moe.workspace_size_per_rank == flashinfer.MoeAlltoAll.get_moe_workspace_size_per_rank(1, 1, 4, 8) > 0
    assert flashinfer.MoeAlltoAll(flashinfer.Mapping(), 4, 1, 2, 77).workspace_size_per_rank == 77


def test_ranks_of_mpi(monkeypatch):
    mapping = flashinfer.Mapping(2, 0, moe_ep_size=2, tp_size=2, pp_size=1, cp_size=1)
    with pytest.raises(InvalidArgumentError, match="2 ranks, but there is no process group of torch and no mpi4py"):
        flashinfer.MoeAlltoAll(mapping, 4, 1, 2)
    monkeypatch.setitem(sys.modules, "mpi4py.MPI", types.SimpleNamespace(COMM_WORLD=OneRank()))
    with pytest.raises(InvalidArgumentError, match="rank 0 of 2, but the group has rank 0 of 1"):
        flashinfer.MoeAlltoAll(mapping, 4, 1, 2)


def test_ranks_of_a_configuration():
    def rank(group):
        mapping = flashinfer.Mapping(group.size, group.rank)
        config = MnnvlConfig(TorchDistBackend(group), fabric_page_size=1 << 29)
        assert flashinfer.MoeAlltoAll(mapping, 4, 1, 2, mnnvl_config=config).ep_rank == group.rank
        assert flashinfer.MnnvlMoe.get_moe_workspaces(mapping, config).group is group
        flashinfer.MnnvlMemory.set_comm_from_config(mapping, MnnvlConfig(CommBackend()))  # without effect
        flashinfer.MnnvlMemory.set_comm_from_config(mapping, config)
        assert flashinfer.MnnvlMemory.supports_mnnvl()
        assert flashinfer.MnnvlMemory(mapping, 1 << 20).as_torch_strided_tensor(None).group is group

    run_local(2, rank)


def test_ranks_of_a_communicator():
    """As vLLM's: its bcast is wrong in a group that is not the world, and its mapping has one rank that holds experts."""
    seen, barrier = [None, None], threading.Barrier(2)

    class Communicator(CommBackend):
        def __init__(self, rank):
            self.rank = rank

        def Get_rank(self):  # pylint: disable=invalid-name
            return self.rank

        def Get_size(self):  # pylint: disable=invalid-name
            return 2

        def allgather(self, value):
            seen[self.rank] = value
            barrier.wait()
            values = list(seen)
            barrier.wait()
            return values

    def rank(group):
        config = MnnvlConfig(Communicator(group.rank))
        mapping = types.SimpleNamespace(world_size=2, rank=group.rank, moe_ep_size=1, moe_ep_rank=0)
        moe = flashinfer.MoeAlltoAll(mapping, 4, 1, 2, mnnvl_config=config)
        x = np.full((3, 8), group.rank + 1, np.float32)
        rows, = moe.dispatch(np.full((3, 1), 1 - group.rank, np.int32), [x], 3)
        assert (rows[1 - group.rank] == 2 - group.rank).all()
        np.testing.assert_array_equal(moe.combine(rows, 3), x)
        mapping.world_size = 4
        with pytest.raises(InvalidArgumentError, match="rank 0 of 1, but the group has rank . of 2"):
            flashinfer.MnnvlMoe.get_moe_workspaces(mapping, config)

    run_local(2, rank)


def test_ids_of_rows_without_a_token_may_have_any_width():
    def rank(group):
        flashinfer.use_group(group)
        moe = flashinfer.MoeAlltoAll(flashinfer.Mapping(2, group.rank), 3, 1, 2)
        wide = np.full((3, 5), 9, np.int32)
        rows, = moe.dispatch(np.zeros((3, 1), np.int32), [wide], 3, invalid_token_expert_id=-7, expert_id_payload_index=0)
        assert (rows == (9 if group.rank == 0 else -7)).all()
        with pytest.raises(InvalidArgumentError, match="combine first"):
            moe.dispatch(np.zeros((3, 1), np.int32), [wide], 3)

    run_local(2, rank)


def test_names_that_engines_import(run_program):
    code, _, errors = run_program("""
        import switchyard.compat
        switchyard.compat.install("flashinfer.comm")
        import flashinfer.comm.trtllm_moe_alltoall as one_sided
        from flashinfer.comm import Mapping, MoeAlltoAll
        from flashinfer.comm.mapping import Mapping as SameMapping
        from flashinfer.comm.mnnvl import CommBackend, MnnvlConfig, MnnvlMemory, TorchDistBackend
        from flashinfer.comm.trtllm_alltoall import MnnvlMoe, MoEAlltoallInfo

        assert one_sided.MoeAlltoAll is MoeAlltoAll and SameMapping is Mapping
        assert all(hasattr(one_sided, name) for name in one_sided.__all__)
    """)
    assert code == 0, errors

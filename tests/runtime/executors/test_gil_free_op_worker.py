"""One op worker, by itself and behind another."""

from __future__ import annotations

import os
import threading

import numpy as np
import pytest
import torch

from hebe.machine.pinning import available_cores
from hebe.models.scripted_net import served
from hebe.query import SubQuery
from hebe.runtime.executors.gil_free_op_worker import UnlockedOpWorker
from hebe.runtime.loaded_model import LoadedModel

NAME = 7


@pytest.fixture
def model(repository):
    loaded = LoadedModel.load(repository, "dlrm-rmc1")
    yield loaded
    loaded.close()


class Team:
    """A worker's op workers, the first on the thread that calls, and a pipe that the last to be done writes to."""

    def __init__(self, model: LoadedModel, net: torch.nn.Module, others: int) -> None:
        self.model = model
        self.left = np.zeros(1, np.int64)
        made = model.spec, model.hierarchy, served(net, model.spec), 8, self.left
        self.others = [UnlockedOpWorker(*made) for _ in range(others)]
        self.first = UnlockedOpWorker(*made, self.others)
        self.told, self.outbox = os.pipe()
        for each in (self.first, *self.others):
            each.block.tell(self.outbox, NAME)
        self.first.block.share_with(others)

    def run(self, items: int) -> list[int]:
        """As many items for each; what was written, once all are done."""
        query = self.model.random_query(items)
        for each in (self.first, *self.others):
            each.block.place([SubQuery(query, 0, items)], items)
        self.left[0] = 1 + len(self.others)
        for other in self.others:
            other.run_on_thread(available_cores()[0])
        self.first.start()
        self.first.end()
        self.first.run()
        return np.frombuffer(os.read(self.told, 80), np.int64).tolist()

    def close(self) -> None:
        for each in (self.first, *self.others):
            each.close()
        os.close(self.told)
        os.close(self.outbox)


@pytest.fixture
def team_of(model):
    teams = []

    def make(net: torch.nn.Module, others: int) -> Team:
        teams.append(Team(model, net, others))
        return teams[-1]

    yield make
    for each in teams:
        each.close()


def op_threads() -> int:
    return sum(thread.name == "hebe-op" for thread in threading.enumerate())


@pytest.mark.parametrize("others", [0, 1, 3])
def test_all_run_what_is_placed_and_one_tells(model, team_of, others):
    before = op_threads()
    team = team_of(model.plain_dense_net(), others)
    for items in (8, 3):
        assert team.run(items) == [NAME]
        expected = model.predict(model.random_query(items).features, model.random_query(items).dense)
        for each in (team.first, *team.others):
            np.testing.assert_allclose(each.scores(items), expected, rtol=1e-5, atol=1e-6)
            assert each.take_fault() is None
    assert op_threads() == before + others
    team.first.close()
    for each in team.others:
        each.close()
    assert op_threads() == before


class OfAnotherShape(torch.nn.Module):
    def forward(self, dense, sparse, lengths):  # noqa: ARG002
        return sparse[:, :2]


def test_what_a_batch_raises_is_told_of_and_kept_until_it_is_asked_for(team_of):
    team = team_of(OfAnotherShape(), 1)
    for _ in range(2):
        assert team.run(4) == [NAME]
        for each in (team.first, *team.others):
            assert "scores have shape [4, 2]" in str(each.take_fault())
            assert each.take_fault() is None


def test_one_that_is_closed_hears_nothing(model, team_of):
    team = team_of(model.plain_dense_net(), 1)
    for _ in range(2):
        team.others[0].close()
        team.others[0].start()

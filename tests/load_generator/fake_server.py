"""A sender without a network: what came of each query is decided by the test."""

import asyncio
import math

from hebe.load_generator.senders.sender import Outcome, ignore_done, ignore_sent


def answer(_index):
    return Outcome.ANSWERED, ""


class FakeServer:
    """A sender whose answers come after `delay_s`; `verdict(index)` is the outcome and its kind."""

    connections = 1
    full = False

    def __init__(self, delay_s=0.001, verdict=answer):
        self.delay_s, self.verdict = delay_s, verdict
        self.on_sent, self.on_done = ignore_sent, ignore_done
        self.sent, self.given_up, self.timers = [], [], {}

    async def open(self):
        pass

    def send(self, index, items, offset):
        self.sent.append((index, items, offset))
        self.on_sent(index)
        if math.isfinite(self.delay_s):
            self.timers[index] = asyncio.get_running_loop().call_later(self.delay_s, self._answer, index)

    def _answer(self, index):
        outcome, kind = self.verdict(index)
        self.on_done(index, outcome, kind, f"message of {kind}")

    def give_up(self, index):
        self.given_up.append(index)
        if index in self.timers:
            self.timers.pop(index).cancel()

    async def close(self):
        pass


class Saturated(FakeServer):
    """A sender that never has a connection free."""

    full = True

    def send(self, index, items, offset):
        self.sent.append((index, items, offset))

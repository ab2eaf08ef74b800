"""What a sender tells, collected."""

import asyncio


class Listener:
    """Collects what a sender tells; waits for it `patience_s` at most."""

    def __init__(self, sender, patience_s=10.0):
        self.sent, self.done = [], {}
        self._changed, self._patience_s = asyncio.Event(), patience_s
        sender.on_sent, sender.on_done = self.sent.append, self._done

    def _done(self, index, outcome, kind, message):
        assert index not in self.done
        self.done[index] = (outcome, kind, message)
        self._changed.set()

    async def wait(self, count):
        async with asyncio.timeout(self._patience_s):
            while len(self.done) < count:
                self._changed.clear()
                await self._changed.wait()

"""Splitting distribution."""

from __future__ import annotations

from bisect import insort
from collections import deque

import numpy as np

from hebe.query import SubQuery
from hebe.scheduling.assignment import SAFEGUARD, Floats
from hebe.scheduling.distribution import Placements
from hebe.scheduling.fleet import Fleet


class PricedSplitting:
    predicts = True

    def __init__(
        self,
        sla_s: float,
        prices: Floats,
        safeguard: float = SAFEGUARD,
        most_parts: int = 4,
        eager: bool = True,
        fill: float = 1e9,
        order: str = "fifo",
        hopeless: float = 1.0,
        window: int = 3,
        idle_share: float = 0.2,
        split_price: float = 1.0,
        moore: float = 0.0,
        mixed: bool = False,
        stagger: bool = False,
    ) -> None:
        self.sla_s = sla_s
        self.prices = [float(p) for p in prices / prices.max()]
        self.safeguard = safeguard
        self.most_parts = most_parts
        self.fill = fill
        self.order = order
        self.hopeless = hopeless
        self.per = window
        self.idle_share = idle_share
        self.split_price = split_price
        self.moore = moore
        self.mixed = mixed
        self.stagger = stagger
        self.nmoore = 0
        self.window: list = []  # [sub_query, options]
        self.behind: deque[SubQuery] = deque()
        self.late: deque[SubQuery] = deque()
        self.nsplit = self.nlate = 0

    @property
    def waiting(self) -> int:
        return len(self.window) + len(self.behind) + len(self.late)

    def fleet_changed(self, fleet, now):
        self.window_size = self.per * len(fleet.workers)
        self.present = sorted({w.server_type for w in fleet.workers})
        self.count = [sum(w.server_type == t for w in fleet.workers) for t in range(len(fleet.types))]

    def arrived(self, sub_query, fleet, now):
        if len(self.window) < self.window_size and not self.behind:
            self.window.append((sub_query, self._options(sub_query.items, fleet)))
        else:
            self.behind.append(sub_query)

    def _options(self, n, fleet):
        options = []
        for t in self.present:
            p = fleet.predictors[t]
            for k in range(1, min(self.most_parts, self.count[t], n) + 1):
                s = p.service_time_s(-(-n // k))
                options.append((self.prices[t] * k * s * (self.split_price if k > 1 else 1.0), t, k, s))
        options.sort()
        return options

    def place(self, fleet, now):
        placed = []
        while self.behind and len(self.window) < self.window_size:
            q = self.behind.popleft()
            self.window.append((q, self._options(q.items, fleet)))
        initial: list[list[float]] = [[] for _ in fleet.types]
        for w in fleet.workers:
            initial[w.server_type].append(max(w.busy_until_s, now + 1e-6) if w.taken else now)
        for f in initial:
            f.sort()
        spare = (1 - self.safeguard) * self.sla_s
        drops = 0
        while True:
            free = [list(f) for f in initial]
            plan = []
            restart = False
            for i, entry in enumerate(self.window):
                part, options = entry
                by = part.query.deadline_s - spare
                for option in options:
                    f = free[option[1]]
                    if f[option[2] - 1] + option[3] <= by:
                        break
                else:
                    option = None
                    if self.moore and drops < 5 and plan:
                        j = max((j for j, o in plan if o), key=lambda j: self.window[j][1][0][0], default=None)
                        if j is not None and self.window[j][1][0][0] > self.moore * options[0][0]:
                            self.late.append(self.window[j][0])
                            self.nmoore += 1
                            del self.window[j]
                            drops += 1
                            restart = True
                            break
                    plan.append((i, None))
                    continue
                _, t, k, s = option
                f = free[t]
                begin = f[k - 1]
                taken = f[:k]
                del f[:k]
                for at in taken:
                    insort(f, at + s)
                plan.append((i, (t, k, sum(at <= now for at in taken))))
            if not restart:
                break
        kept = []
        for i, what in plan:
            entry = self.window[i]
            part, options = entry
            if what is None:
                if min(o[3] for o in options) + now > part.query.deadline_s + (self.hopeless - 1) * self.sla_s:
                    self.late.append(part)
                    self.nlate += 1
                else:
                    kept.append(entry)
                continue
            t, k, begins = what
            if begins == k:
                self._send(part, t, k, fleet, placed)
            elif begins and self.stagger:
                self.nsplit += 1
                at = part.start
                for j in range(begins):
                    stop = part.start + part.items * (j + 1) // k
                    placed.append((SubQuery(part.query, at, stop), fleet.take(t)))
                    at = stop
                rest = SubQuery(part.query, at, part.stop)
                kept.append((rest, self._options(rest.items, fleet)))
            else:
                kept.append(entry)
        # work conserving
        if fleet.idle_workers and kept:
            again = []
            for entry in kept:
                part, options = entry
                by = part.query.deadline_s - spare
                sent = False
                if fleet.idle_workers:
                    base = options[0][0]
                    for cost, t, k, s in options:
                        if cost > self.fill * base:
                            break
                        if fleet.idle(t) >= k and now + s <= by and free[t][k - 1] <= now:
                            taken = free[t][:k]
                            del free[t][:k]
                            for at in taken:
                                insort(free[t], at + s)
                            self._send(part, t, k, fleet, placed)
                            sent = True
                            break
                if not sent:
                    again.append(entry)
            kept = again
        self.window = kept
        while self.late and not self.window and fleet.idle_workers > self.idle_share * len(fleet.workers):
            part = self.late.popleft()
            t = min(
                (t for t in self.present if fleet.idle(t)),
                key=lambda t: self.prices[t] * fleet.predictors[t].service_time_s(part.items),
            )
            placed.append((part, fleet.take(t)))
        return placed

    def _send(self, part, t, k, fleet, placed):
        n = part.items
        if k > 1:
            self.nsplit += 1
        for i in range(k):
            a, b = part.start + n * i // k, part.start + n * (i + 1) // k
            placed.append((SubQuery(part.query, a, b) if k > 1 else part, fleet.take(t)))

    def withdraw(self, query_id):
        raise NotImplementedError

    def withdraw_all(self):
        return []

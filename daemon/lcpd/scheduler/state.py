"""All that the scheduler knows, in one place: the dispatcher owns it, its two hands change it."""

from __future__ import annotations

from dataclasses import dataclass, field

from lcpd.scheduler import decide as d
from lcpd.scheduler.keeper import Keeper
from lcpd.scheduler.policy import Policy
from lcpd.scheduler.report import CacheReport
from lcpd.scheduler.request import Request, Stay
from lcpd.scheduler.table import SlotTable

_REPORTS_KEPT = 256


@dataclass
class State:
    """Requests, slots and what belongs to them."""

    policy: Policy
    table: SlotTable
    keeper: Keeper
    requests: dict[int, Request] = field(default_factory=dict)
    """All that are not over, by id."""
    served: dict[str, float] = field(default_factory=dict)
    """When each client was last served, the latest one last."""
    reports: dict[str, CacheReport] = field(default_factory=dict)
    """By the request's public name, the latest one last."""
    up: bool = False
    """Whether there is an engine."""
    starved: int = 0
    """Cells that the engine lacks although they should be there."""
    service: float = 10.0
    """Seconds that a request holds a slot, as a moving average."""

    @property
    def waiting(self) -> list[Request]:
        """Those without a slot."""
        return [request for request in self.requests.values() if request.stay is None]

    @property
    def running(self) -> list[tuple[Request, Stay]]:
        """Those on a slot."""
        return [(request, request.stay) for request in self.requests.values() if request.stay is not None]

    @property
    def suspects(self) -> bool:
        """Whether a request may have crashed the engine, and has not got past where it stood then."""
        return any(request.record.suspect for request in self.requests.values())

    def request_on(self, seq: int) -> Request:
        """The request on a busy slot."""
        number = self.table[seq].request
        assert number is not None, "the slot is busy"
        return self.requests[number]

    def keep_report(self, report: CacheReport) -> None:
        """The request of this name has begun."""
        if not report.name:
            return
        self.reports.pop(report.name, None)
        self.reports[report.name] = report
        if len(self.reports) > _REPORTS_KEPT:
            del self.reports[next(iter(self.reports))]

    def forget_reports(self) -> None:
        """Those of requests that are over: a report has tokens of its prompt."""
        names = {request.prompt.name for request in self.requests.values()}
        self.reports = {name: report for name, report in self.reports.items() if name in names}

    def view(self) -> d.View:
        """What `decide` needs to know."""
        capacity = self.table.capacity
        return d.View(
            policy=self.policy,
            slots=tuple(self.table),
            running=tuple(r.as_running(stay, self.keeper.pending(r.id)) for r, stay in self.running),
            waiting=tuple(request.as_waiting(capacity) for request in self.waiting),
            capacity=capacity,
            rolls_back=self.keeper.rolls_back,
            marks=self.keeper.takes_checkpoints,
            known=lambda request: self.keeper.known(self.requests[request].tokens),
            up=self.up,
            starved=self.starved,
            served=self.served,
            saving=tuple(d.Saving(tokens) for tokens in self.keeper.exporting),
            alignment=self.keeper.alignment,
            costs=self.keeper.costs(),
        )

    def retry_after(self) -> int:
        """Seconds after which somebody who was sent away had better try again."""
        turns = (len(self.waiting) + 1) / len(self.table)
        return min(600, max(1, round(turns * self.service)))

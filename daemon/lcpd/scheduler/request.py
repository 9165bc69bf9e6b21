"""What the dispatcher remembers of one generation until it is over."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from lcpd.scheduler.course import Course
from lcpd.scheduler.decide import Running
from lcpd.scheduler.events import Text
from lcpd.scheduler.generation import Generation, Prompt
from lcpd.scheduler.policy import RUNNING_GROWTH, admission_growth
from lcpd.scheduler.queue import Following, Waiting
from lcpd.scheduler.recovery import CLEAN, Record
from lcpd.scheduler.report import CacheReport
from lcpd.scheduler.slots import Resume, Tokens


@dataclass
class Stay:
    """One time on a slot.  Times in monotonic seconds."""

    seq: int
    tokens: Tokens
    """All that is to be computed before a token is sampled: the prompt, and what was generated before."""
    resume: Resume
    began: float
    done: int = 0
    """Of these, how many the slot holds."""
    started: bool = False
    """Whether the engine has begun."""
    parking: bool = False
    stopping: bool = False
    """Whether it has been told to stop for others: an anticipation."""
    sampled: int = 0
    """Tokens of this stay."""
    first_token: float = 0.0
    """When the first of them came."""
    exported: int = 0
    """Tokens that were in RAM when it began, or have been saved since."""
    saved_at: float = 0.0
    """When its tail was saved last, at first when it began."""
    checkpoint: int = 0
    """Position of the last checkpoint that was taken."""

    @property
    def prefilling(self) -> bool:
        """Whether there is something left to compute before a token is sampled."""
        return self.done < len(self.tokens)


@dataclass(eq=False)
class Request:
    """A generation with its place in the queue or on a slot.  Changed by the dispatcher alone."""

    generation: Generation
    since: float
    """When it came into the queue the last time."""
    waited: float = 0.0
    """Seconds in the queue before that."""
    tokens: Tokens = field(init=False)
    """The prompt, and the reply up to when it was parked: what is to be computed at the next start."""
    generated: list[int] = field(default_factory=list)
    """Tokens of the reply so far."""
    parked: bool = False
    """Whether the engine keeps it, without a slot, to go on with it later."""
    stay: Stay | None = None
    """Where it runs; None while it waits."""
    attempts: int = 0
    """How often it was started, other than to go on with what the engine had kept."""
    closed: bool = False
    """Whether nobody listens any more while it still runs."""
    told: bool = False
    """Whether Begun has been said."""
    cached: int | None = None
    """Tokens of the prompt that it found when it was started first; None before that."""
    progress: int = 0
    """Tokens of the prompt that its consumer knows to be computed."""
    counted: int = 0
    """Tokens of the prompt whose source has been counted."""
    course: Course = field(init=False)
    following: Following | None = None
    follow_until: float | None = None
    report: CacheReport | None = None
    """Of its first start; None before that."""
    fetching: bool = False
    """Whether it waits for the disk."""
    fetched: tuple[int, int] = (0, 0)
    """Its tokens [begin, end) that were brought from disk to RAM for it."""
    record: Record = CLEAN
    """What speaks against it."""
    recalled: bool = False
    """Whether its reply is remembered for a while where its client goes away."""
    said: list[Text] = field(default_factory=list)
    """What its consumer was told of the reply, where that is remembered."""
    untold: tuple[Text, ...] = ()
    """Of what an earlier try had said, what is to be said again when it begins."""
    retries: int | None = None
    """The earlier try of the same that it waits for, which is being stopped."""

    @property
    def id(self) -> int:
        """Also the engine's name for it."""
        return self.generation.id

    @property
    def prompt(self) -> Prompt:
        """What was submitted."""
        return self.generation.prompt

    @property
    def anticipates(self) -> bool:
        """Whether it only prefills what may come."""
        return self.prompt.kind == "prefill"

    @property
    def background(self) -> bool:
        """The class it was submitted in."""
        return self.prompt.priority == "background"

    def park(self, now: float, generated: list[int]) -> None:
        """It waits from `now` on, to go on after `generated`."""
        self.since, self.generated, self.parked = now, generated, True
        self.course.enter("waiting", now)
        self.stay = self.following = None
        self.tokens = self.all_tokens

    def go_on_behind(self, generated: tuple[int, ...], said: tuple[Text, ...]) -> None:
        """It was not started yet: it begins with the reply of an earlier try, which had `said` so much."""
        self.generated, self.said, self.untold = list(generated), list(said), said
        self.tokens = self.all_tokens

    def run_again(self, now: float) -> None:
        """The engine is gone: it waits from `now` on, to go on after what it has generated."""
        since = now if self.stay is not None else self.since
        self.park(since, self.generated)
        self.parked = False

    def limit_to(self, capacity: int) -> None:
        """The context holds `capacity` tokens: what the reply may have beyond that is cut off."""
        room = capacity - len(self.prompt.tokens)
        if self.prompt.max_tokens > room:
            self.generation.prompt = replace(self.prompt, max_tokens=max(room, len(self.generated)))

    @property
    def length(self) -> int:
        """Tokens of prompt and reply."""
        return len(self.prompt.tokens) + len(self.generated)

    @property
    def all_tokens(self) -> Tokens:
        """Those of prompt and reply so far."""
        return np.concatenate([self.prompt.tokens, np.array(self.generated, np.int32)])

    @property
    def reached(self) -> int:
        """Tokens of prompt and reply that are known to be computed."""
        return self.stay.done if self.stay is not None and self.stay.prefilling else self.length

    def _reserve(self, growth: int, capacity: int) -> int:
        prompt = self.generation.prompt
        # What is reserved exceeds what is held: the last token before a sample is always still to be computed.
        return max(self.length, min(self.length + growth, len(prompt.tokens) + prompt.max_tokens, capacity))

    def admission(self, capacity: int) -> int:
        """Cells that it has to find when it is started."""
        return self._reserve(admission_growth(capacity), capacity)

    def need(self, capacity: int) -> int:
        """Cells that it has to have while it runs."""
        return self._reserve(RUNNING_GROWTH, capacity)

    def __post_init__(self) -> None:
        self.tokens = self.prompt.tokens
        self.course = Course(self.since)

    def as_waiting(self, capacity: int) -> Waiting:
        """Its place in the queue."""
        return Waiting(
            request=self.id,
            tokens=self.tokens,
            reserve=self.admission(capacity),
            arrived=self.generation.arrived,
            since=self.since,
            waited=self.waited,
            background=self.background,
            client=self.prompt.client,
            begun=self.parked or self.attempts > 0,
            following=self.following,
            follow_until=self.follow_until,
            anticipates=self.anticipates,
            suspicion=self.record.weight,
            blocked=self.fetching or self.retries is not None,
        )

    def as_running(self, stay: Stay, pending: tuple[int, ...]) -> Running:
        """Its place on a slot; `pending`: positions of checkpoints still to be taken."""
        return Running(
            request=self.id,
            seq=stay.seq,
            tokens=stay.tokens,
            done=stay.done,
            background=self.background,
            waited=self.waited,
            started=stay.started,
            parking=stay.parking,
            anticipates=self.anticipates,
            stopping=stay.stopping,
            pending=pending,
            suspect=self.record.suspect,
        )

"""What the slots do and who waits, as it is shown: pure functions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from lcpd.scheduler import cells
from lcpd.scheduler.decide import View, follows
from lcpd.scheduler.placement import used
from lcpd.scheduler.queue import in_order
from lcpd.scheduler.request import Request, Stay
from lcpd.scheduler.slots import Slot
from lcpd.scheduler.view import SlotState, SlotView, Snapshot, WaitingState, WaitingView


def snapshot(view: View, requests: Iterable[Request], now: float) -> Snapshot:
    """All slots, and who waits, the next one first."""
    by_id = {request.id: request for request in requests}
    waiting = in_order(view.waiting, view.served, view.policy.ageing, now)
    return Snapshot(
        slots=tuple(_slot(slot, view.slots, by_id.get(slot.request or 0), now) for slot in view.slots),
        waiting=tuple(
            WaitingView(
                request=one.request,
                state=_waiting_state(by_id[one.request], follows(one, view, now)),
                priority=by_id[one.request].prompt.priority,
                client=one.client,
                waited=now - one.start,
                prompt_tokens=len(by_id[one.request].prompt.tokens),
                generated=len(by_id[one.request].generated),
            )
            for one in waiting
        ),
        cells=view.capacity,
        cells_used=used(view.slots),
    )


def _waiting_state(request: Request, follows: bool) -> WaitingState:
    if follows:
        return "following"
    return "parked" if request.parked else "waiting"


def _slot(slot: Slot, slots: Sequence[Slot], request: Request | None, now: float) -> SlotView:
    others = [other.runs for other in slots if other is not slot]
    shared = cells.size(slot.runs) - cells.exclusive(slot.runs, others)
    stay = request.stay if request else None
    if request is None or stay is None:
        return SlotView(slot.seq, "idle", len(slot.tokens), shared, age=now - slot.last_used if slot.last_used else 0.0)
    prompt_tokens = len(request.prompt.tokens)
    # The last sampled token is not held yet.
    reply = max(0, stay.sampled - 1)
    return SlotView(
        id=slot.seq,
        state=slot_state(stay),
        n_tokens=len(slot.tokens) + reply,
        shared=shared,
        request=request.id,
        prompt_tokens=prompt_tokens,
        done=min(stay.done, prompt_tokens),
        generated=len(request.generated),
        priority=request.prompt.priority,
        client=request.prompt.client,
        age=now - request.generation.arrived,
        tokens_per_second=(stay.sampled - 1) / (now - stay.first_token) if reply and now > stay.first_token else 0.0,
    )


def slot_state(stay: Stay | None) -> SlotState:
    """What a slot does on which this stay is; None: nobody is."""
    if stay is None:
        return "idle"
    if stay.parking:
        return "parking"
    if not stay.started:
        return "restoring"
    return "prefill" if stay.prefilling else "decode"

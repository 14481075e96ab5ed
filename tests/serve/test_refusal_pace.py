"""Senders that are refused again and again get their refusals late; others do not."""

from __future__ import annotations

import pytest

from headway.serve.refusal_pace import RefusalThrottle


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_refusals_beyond_a_burst_are_paced_for_each_sender() -> None:
    clock = Clock()
    pace = RefusalThrottle(clock)
    clock.now = 1000.0
    assert {pace.delay("a") for _ in range(100)} == {0.0}
    assert [pace.delay("a") for _ in range(3)] == pytest.approx([0.0, 0.02, 0.04])
    assert pace.delay("b") == 0.0
    assert max(pace.delay("a") for _ in range(500)) == pytest.approx(2.0)
    clock.now += 5
    assert pace.delay("a") == 0.0


def test_a_hundred_clients_that_repeat_their_requests_at_once_send_fifty_in_a_second() -> None:
    clock, sent = Clock(), 0
    pace = RefusalThrottle(clock)
    due = [0.0] * 100
    while clock.now < 60:
        client = min(range(100), key=due.__getitem__)
        clock.now = max(clock.now, due[client])
        due[client] = clock.now + pace.delay("a")
        sent += 1
    assert 2500 < sent < 3500


def test_many_senders_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headway.serve.refusal_pace._MAX_SENDERS", 10)
    clock = Clock()
    pace = RefusalThrottle(clock)
    for number in range(100):
        clock.now += 1
        pace.delay(f"address {number}")
        assert len(pace._next) <= 11

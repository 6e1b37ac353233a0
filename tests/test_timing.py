"""Where the time goes: spans add up, and nothing is measured unasked."""

from __future__ import annotations

import pytest

from rightreasons import timing
from rightreasons.timing import CHECKPOINTS, REST, Clock, profiled, span


def test_a_span_stops_the_clock_of_the_one_around_it():
    now = iter([0.0, 1.0, 3.0, 7.0, 15.0, 31.0])
    with profiled(lambda: next(now)) as clock, span("outer"), span("inner"):
        pass  # from 0, from 1, 3 to 7; outer to 15, the rest to 31
    assert clock.seconds == {REST: 1.0 + 16.0, "outer": 2.0 + 8.0, "inner": 4.0}


def test_nothing_is_measured_unasked():
    assert span("a") is span("b")
    with profiled():
        assert span("a") is not span("b")
    assert timing._clock is None


def test_an_error_inside_leaves_no_clock_behind():
    with pytest.raises(ZeroDivisionError), profiled(), span("a"):
        raise ZeroDivisionError
    assert timing._clock is None


def test_the_words_name_large_shares_first_and_say_what_to_try():
    clock = Clock()
    clock.seconds = {"forward": 30.0, CHECKPOINTS: 69.9, "optimiser": 0.1}
    said = clock.words().splitlines()
    assert said[0] == "where the time went, of 100.0 s:"
    assert said[1].split() == ["69.9", "%", "69.90", "s", "checkpoints"]
    assert said[2].split() == ["30.0", "%", "30.00", "s", "forward"]
    assert said[3:] == ["checkpoints take long: write fewer, such as --checkpoint 1000"]


def test_no_training_no_shares():
    assert Clock().words() == "nothing was trained, so no time was spent"

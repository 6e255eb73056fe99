"""The validation record is current, and every number of the prose is computed by a cell."""

from __future__ import annotations

import pytest

from tests.notebooks import LESSONS
from tests.prose_numbers import audit, matches, prose_numbers
from tests.validation import RECORD, record, without_times


@pytest.mark.parametrize("lesson", LESSONS)
def test_every_number_in_the_prose_is_computed(lesson: str) -> None:
    held, loose = audit(lesson)
    assert len(held) > 5
    assert loose == [], "compute these in a cell, or name their source in tests/prose_numbers.py"


def test_record_is_current() -> None:
    assert without_times(RECORD.read_text(encoding="utf-8")) == record(measured=False), "run make validation"


def test_what_counts_as_a_number() -> None:
    text = "About 131,072 bytes, 4.8 ms and 99% of `x = 77`; 2 ways. Llama-3-8B, 2023, arXiv:2305.13245, $m = 50$."
    assert prose_numbers(text) == ["131,072", "4.8", "99%", "50"]
    assert matches("4.8", {4.7933})
    assert not matches("4.8", {4.9})
    assert matches("19.7%", {0.19656})
    assert matches("50", {50e9}, (1, 1e-9))

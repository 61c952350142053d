"""Two short rounds of tests/chaos (make chaos plays many, and long ones): faults at random moments, the same weights and records."""

import sys

import pytest
from programs import ROOT, SLOW

sys.path.insert(0, str(ROOT / "tests" / "chaos"))
from chaos import KINDS, chaos, record  # noqa: E402

pytestmark = [pytest.mark.full, pytest.mark.skipif(SLOW > 1, reason="a sanitizer's library must be the first that is loaded")]


def test_a_run_with_its_own_fleet_and_one_with_another(tmp_path):
    chaos(tmp_path, 2, "ci", 10, 4, kinds=KINDS[:2])


def test_a_difference_is_seen():
    """What compares the records does compare."""
    one = {"sha256": ["a"], "trained": ["1", "2"], "steps": [(1, 0.5)]}
    assert record.differences(one, one) == []
    assert record.differences(one, one | {"trained": ["1", "3"]}) == ["trained: 2 and 2, first different at 1"]
    assert record.differences(one, one | {"steps": []}) == ["steps: 1 and 0, first different at 0"]

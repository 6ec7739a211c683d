"""The texts of errors equal the committed file, in which a change of a text is read as a diff."""

import pytest

from tests.messages import SNAPSHOT, messages

pytestmark = pytest.mark.apps  # the snapshot has the messages of apps


def test_the_texts_of_errors_equal_the_committed_snapshot() -> None:
    stored = SNAPSHOT.read_text(encoding="utf-8").splitlines()
    assert messages().splitlines() == stored, "run `make snapshots`, and read the diff of tests/messages.txt"

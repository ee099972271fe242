"""What a user is told of a mistake."""

from pflcore.errors import UserError, bounded


def test_a_message_has_its_beginning_and_its_end_however_long_it_is():
    assert bounded("a  b\nc") == "a b c" and bounded("x" * 299) == "x" * 299
    assert bounded(f"specs/a.yaml:3: {'k' * 5000} is wrong") == f"specs/a.yaml:3: {'k' * 100}...{'k' * 40} is wrong"
    whole = str(UserError(f"specs/a.yaml:3: {'word ' * 2000}do this"))
    assert len(whole) <= 4000 and whole.startswith("specs/a.yaml:3: word") and whole.endswith("do this")

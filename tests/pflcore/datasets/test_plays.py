"""Reading plays: the roles of both editions of the complete works, and the characters of a text."""

from __future__ import annotations

import re
import string

import pytest
from support.editions import AEGEON, BERTRAM, COUNTESS, DUKE, NEW, OLD

from pflcore.datasets._speeches import read_plays
from pflcore.datasets._text import encode_text as encode
from pflcore.datasets._text import read_text
from pflcore.errors import UserError


def test_the_roles_of_the_edition_of_1994() -> None:
    roles = read_plays(OLD, "here")
    assert list(roles) == [
        "ALLS_WELL__THAT_ENDS_COUNTESS",
        "ALLS_WELL__THAT_ENDS_BERTRAM",
        "ALLS_WELL__THAT_ENDS_LAFEU",
        "THE_COMEDY_OF_ERRORS_AEGEON",
        "THE_COMEDY_OF_ERRORS_DUKE",
    ]
    collapsed = {name: [re.sub("  +", " ", line) for line in lines] for name, lines in roles.items()}
    assert collapsed["ALLS_WELL__THAT_ENDS_COUNTESS"] == COUNTESS
    assert collapsed["ALLS_WELL__THAT_ENDS_BERTRAM"] == BERTRAM
    assert collapsed["THE_COMEDY_OF_ERRORS_AEGEON"] == AEGEON
    assert collapsed["THE_COMEDY_OF_ERRORS_DUKE"] == DUKE


@pytest.mark.parametrize("lines", range(2, 8))
def test_a_text_without_sonnets_begins_with_its_first_play(lines: int) -> None:
    space = "\n" * lines
    text = f"\nby nobody\nTHE PLAY{space}by William Shakespeare\n\n  ONE. a\n    b\n\n  TWO. c\n    d"
    assert read_plays(text, "here") == {"THE_PLAY_ONE": ["a", "b"], "THE_PLAY_TWO": ["c", "d"]}


def test_the_current_edition() -> None:
    assert read_plays(read_text(NEW.encode(), "here"), "here") == {
        "ALL_S_WELL_THAT_ENDS_WELL_COUNTESS": ["In delivering my son from me, I bury a second husband."],
        "ALL_S_WELL_THAT_ENDS_WELL_BERTRAM": [
            "And I in going, madam, weep o'er my father's death anew; \"but I",
            'must" attend--',
            "The best wishes...  be",
        ],
        "ALL_S_WELL_THAT_ENDS_WELL_AEGEON": ["Called here."],
        "A_SECOND_PLAY__OTHERWISE_A": ["Yes."],
        "A_SECOND_PLAY__OTHERWISE_B": ["No."],
    }


def test_characters_without_a_counterpart() -> None:
    assert read_text("\ufeff“Naïve” – café…\u200b\u2028¶".encode() + b"a" * 1000, "here") == (
        '"Naive" - cafe... ' + "a" * 1000
    )
    with pytest.raises(UserError) as error:
        read_text("Быть или не быть".encode(), "here")
    assert str(error.value) == (
        "here: 13 of 16 characters, most often 'ь', are outside of the 100 printable ASCII characters; "
        "use English plain text"
    )
    with pytest.raises(UserError, match=r"^here: not UTF-8 text \(byte 3\); save it as UTF-8$"):
        read_text(b"abc\xff", "here")


def test_numbers_of_characters() -> None:
    assert encode(string.printable).tolist() == list(range(100))
    assert encode("a\x00é\ud800😀 ").tolist() == [10, 255, 255, 255, 255, string.printable.index(" ")]

"""The complete works of Shakespeare in miniature, and samples as words."""

from __future__ import annotations

import string
from typing import Any

import numpy as np

from pflcore.data.samples import Samples
from pflcore.datasets import DATASETS, Dataset


def create(**options: Any) -> Dataset:
    return DATASETS.create("shakespeare", **options)


def texts(samples: Samples, role: str | None = None, train: bool | None = None) -> list[str]:
    """The samples of a role as words."""
    attribute = samples.attributes["role"]
    rows = np.ones(len(samples), bool) if role is None else attribute.values == attribute.names.index(role)
    rows &= True if train is None else samples.train == train
    return ["".join(string.printable[code] for code in row) for row in samples.inputs[rows]]


def windows(text: str, length: int) -> list[str]:
    return [text[start : start + length + 1] for start in range(len(text) - length)]


# The edition of 1994.
NOTICE = """<<THIS ELECTRONIC VERSION OF THE COMPLETE WORKS OF WILLIAM
SHAKESPEARE IS COPYRIGHT 1990-1993 BY WORLD LIBRARY, INC., AND IS
PROVIDED BY PROJECT GUTENBERG ETEXT OF ILLINOIS BENEDICTINE COLLEGE>>
"""


OLD = f"""The Complete Works of William Shakespeare, by William Shakespeare
This is the 100th Etext file presented by Project Gutenberg

{NOTICE}

1609

THE SONNETS

by William Shakespeare



                     1
  From fairest creatures we desire increase,
  O. That thereby beauty's rose might never die,
    Pity the world, or else this glutton be,
  AND. So the sonnets would have two roles.
THE END

{NOTICE}



1603

ALLS WELL, THAT ENDS

by William Shakespeare


Dramatis Personae

  KING OF FRANCE
  BERTRAM, Count of Rousillon

ACT I. SCENE 1.
Rousillon. The COUNT'S palace

Enter BERTRAM, the COUNTESS OF ROUSILLON, HELENA, and LAFEU, all in black

  COUNTESS. In delivering my son from me, I bury a second husband.
  BERTRAM. And I in going, madam,   weep o'er my father's death anew;
    but I must attend his Majesty's command, to whom I am now in
    ward, evermore in subjection.

                         Enter HELENA

  Countess. What hope is there of his Majesty's amendment?
  LAFEU. He hath abandon'd his physicians, madam; under whose
    practices he hath persecuted time with hope.
  BERTRAM. What is it, my good lord, the King languishes of?
  COUNTESS. Be thou blest, Bertram, and succeed thy father  
    In manners, as in shape!            Exit
THE END

{NOTICE}


1599

A PLAY OF ONE
by William Shakespeare

by William Shakespeare

  NOBODY. I speak alone, and so am not counted as a play at all;
    therefore this text,
    which has enough lines,
    is nowhere to be found.

1593

THE COMEDY OF ERRORS

by William Shakespeare

ACT I. SCENE 1

AEGEON. Proceed, Solinus, to procure my fall,
  And by the doom of death end woes and all.
DUKE. Merchant of Syracuse, plead no more;
  I am not partial to infringe our laws.

A hall
DUKE. Well, Syracusian, say in brief the cause
ACT II. SCENE 2
The mart
AEGEON. A heavier task could not have been impos'd
<Exeunt
SCENE 3
DUKE. Again.

{NOTICE}
1609

A LOVER'S COMPLAINT

by William Shakespeare

  From off a hill whose concave womb reworded
    A plaintful story from a sist'ring vale,

End of this Etext of The Complete Works of William Shakespeare
  LICENSE. Not a line of a role.
  USER. Nor is this.
"""


# What its roles say, but for the numbers of spaces.
COUNTESS = [
    "In delivering my son from me, I bury a second husband.",
    "What hope is there of his Majesty's amendment?",
    "Be thou blest, Bertram, and succeed thy father ",
    "In manners, as in shape! Exit",
]
BERTRAM = [
    "And I in going, madam, weep o'er my father's death anew;",
    "but I must attend his Majesty's command, to whom I am now in",
    "ward, evermore in subjection.",
    " Enter HELENA",  # indented like speech
    "What is it, my good lord, the King languishes of?",
]
DUKE = [
    "Merchant of Syracuse, plead no more;",
    " I am not partial to infringe our laws.",
    "",
    "A hall",
    "Well, Syracusian, say in brief the cause",
    "Again.",
    "",
]
AEGEON = [
    "Proceed, Solinus, to procure my fall,",
    " And by the doom of death end woes and all.",
    "A heavier task could not have been impos'd",
]

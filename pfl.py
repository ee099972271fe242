"""A study from Python: its results as DataFrames, its partitions, its trained models (docs/python.md).

import pfl

frame = pfl.open().results("quickstart")
"""

from pflcore.errors import UserError
from pipeline.library.found import NotUpToDate
from pipeline.library.own_data import train
from pipeline.library.study import Study

__all__ = ["NotUpToDate", "Study", "UserError", "open", "train"]

open = Study.open

if __name__ == "__main__":  # python -m pfl
    from pipeline.cli import main

    main()

"""Generated YAML says to DVC, which reads YAML 1.2, what it says to those who read YAML 1.1."""

from __future__ import annotations

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st
from ruamel.yaml import YAML

from pipeline.compile.serialise import to_yaml


@given(st.from_regex(r"[0-9a-f]{8}|[0-9]{8}|[0-9]{1,6}e[0-9]{1,6}", fullmatch=True))
@example("12e45678")  # infinity
@example("0e123456")  # nothing
@example("00000008")  # eight; no number in YAML 1.1, which takes it for octal
@example("00000017")
def test_an_id_stays_a_name_whatever_its_digits(name: str) -> None:
    text = to_yaml({name: [name]})
    assert YAML(typ="safe", pure=True).load(text) == yaml.safe_load(text) == {name: [name]}


@pytest.mark.parametrize("value", ["1e5", "-.5E+3", "+1.e-2", "1.5e7", "089"])
def test_a_string_that_looks_like_a_number_stays_a_string(value: str) -> None:
    text = to_yaml({"value": value, "number": float(value)})
    assert YAML(typ="safe", pure=True).load(text) == {"value": value, "number": float(value)}

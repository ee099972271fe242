"""A JSON Schema without what it says twice."""

from __future__ import annotations

from pipeline.spec.shared_schema import share

LR = {"description": "Learning rate of the clients' optimiser, above nothing.", "exclusiveMinimum": 0, "title": "Lr"}
OTHER = {"description": "Learning rate of the server's optimiser, may be none.", "minimum": 0, "title": "Server lr"}


def test_what_occurs_twice_is_a_definition() -> None:
    schema = {
        "properties": {"a": {"$ref": "#/$defs/a"}, "title": {"type": "string", "title": "Title"}},
        "$defs": {
            "a": {"properties": {"lr": LR, "few": {"type": "integer"}, "server_lr": OTHER}, "default": LR},
            "b": {"properties": {"lr": LR, "few": {"type": "integer"}}, "title": "b"},
            "axes": {"properties": {"training.lr": {"anyOf": [{"type": "array", "items": LR}, {"type": "null"}]}}},
        },
    }
    rate = {"$ref": "#/$defs/option.lr"}
    assert share(schema) == {
        "properties": {"a": {"$ref": "#/$defs/a"}, "title": {"type": "string"}},
        "$defs": {
            "a": {"properties": {"lr": rate, "few": {"type": "integer"}, "server_lr": OTHER}, "default": LR},
            "b": {"properties": {"lr": rate, "few": {"type": "integer"}}, "title": "b"},
            "axes": {"properties": {"training.lr": {"anyOf": [{"type": "array", "items": rate}, {"type": "null"}]}}},
            "option.lr": {key: value for key, value in LR.items() if key != "title"},
        },
    }


def test_other_options_of_the_same_name_are_told_apart() -> None:
    changed = {**LR, "exclusiveMinimum": 1}
    one, two = {"properties": {"lr": LR}}, {"properties": {"lr": changed}}
    shared = share({"$defs": {"a": one, "b": two, "c": {**one, "type": "object"}, "d": {**two, "type": "object"}}})
    rates = [shared["$defs"][name]["properties"]["lr"]["$ref"] for name in "abcd"]
    assert rates == [f"#/$defs/option.lr{end}" for end in ("", ".2", "", ".2")]
    assert [shared["$defs"][name]["exclusiveMinimum"] for name in ("option.lr", "option.lr.2")] == [0, 1]


def test_a_part_of_what_is_shared_stays_in_it() -> None:
    inner = {"items": {"enum": ["a" * 40, "b" * 40]}}
    outer = {"description": "Of them, each at most once.", "anyOf": [inner, {"type": "null"}]}
    shared = share({"$defs": {name: {"properties": {"names": outer}, "title": name} for name in "ab"}})
    assert set(shared["$defs"]) == {"a", "b", "option.names"} and shared["$defs"]["option.names"] == outer

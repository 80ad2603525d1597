"""Fields of a config found again in its text."""

from __future__ import annotations

from tritonstack_export.repository.config_positions import ConfigPositions
from tritonstack_export.repository.config_tokens import Position

TEXT = """# comment
backend: "python"
input [ { name: "x" dims: [ 3, -1 ] },
        { name: "y"
          dims: 4 dims: 5 } ]
input <name: 'z' reshape { shape: [ ] }>
dynamic_batching { preferred_batch_size: [ 4,
   8 ] }
parameters { key: "two" value { string_value: "1" } }
parameters { key: 'o' "ne" value { string_value: "1" } }
parameters { key: "two" value { string_value: "2" } }
"""


def test_positions_follow_lists_blocks_and_repetition() -> None:
    positions = ConfigPositions(TEXT)
    assert positions.at("backend") == Position(2, 1)
    assert positions.at("input", 1) == Position(4, 9)
    assert positions.at("input", 0, "dims", 1) == Position(3, 32)
    assert positions.at("input", 1, "dims", 1) == Position(5, 19)
    assert positions.at("input", 2, "name") == Position(6, 8)
    assert positions.at("dynamic_batching", "preferred_batch_size", 1) == Position(8, 4)


def test_a_missing_field_answers_with_its_parent() -> None:
    positions = ConfigPositions(TEXT)
    assert positions.at("input", 1, "data_type") == Position(4, 9)
    assert positions.at("nowhere") is None
    assert positions.has("input", 1, "dims") and not positions.has("input", 1, "data_type")


def test_map_entries_are_found_by_key() -> None:
    positions = ConfigPositions(TEXT)
    assert positions.at(*positions.map_entry(("parameters",), "one")) == Position(10, 1)
    assert positions.at(*positions.map_entry(("parameters",), "two"), "value") == Position(11, 25)
    assert positions.repeated_keys("parameters") == ["two"]


def test_text_that_is_no_config_has_no_positions() -> None:
    assert ConfigPositions('name: "a').at("name") is None
    assert ConfigPositions("").at("name") is None

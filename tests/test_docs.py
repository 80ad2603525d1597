"""docs/spec.md shows every key of the spec, and what it shows is a valid spec."""

from __future__ import annotations

import re
from pathlib import Path

import yaml
from pydantic import BaseModel

from tritonstack.image import ImagePreprocessing
from tritonstack_export import spec
from tritonstack_export.spec import ModelSpec

TEXT = (Path(__file__).resolve().parent.parent / "docs" / "spec.md").read_text()
[EXAMPLE] = re.findall(r"```yaml\n(.*?)```", TEXT, re.S)


def test_the_example_is_a_valid_spec() -> None:
    parsed = ModelSpec.model_validate(yaml.safe_load(EXAMPLE))
    assert parsed.name == "my_model"
    assert parsed.preprocess.image is not None
    ImagePreprocessing.from_json(__import__("json").dumps(parsed.preprocess.image))


def test_every_key_is_shown() -> None:
    models = [m for m in vars(spec).values() if isinstance(m, type) and issubclass(m, BaseModel) and m is not BaseModel]
    assert len(models) > 10
    keys = {name for model in models for name in model.model_fields}
    missing = {key for key in keys if not re.search(rf"\b{key}:", EXAMPLE)}
    assert not missing

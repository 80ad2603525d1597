"""What is generated of the chart, and the default manifests as they were looked at."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import yaml
from chart_render import CHART, ROOT, render_text, without_secret

from tritonstack.errors import UsageError
from tritonstack_deploy.chart.__main__ import generated_files, main
from tritonstack_deploy.chart.schema import values_schema
from tritonstack_deploy.chart.values import read_values

GOLDEN = Path(__file__).parent / "golden" / "default.yaml"


def test_generated_files_are_what_the_values_say() -> None:
    assert main(["verify", str(CHART)]) == 0


def test_verify_tells_and_generate_mends(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "values.yaml").write_text("# About.\n\n# Pods.\n# @ {minimum: 1}\nreplicas: 2\n")
    assert main(["verify", str(tmp_path)]) == 1
    assert "make generate-chart" in capsys.readouterr().err
    assert main(["generate", str(tmp_path)]) == 0 == main(["verify", str(tmp_path)])
    schema = json.loads((tmp_path / "values.schema.json").read_text())
    assert schema["properties"]["replicas"] == {"description": "Pods.", "type": "integer", "minimum": 1}
    assert main(["verify", str(tmp_path / "absent")]) == 2


def test_values_that_are_no_block_style_are_refused() -> None:
    with pytest.raises(UsageError, match="line 2"):
        read_values("a: 1\n'b': 2\n")


def test_every_default_is_valid_and_every_value_documented() -> None:
    from jsonschema import Draft7Validator

    text = (CHART / "values.yaml").read_text()
    entries = read_values(text)
    schema = values_schema(entries)
    Draft7Validator.check_schema(schema)
    assert not list(Draft7Validator(schema).iter_errors(yaml.safe_load(text)))
    readme = (CHART / "README.md").read_text()
    for top in entries:
        for entry in top.walk():
            if not entry.children:
                assert f"`{entry.name}`" in readme


def test_golden_default() -> None:
    text = without_secret(render_text())
    if os.environ.get("TRITONSTACK_RENEW_GOLDEN"):
        GOLDEN.parent.mkdir(exist_ok=True)
        GOLDEN.write_text(text)
    assert GOLDEN.read_text() == text, "look at the difference, then `make golden`"


def test_dashboards_have_the_names_of_their_files() -> None:
    for path in generated_files(CHART):
        if path.parent.name == "dashboards":
            document = json.loads(path.read_text())
            assert document["uid"] == f"tritonstack-{path.stem}"
            assert len({panel["id"] for panel in document["panels"]}) == len(document["panels"])
    assert (ROOT / "docs" / "kubernetes.md").exists()

"""Damaged files become findings: whatever bytes stand in a repository, `check` answers."""

from __future__ import annotations

import json
import random
from pathlib import Path

from repository_builder import add_ensemble, add_model, batching, ensemble, identity_model, step

from tritonstack_export.check import check_repository
from tritonstack_export.check.report_text import report_text

PIECES = [
    "{", "}", "[", "]", '"', "'", ":", ",", "<", ">", ";", "-1", "0", "9" * 22, "1_0", "+", "\\", "\\q", "é", "\0",
    "\ufeff", "#", "\n", "name", "dims", "TYPE_FP32", "key", "value", "step", "reshape { shape: [ ] }", "${x}", "",
]  # fmt: skip


def damaged(text: str, rng: random.Random) -> str:
    for _ in range(rng.randint(1, 3)):
        start = rng.randrange(len(text))
        text = text[:start] + rng.choice(PIECES) + text[start + rng.randint(0, 12) :]
    return text


def test_damage_is_found_and_never_raises(tmp_path: Path) -> None:
    rng = random.Random(20261130)
    config = batching(
        "dynamic_batching { preferred_batch_size: [ 4, 8 ] }\ninstance_group [ { count: 1 kind: KIND_AUTO } ]\n"
        'model_warmup { name: "w" batch_size: 1 inputs { key: "x" value { data_type: TYPE_FP32 dims: 3 '
        "zero_data: true } } }\n"
    )
    outer = ensemble(step("net", "raw", "mid"), step("net", "mid", "out"))
    model = identity_model().SerializeToString()
    add_model(tmp_path, "net", config, model)
    add_ensemble(tmp_path, "ens", outer)
    assert check_repository(tmp_path, gpus=0).findings == ()
    for _ in range(300):
        data = bytearray(model)
        for _ in range(rng.randint(0, 3)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        (tmp_path / "net" / "1" / "model.onnx").write_bytes(bytes(data[: rng.randint(1, len(data) * 3)]))
        (tmp_path / "net" / "config.pbtxt").write_text(damaged(config, rng))
        (tmp_path / "ens" / "config.pbtxt").write_text(damaged(outer, rng))
        report = check_repository(tmp_path, gpus=0)
        json.dumps(report.as_dict(), allow_nan=False).encode()
        report_text(report).encode()
        assert all("\n" not in finding.message and finding.fix for finding in report.findings)

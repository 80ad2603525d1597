"""Small python-backend models made for load tests."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

MODEL = """
import time

import numpy as np
import triton_python_backend_utils as pb


class TritonPythonModel:
    def initialize(self, args):
        import json

        config = json.loads(args["model_config"])
        parameters = {name: entry["string_value"] for name, entry in config.get("parameters", {}).items()}
        self.delay_s = float(parameters.get("delay_s", "0"))
        self.fail_every = int(parameters.get("fail_every", "0"))
        self.input = config["input"][0]["name"]
        self.seen = 0

    def execute(self, requests):
        time.sleep(self.delay_s)
        responses = []
        for request in requests:
            self.seen += 1
            if self.fail_every and self.seen % self.fail_every == 0:
                responses.append(pb.InferenceResponse(error=pb.TritonError("refused on purpose")))
                continue
            x = pb.get_input_tensor_by_name(request, self.input).as_numpy()
            y = x if x.dtype == object else x + 1
            responses.append(pb.InferenceResponse([pb.Tensor("y", y)]))
        return responses
"""


def _entry(
    *,
    dims: str = "3",
    datatype: str = "FP32",
    batch: int = 8,
    extra: str = "",
    inputs: str = "",
    parameters: dict[str, str] | None = None,
) -> str:
    listed = "".join(
        f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}\n'
        for key, value in (parameters or {}).items()
    )
    return f"""backend: "python"
max_batch_size: {batch}
input {{ name: "x" data_type: TYPE_{datatype} dims: [{dims}] }}
{inputs}
output {{ name: "y" data_type: TYPE_{"STRING" if datatype == "STRING" else datatype} dims: [{dims}] }}
instance_group {{ count: 1 kind: KIND_CPU }}
{extra}
{listed}"""


ENSEMBLE = """platform: "ensemble"
max_batch_size: 8
input { name: "x" data_type: TYPE_FP32 dims: [3] }
output { name: "y" data_type: TYPE_FP32 dims: [3] }
ensemble_scheduling {
  step { model_name: "plus_one" model_version: -1 input_map { key: "x" value: "x" } output_map { key: "y" value: "t" } }
  step { model_name: "sleepy" model_version: -1 input_map { key: "x" value: "t" } output_map { key: "y" value: "y" } }
}
"""

IMAGE = (
    '{\\"resize\\": {\\"mode\\": \\"exact\\", \\"height\\": 8, \\"width\\": 8}, '
    '\\"mean\\": [127, 127, 127], \\"std\\": [128, 128, 128]}'
)

ENTRIES = {
    "plus_one": _entry(extra="dynamic_batching { max_queue_delay_microseconds: 2000 }"),
    "sleepy": _entry(parameters={"delay_s": "0.02"}),
    "flaky": _entry(parameters={"fail_every": "4"}),
    "broken": _entry(parameters={"fail_every": "1"}),
    "ids": _entry(
        dims="-1", datatype="INT64", inputs='input { name: "mask" data_type: TYPE_INT64 dims: [-1] optional: true }'
    ),
    "unbatched": _entry(dims="2, 3", batch=0),
    "text": _entry(dims="1", datatype="STRING"),
    "pictures": _entry(dims="3, 8, 8", parameters={"tritonstack.image": IMAGE}),
    "cached": _entry(extra="response_cache { enable: true }"),
}


def make_repository(folder: Path, *, names: Collection[str] = (*ENTRIES, "both")) -> Path:
    """A repository with the models called `names`."""
    for name in names:
        if name == "both":
            (folder / name / "1").mkdir(parents=True)
            (folder / name / "config.pbtxt").write_text(ENSEMBLE)
            continue
        version = folder / name / "1"
        version.mkdir(parents=True)
        (version / "model.py").write_text(MODEL)
        (folder / name / "config.pbtxt").write_text(ENTRIES[name])
    return folder

"""A python-backend model whose work is one OpenAI Triton kernel: raw pictures of any size to normalised tensors."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
import triton_python_backend_utils as pb_utils

# The kernel and its tables lie beside this file, which the stub does not put on the path by itself.
sys.path.insert(0, str(Path(__file__).parent))
from fused_resize import FusedResize
from resampling import Plan, read_settings

_TYPES = {"TYPE_FP16": torch.float16, "TYPE_FP32": torch.float32}


class TritonPythonModel:
    """One instance: its own process, its own CUDA context, one device."""

    def initialize(self, args: dict[str, str]) -> None:
        config = json.loads(args["model_config"])
        parameters = {name: value["string_value"] for name, value in config["parameters"].items()}
        output = config["output"][0]
        self.output = output["name"]
        settings = read_settings(parameters)
        if [int(dim) for dim in output["dims"]] != [3, *settings.output]:
            raise ValueError(
                f"output {self.output!r} has dims {output['dims']}; expected [3, H, W] = {settings.output}"
            )
        if output["data_type"] not in _TYPES:
            raise ValueError(f"output {self.output!r} is {output['data_type']}; expected TYPE_FP16 or TYPE_FP32")
        if args["model_instance_kind"] == "GPU":
            # The server tells which device; it does not select it.
            device = torch.device("cuda", int(args["model_instance_device_id"]))
            torch.cuda.set_device(device)
        elif os.environ.get("TRITON_INTERPRET") == "1":
            device = torch.device("cpu")
        else:
            raise ValueError("OpenAI Triton needs a GPU; TRITON_INTERPRET=1 runs the kernel in its slow interpreter")
        self.resize = FusedResize(settings, device, _TYPES[output["data_type"]])
        # Compile now, not in the first request: the sizes that are expected most.
        for sizes in parameters.get("warmup_sizes", "").split():
            height, width = map(int, sizes.split("x"))
            picture = torch.zeros((height, width, 3), dtype=torch.uint8, device=device)
            self.resize([picture], [settings.plan(height, width)])
        self._synchronise()

    def execute(self, requests: list[Any]) -> list[Any]:
        pictures: list[torch.Tensor] = []
        plans: list[Plan] = []
        spans: list[slice | str] = []
        for request in requests:
            begin = len(pictures)
            try:
                batch = self._pictures(request)
                found = [self.resize.settings.plan(*batch.shape[1:3])] * len(batch)
            except ValueError as error:
                spans.append(str(error))  # fails alone
                continue
            pictures += batch.unbind(0)
            plans += found
            spans.append(slice(begin, len(pictures)))
        if pictures:
            results = self.resize(pictures, plans)
            # The next step of an ensemble reads from a stream of its own: done means done.
            self._synchronise()
        responses = []
        for span in spans:
            if isinstance(span, str):
                responses.append(pb_utils.InferenceResponse(error=pb_utils.TritonError(span)))
                continue
            mine = results[span]
            # Memory of a GPU goes by DLPack; what lies on the host, through numpy.
            tensor = (
                pb_utils.Tensor.from_dlpack(self.output, mine)
                if mine.is_cuda
                else pb_utils.Tensor(self.output, mine.numpy())
            )
            responses.append(pb_utils.InferenceResponse([tensor]))
        return responses

    def _pictures(self, request: Any) -> torch.Tensor:
        """uint8 [picture, y, x, channel] on the device. Raises ValueError for other shapes."""
        tensor = pb_utils.get_input_tensor_by_name(request, "image")
        # FORCE_CPU_ONLY_INPUT_TENSORS "no" lets inputs stay on the GPU, but does not promise it.
        if tensor.is_cpu():
            batch = torch.from_numpy(np.ascontiguousarray(tensor.as_numpy()))
        else:
            batch = torch.from_dlpack(tensor)
        if batch.ndim != 4 or batch.shape[3] != 3 or 0 in batch.shape:
            raise ValueError(f"the input is {list(batch.shape)}; expected [batch, height, width, 3]")
        return batch.to(self.resize.device, non_blocking=True)

    def _synchronise(self) -> None:
        if self.resize.device.type == "cuda":
            torch.cuda.current_stream(self.resize.device).synchronize()

"""A model that takes pictures as the bytes of their files, as the ensembles of exported models do."""

from __future__ import annotations

from pathlib import Path

FILE_SIZES = """
import numpy as np
import triton_python_backend_utils as pb


class TritonPythonModel:
    def execute(self, requests):
        answers = []
        for request in requests:
            files = pb.get_input_tensor_by_name(request, "file").as_numpy().ravel()
            if any(not data.startswith((b"\\xff\\xd8", b"\\x89PNG")) for data in files):
                answers.append(pb.InferenceResponse(error=pb.TritonError("neither JPEG nor PNG")))
                continue
            y = np.array([[len(data)] for data in files], np.int64)
            answers.append(pb.InferenceResponse([pb.Tensor("y", y)]))
        return answers
"""

CONFIG = """backend: "python"
max_batch_size: 4
input { name: "file" data_type: TYPE_STRING dims: [1] }
output { name: "y" data_type: TYPE_INT64 dims: [1] }
instance_group { count: 1 kind: KIND_CPU }
parameters { key: "tritonstack.image_bytes" value { string_value: "{\\"input\\": \\"file\\"}" } }
"""


def byte_picture_repository(folder: Path) -> Path:
    """A repository with the model `file_sizes`: the length of each file."""
    (folder / "file_sizes" / "1").mkdir(parents=True)
    (folder / "file_sizes" / "1" / "model.py").write_text(FILE_SIZES)
    (folder / "file_sizes" / "config.pbtxt").write_text(CONFIG)
    return folder

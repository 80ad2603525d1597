"""Stateful, streaming and slow python-backend models for tests of sequences, streams and cancellation."""

from __future__ import annotations

from pathlib import Path

# Adds up what a sequence sends, refuses what is out of order, and forgets a sequence at its end.
SUMS = """
import threading
import time

import numpy as np
import triton_python_backend_utils as pb

SUMS = {}


class TritonPythonModel:
    def execute(self, requests):
        answers = []
        for request in requests:
            x = pb.get_input_tensor_by_name(request, "x").as_numpy()
            start, end = (pb.get_input_tensor_by_name(request, name).as_numpy().ravel()[0] for name in ("START", "END"))
            key = request.correlation_id()
            if x[0, 0] < 0:
                answers.append(pb.InferenceResponse(error=pb.TritonError("negative")))
                continue
            if start:
                SUMS[key] = 0
            if key not in SUMS:
                answers.append(pb.InferenceResponse(error=pb.TritonError("never begun")))
                continue
            SUMS[key] += int(x[0, 0])
            total = SUMS.pop(key) if end else SUMS[key]
            y = np.array([[total, len(SUMS)]], np.int32)
            answers.append(pb.InferenceResponse([pb.Tensor("y", y)]))
        return answers
"""

# x[0] answers, x[1] milliseconds apart; fails after them where x[2] is 1.
STREAM = """
import threading
import time

import numpy as np
import triton_python_backend_utils as pb


class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            x = pb.get_input_tensor_by_name(request, "x").as_numpy()
            threading.Thread(target=self.answer, args=(request.get_response_sender(), x), daemon=True).start()
        return None

    def answer(self, sender, x):
        count, gap_ms, fails = (int(v) for v in x)
        for number in range(count):
            time.sleep(gap_ms / 1e3)
            sender.send(pb.InferenceResponse([pb.Tensor("y", np.array([number], np.int32))]))
        if fails:
            sender.send(pb.InferenceResponse(error=pb.TritonError("broke off")))
        sender.send(flags=pb.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""

# Sleeps x[0, 0] seconds, looking every few milliseconds whether it was cancelled, and counts what it finished.
PATIENT = """
import time

import numpy as np
import triton_python_backend_utils as pb


class TritonPythonModel:
    def initialize(self, args):
        self.finished = self.cancelled = 0

    def execute(self, requests):
        answers = []
        for request in requests:
            x = pb.get_input_tensor_by_name(request, "x").as_numpy()
            until = time.monotonic() + float(x[0, 0])
            while time.monotonic() < until and not request.is_cancelled():
                time.sleep(0.002)
            self.cancelled += request.is_cancelled()
            self.finished += not request.is_cancelled()
            y = np.array([[self.finished, self.cancelled]], np.float32)
            answers.append(pb.InferenceResponse([pb.Tensor("y", y)]))
        return answers
"""

_CONTROL = """
sequence_batching {
  max_sequence_idle_microseconds: 30000000
  control_input [
    { name: "START" control [ { kind: CONTROL_SEQUENCE_START int32_false_true: [0, 1] } ] },
    { name: "END" control [ { kind: CONTROL_SEQUENCE_END int32_false_true: [0, 1] } ] }
  ]
  direct { }
}
"""

_ENTRIES = {
    "sums": (SUMS, 4, "INT32", "1", "INT32", "2", _CONTROL),
    "stream": (STREAM, 0, "INT32", "3", "INT32", "1", "model_transaction_policy { decoupled: true }"),
    "patient": (PATIENT, 1, "FP32", "1", "FP32", "2", "dynamic_batching { }"),
}


def make_sequence_repository(folder: Path) -> Path:
    """A repository with the models of this file."""
    for name, (code, batch, kind_in, dims_in, kind_out, dims_out, extra) in _ENTRIES.items():
        (folder / name / "1").mkdir(parents=True)
        (folder / name / "1" / "model.py").write_text(code)
        (folder / name / "config.pbtxt").write_text(
            f'backend: "python"\nmax_batch_size: {batch}\n'
            f'input {{ name: "x" data_type: TYPE_{kind_in} dims: [{dims_in}] }}\n'
            f'output {{ name: "y" data_type: TYPE_{kind_out} dims: [{dims_out}] }}\n'
            f"instance_group {{ count: 1 kind: KIND_CPU }}\n{extra}\n"
        )
    return folder

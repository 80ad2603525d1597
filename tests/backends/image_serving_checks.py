"""Checks of a running server that hold on every kind of instance, and the ensemble they need."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from image_backend_models import INPUT, OUTPUT, pixels
from numpy.typing import NDArray
from PIL import Image

from tritonstack import Client, SharedMemoryRegion
from tritonstack.image import ImagePreprocessing, Resize

SMALL = ImagePreprocessing(resize=Resize("exact", 16, 16))


def write_two_steps(repository: Path, *, decoder: str, shrinker: str) -> None:
    """The ensemble ``two_steps``: `decoder` makes frames of pictures, `shrinker` samples of 16 × 16 of frames."""
    (repository / "two_steps" / "1").mkdir(parents=True)
    (repository / "two_steps" / "config.pbtxt").write_text(f"""name: "two_steps"
platform: "ensemble"
max_batch_size: 8
input {{ name: "{INPUT}" data_type: TYPE_STRING dims: [ 1 ] }}
output {{ name: "{OUTPUT}" data_type: TYPE_FP32 dims: [ 3, 16, 16 ] }}
ensemble_scheduling {{
  step {{ model_name: "{decoder}" model_version: -1
    input_map {{ key: "{INPUT}" value: "{INPUT}" }} output_map {{ key: "{OUTPUT}" value: "frames" }} }}
  step {{ model_name: "{shrinker}" model_version: -1
    input_map {{ key: "{INPUT}" value: "frames" }} output_map {{ key: "{OUTPUT}" value: "{OUTPUT}" }} }}
}}
""")


def check_eight_ragged_frames(
    client: Client, model: str, operation: ImagePreprocessing, frames: Sequence[NDArray[np.uint8]]
) -> None:
    """Eight frames uint8 [height, width, 3] of different sizes, sent at once, share few runs and come out right."""
    before = client.statistics(model)[0]
    with ThreadPoolExecutor(8) as pool:
        answers: list[Any] = list(pool.map(lambda frame: client.infer(model, {INPUT: frame[None]})[OUTPUT][0], frames))
    for frame, answer in zip(frames, answers, strict=True):
        np.testing.assert_array_equal(answer, operation.preprocess(Image.fromarray(frame)))
    after = client.statistics(model)[0]
    assert after.inference_count - before.inference_count == 8
    assert after.execution_count - before.execution_count <= 3


def check_shared_memory(client: Client, shrinker: str, shifts: Iterable[int]) -> None:
    """Frames and samples in a region; the samples begin `shifts` bytes behind a place that suits their values."""
    frames = np.stack([pixels(33, 47, seed) for seed in range(4)])
    expected = np.stack([SMALL.preprocess(Image.fromarray(frame)) for frame in frames])
    room = -(-frames.nbytes // 8) * 8
    with SharedMemoryRegion(room + expected.nbytes + 8) as region:
        client.register(region)
        source = region.slot(frames.shape, "UINT8")
        source.write(frames)
        for shift in shifts:
            target = region.slot(expected.shape, "FP32", offset=room + shift)
            result = client.infer(shrinker, {INPUT: source}, outputs={OUTPUT: target})
            np.testing.assert_array_equal(result[OUTPUT], expected)
        client.unregister(region)

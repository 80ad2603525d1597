"""The direct tests of the GPU path (backends/image_preprocess/tests/gpu/test_gpu.py) as a part of `make test-gpu`.

They call the core through its C entry. `make backend` builds that library where an nvcc is found;
TRITONSTACK_IMAGE_LIBRARY names one built elsewhere (build_library.sh).
"""

from __future__ import annotations

import os

from image_kinds import GPU_TESTS, direct_library, load_module

os.environ["TRITONSTACK_IMAGE_LIBRARY"] = str(direct_library())
_direct = load_module(GPU_TESTS / "test_gpu.py", "image_library_tests")
pytestmark = _direct.pytestmark
globals().update(
    {
        name: value
        for name, value in vars(_direct).items()
        if name.startswith("test_") or name in ("library", "pictures")
    }
)

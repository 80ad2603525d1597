"""Python-based Triton backend `onnxruntime` for servers that lack the official C++ one.

It takes the same `config.pbtxt` as the official backend: the model file is `<version>/model.onnx` (or
`default_model_filename`), session options are the official parameter names (`intra_op_thread_count`,
`inter_op_thread_count`, `execution_mode`, `enable_mem_arena`, `enable_mem_pattern`, `session.*`), graph
optimisation is `optimization { graph { level } }`, and CUDA provider options come from
`optimization { execution_accelerators { gpu_execution_accelerator [ { name: "cuda" } ] } }`.

On a GPU, onnxruntime searches its convolution algorithms anew whenever the batch size changes, and remembers only the
last: with dynamic batching nearly every execution would search (EfficientNet-Lite0 on an H200: 130 to 210 ms instead of
1.6). A model with convolutions therefore gets one session for each of a few batch sizes (1, the preferred ones, the
largest; or the parameter `batch_buckets: "1,8,32"`, "0" for none), and smaller batches are filled up with copies of
their last row. Each session holds the weights once more.

On a GPU instance the CUDA provider is used when this onnxruntime has it, and tensors are bound to the device
(I/O binding): inputs that arrive on the GPU are read where they lie. With the parameter `gpu_outputs: "1"` outputs
stay on the GPU too, for the next step of an ensemble. What really runs is written to the log in one line.

`python_site` (a parameter, or the variable TRITONSTACK_ONNXRUNTIME_SITE) names a folder searched first for the
onnxruntime package, since the interpreter's own site-packages may hold a build without CUDA.
"""

from __future__ import annotations

import importlib
import json
import mmap
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import triton_python_backend_utils as pb  # provided by the stub process

# Graph optimisation levels of the official backend: -1 basic, 1 extended, 2 none, anything else all.
_GRAPH_LEVELS = {-1: "ORT_ENABLE_BASIC", 1: "ORT_ENABLE_EXTENDED", 2: "ORT_DISABLE_ALL"}

# CUDA provider options that the official backend still takes as numbers among the parameters.
_CUDA_PARAMETERS = {
    "cudnn_conv_algo_search": ("EXHAUSTIVE", "HEURISTIC", "DEFAULT"),
    "arena_extend_strategy": ("kNextPowerOfTwo", "kSameAsRequested"),
    "do_copy_in_default_stream": ("0", "1"),
}

# onnxruntime's own default searches convolution algorithms exhaustively for every new batch size, about a second each
# on an H200: dynamic batching then serves its first requests of each size in seconds instead of milliseconds.
CUDA_DEFAULTS = {"cudnn_conv_algo_search": "HEURISTIC"}

# ONNX element type names as onnxruntime prints them, for binding device buffers of a known type.
_ELEMENT_TYPES = {
    "tensor(float)": np.float32,
    "tensor(float16)": np.float16,
    "tensor(double)": np.float64,
    "tensor(int8)": np.int8,
    "tensor(int16)": np.int16,
    "tensor(int32)": np.int32,
    "tensor(int64)": np.int64,
    "tensor(uint8)": np.uint8,
    "tensor(uint16)": np.uint16,
    "tensor(uint32)": np.uint32,
    "tensor(uint64)": np.uint64,
    "tensor(bool)": np.bool_,
}


@dataclass(frozen=True)
class SessionSettings:
    """What the config asks of one onnxruntime session; 0 threads means onnxruntime's own default."""

    intra_op_threads: int = 0
    inter_op_threads: int = 0
    parallel: bool = False
    mem_arena: bool = True
    mem_pattern: bool = True
    graph_level: str = "ORT_ENABLE_ALL"
    entries: tuple[tuple[str, str], ...] = ()
    cuda_options: tuple[tuple[str, str], ...] = ()
    arena_shrinkage: str | None = None
    gpu_outputs: bool = False
    batch_buckets: tuple[int, ...] = ()

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> SessionSettings:
        """Read a model config (the JSON form Triton hands over). Raises ValueError naming the bad parameter."""
        parameters = {key: value["string_value"] for key, value in config.get("parameters", {}).items()}
        optimization = config.get("optimization", {})
        level = int(optimization.get("graph", {}).get("level", 0))
        accelerators = optimization.get("execution_accelerators", {}).get("gpu_execution_accelerator", [])
        cuda = {
            name: names[_whole(parameters, name, 0, most=len(names) - 1)]
            for name, names in _CUDA_PARAMETERS.items()
            if name in parameters
        }
        if "gpu_mem_limit" in parameters:
            cuda["gpu_mem_limit"] = str(_whole(parameters, "gpu_mem_limit", 0))
        for accelerator in accelerators:
            if accelerator.get("name") == "cuda":
                cuda.update(accelerator.get("parameters", {}))
        return cls(
            intra_op_threads=_whole(parameters, "intra_op_thread_count", 0),
            inter_op_threads=_whole(parameters, "inter_op_thread_count", 0),
            parallel=_whole(parameters, "execution_mode", 0, most=1) == 1,
            mem_arena=_whole(parameters, "enable_mem_arena", 1, most=1) == 1,
            mem_pattern=_whole(parameters, "enable_mem_pattern", 1, most=1) == 1,
            graph_level=_GRAPH_LEVELS.get(level, "ORT_ENABLE_ALL"),
            entries=tuple(sorted((k, v) for k, v in parameters.items() if k.startswith("session."))),
            cuda_options=tuple(sorted((str(k), str(v)) for k, v in cuda.items())),
            arena_shrinkage=parameters.get("memory.enable_memory_arena_shrinkage"),
            gpu_outputs=_whole(parameters, "gpu_outputs", 0, most=1) == 1,
            batch_buckets=_buckets(config, parameters.get("batch_buckets")),
        )


def _whole(parameters: Mapping[str, str], name: str, default: int, *, most: int | None = None) -> int:
    text = parameters.get(name)
    if text is None:
        return default
    if not text.strip().isdigit() or (most is not None and int(text) > most):
        allowed = "a whole number of at least 0" if most is None else f"a whole number from 0 to {most}"
        raise ValueError(f"parameter {name!r} is {text!r}; expected {allowed}")
    return int(text)


def _buckets(config: Mapping[str, Any], text: str | None) -> tuple[int, ...]:
    """Batch sizes to run at, ascending and ending in the largest allowed; () to run each batch as it comes."""
    largest = int(config.get("max_batch_size", 0))
    if largest == 0 or text == "0":
        return ()
    if text is None:
        sizes = {1, *config.get("dynamic_batching", {}).get("preferred_batch_size", [])}
    else:
        words = [word.strip() for word in text.split(",")]
        if not all(word.isdigit() and 1 <= int(word) <= largest for word in words):
            raise ValueError(f"parameter 'batch_buckets' is {text!r}; expected sizes from 1 to {largest}, or 0")
        sizes = {int(word) for word in words}
    return tuple(sorted({*map(int, sizes), largest}))


def _has_convolutions(path: Path) -> bool:
    """Whether the ONNX graph holds a Conv or ConvTranspose node, by the bytes of its op_type fields (field 4)."""
    with (
        open(str(path).encode(), "rb") as file,  # noqa: PTH123 - bytes, as in initialize
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data,
    ):
        return data.find(b"\x22\x04Conv") >= 0 or data.find(b"\x22\x0dConvTranspose") >= 0


def _import_onnxruntime(site: str | None) -> Any:
    if site:
        if not Path(site).is_dir():
            raise ValueError(f"python_site {site!r} is not a folder")
        sys.path.insert(0, site)
    return importlib.import_module("onnxruntime")


class TritonPythonModel:
    """One model instance: one onnxruntime session, on a GPU one for each batch size it runs at."""

    @staticmethod
    def auto_complete_config(auto_complete_model_config: Any) -> Any:
        """Leave the config as it was written: the exporter states it in full."""
        return auto_complete_model_config

    def initialize(self, args: Mapping[str, str]) -> None:
        """Open the session. Raises with the reason; Triton then reports the model as unavailable."""
        config = json.loads(args["model_config"])
        name = args["model_name"]
        settings = SessionSettings.from_config(config)
        site = config.get("parameters", {}).get("python_site", {}).get("string_value")
        ort = _import_onnxruntime(site or os.environ.get("TRITONSTACK_ONNXRUNTIME_SITE"))

        ort.set_default_logger_severity(3)  # below errors it talks about its own plugin registry
        self._batching = int(config.get("max_batch_size", 0)) > 0
        self._strings = {t["name"] for t in config["input"] if t["data_type"] == "TYPE_STRING"}
        # Per-item scalars: dims [1] on the wire, a tensor without that axis in the model (reshape { shape: [ ] }).
        self._input_shapes = {t["name"]: t["reshape"]["shape"] for t in config["input"] if "reshape" in t}
        self._output_shapes = {t["name"]: t["dims"] for t in config["output"] if "reshape" in t}
        self._outputs = [t["name"] for t in config["output"]]
        self._name = name
        self._device_inputs: set[str] = set()

        wants_gpu = args["model_instance_kind"] == "GPU"
        self._device_id = int(args["model_instance_device_id"]) if wants_gpu else 0
        if wants_gpu and hasattr(ort, "preload_dlls"):
            ort.preload_dlls()
        self._cuda = wants_gpu and "CUDAExecutionProvider" in ort.get_available_providers()
        self._gpu_outputs = self._cuda and settings.gpu_outputs

        folder = Path(args["model_repository"]) / args["model_version"]
        path = folder / _model_filename(config)
        # The stub's interpreter takes file names for ASCII whatever the locale says; bytes pass through as they are.
        if not os.path.isfile(str(path).encode()):  # noqa: PTH113
            raise ValueError(f"model file {path.name!r} is not in version folder {args['model_version']!r} of {name!r}")
        self._ort = ort
        self._path = path
        self._settings = settings
        self._session = self._open()
        self._input_types = {i.name: i.type for i in self._session.get_inputs()}
        self._run_options = ort.RunOptions()
        if settings.arena_shrinkage is not None:
            self._run_options.add_run_config_entry("memory.enable_memory_arena_shrinkage", settings.arena_shrinkage)
        # By batch size; 0 stands for "as it comes". The first session opened serves the first size that is needed.
        self._sessions: dict[int, Any] = {}
        bucketed = self._cuda and not settings.gpu_outputs and _has_convolutions(path)
        self._batch_buckets = settings.batch_buckets if bucketed else ()
        if missing := set(self._input_types) - {t["name"] for t in config["input"]}:
            raise ValueError(f"model inputs {sorted(missing)} are not in the config of {name!r}")
        if unknown := set(self._outputs) - {o.name for o in self._session.get_outputs()}:
            raise ValueError(f"outputs {sorted(unknown)} of the config of {name!r} are not in the model")
        providers = self._session.get_providers()
        kind = args["model_instance_kind"]
        pb.Logger.log_info(
            f"tritonstack-onnxruntime model={name} version={args['model_version']} kind={kind} "
            f"device={self._device_id} providers={','.join(providers)} onnxruntime={ort.__version__}"
        )
        if wants_gpu and "CUDAExecutionProvider" not in providers:
            pb.Logger.log_warn(
                f"tritonstack-onnxruntime model={name} runs on the CPU although its instance is on a GPU: "
                f"onnxruntime {ort.__version__} has no usable CUDA provider"
            )
            self._cuda = self._gpu_outputs = False

    def _open(self) -> Any:
        """A new session of the model."""
        ort, settings = self._ort, self._settings
        options = ort.SessionOptions()
        options.intra_op_num_threads = settings.intra_op_threads
        options.inter_op_num_threads = settings.inter_op_threads
        options.execution_mode = (
            ort.ExecutionMode.ORT_PARALLEL if settings.parallel else ort.ExecutionMode.ORT_SEQUENTIAL
        )
        options.enable_cpu_mem_arena = settings.mem_arena
        options.enable_mem_pattern = settings.mem_pattern
        options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, settings.graph_level)
        options.log_severity_level = 3
        for key, value in settings.entries:
            options.add_session_config_entry(key, value)
        providers: list[Any] = ["CPUExecutionProvider"]
        if self._cuda:
            cuda = {"device_id": str(self._device_id), **CUDA_DEFAULTS, **dict(settings.cuda_options)}
            providers.insert(0, ("CUDAExecutionProvider", cuda))
        # Without fallback: onnxruntime's own retry on the CPU would print to stdout and hide why CUDA failed.
        return ort.InferenceSession(str(self._path), options, providers=providers, enable_fallback=0)

    def execute(self, requests: Sequence[Any]) -> list[Any]:
        """Answer each request; a request that fails gets its own error and never spoils its batch."""
        responses: list[Any] = [None] * len(requests)
        for group in self._groups(requests):
            self._answer(group, responses)
        return responses

    def _groups(self, requests: Sequence[Any]) -> Iterable[list[tuple[int, Any, dict[str, Any]]]]:
        """Requests that can run as one batch: same inputs, same shapes behind the batch axis."""
        groups: dict[Any, list[tuple[int, Any, dict[str, Any]]]] = {}
        for index, request in enumerate(requests):
            inputs = {tensor.name(): tensor for tensor in request.inputs()}
            key: Any = index
            if self._batching:
                key = tuple(sorted((n, tuple(_shape(t)[1:])) for n, t in inputs.items()))
            groups.setdefault(key, []).append((index, request, inputs))
        return groups.values()

    def _answer(self, group: list[tuple[int, Any, dict[str, Any]]], responses: list[Any]) -> None:
        try:
            rows, outputs = self._run([inputs for _, _, inputs in group])
        except Exception as error:
            if len(group) == 1:
                index = group[0][0]
                responses[index] = pb.InferenceResponse(error=pb.TritonError(_reason(error)))
            else:
                for member in group:
                    self._answer([member], responses)
            return
        start = 0
        for (index, request, _), count in zip(group, rows, strict=True):
            wanted = set(request.requested_output_names())
            tensors = [
                self._response_tensor(name, value, start, count, whole=len(group) == 1)
                for name, value in outputs.items()
                if name in wanted
            ]
            responses[index] = pb.InferenceResponse(output_tensors=tensors)
            start += count

    def _run(self, members: list[dict[str, Any]]) -> tuple[list[int], dict[str, Any]]:
        """Run one group. Returns the rows of each member and the outputs by name ([rows, …] when batching)."""
        feeds: dict[str, Any] = {}
        rows = [_shape(next(iter(m.values())))[0] if self._batching and m else 1 for m in members]
        for name in members[0]:
            tensors = [m[name] for m in members]
            if self._cuda and len(tensors) == 1 and not tensors[0].is_cpu():
                feeds[name] = tensors[0]
                self._tell_device_input(name)
                continue
            arrays = [_as_numpy(t, strings=name in self._strings) for t in tensors]
            array = arrays[0] if len(arrays) == 1 else np.concatenate(arrays)
            feeds[name] = array.reshape(_reshaped(array.shape, self._input_shapes.get(name), self._batching))
        values = self._run_on_gpu(feeds, sum(rows)) if self._cuda else self._run_on_cpu(feeds)
        self._require_rows(values, sum(rows))
        return rows, dict(zip(self._outputs, values, strict=True))

    def _run_on_cpu(self, feeds: dict[str, Any]) -> list[Any]:
        return list(self._session.run(self._outputs, feeds, self._run_options))

    def _require_rows(self, values: Sequence[Any], rows: int) -> None:
        """Every output has one row per row of the batch; without that, requests would get each other's rows.

        Values are numpy arrays or OrtValues, in the order of the outputs. Raises ValueError naming the output.
        """
        if not self._batching:
            return
        for name, value in zip(self._outputs, values, strict=True):
            shape = list(value.shape if isinstance(value, np.ndarray) else value.shape())
            if shape[:1] != [rows]:
                raise ValueError(
                    f"output {name!r} has shape {shape} for a batch of {rows}: it does not follow the batch "
                    "dimension; serve the model with max_batch_size: 0"
                )

    def _run_on_gpu(self, feeds: dict[str, Any], rows: int) -> list[Any]:
        """Run `rows` rows, filled up to a batch size that has a session; tensors on the device run as they come."""
        size = 0
        if all(isinstance(value, np.ndarray) for value in feeds.values()):
            size = next((bucket for bucket in self._batch_buckets if bucket >= rows), 0)
        if size not in self._sessions:
            self._sessions[size] = self._open() if self._sessions else self._session
        if size <= rows:
            return self._run_bound(self._sessions[size], feeds)
        padded = {name: np.concatenate([a, np.repeat(a[-1:], size - rows, axis=0)]) for name, a in feeds.items()}
        values = self._run_bound(self._sessions[size], padded)
        self._require_rows(values, size)
        return [value[:rows] for value in values]

    def _tell_device_input(self, name: str) -> None:
        """Say once that an input is read where it lies, so that a chain of models on a GPU can be seen to be one."""
        if name not in self._device_inputs:
            self._device_inputs.add(name)
            pb.Logger.log_info(f"tritonstack-onnxruntime model={self._name} input={name} is read on the device")

    def _run_bound(self, session: Any, feeds: Mapping[str, Any]) -> list[Any]:
        """Run with I/O binding on this instance's GPU; values are numpy arrays or, with gpu_outputs, OrtValues."""
        binding = session.io_binding()
        keep_alive = []
        for name, value in feeds.items():
            if isinstance(value, np.ndarray):
                # The binding keeps no reference and copies when the session runs.
                keep_alive.append(np.ascontiguousarray(value))
                binding.bind_cpu_input(name, keep_alive[-1])
                continue
            ort_value = self._ort.OrtValue(
                self._ort.capi._pybind_state.OrtValue.from_dlpack(
                    value.to_dlpack(), self._input_types[name] == "tensor(bool)"
                )
            )
            keep_alive.append(ort_value)
            shape = _reshaped(ort_value.shape(), self._input_shapes.get(name), self._batching)
            dtype = _ELEMENT_TYPES[self._input_types[name]]
            binding.bind_input(name, "cuda", self._device_id, dtype, shape, ort_value.data_ptr())
        for name in self._outputs:
            if self._gpu_outputs:
                binding.bind_output(name, "cuda", self._device_id)
            else:
                binding.bind_output(name, "cpu")
        session.run_with_iobinding(binding, self._run_options)
        if self._gpu_outputs:
            binding.synchronize_outputs()
            return list(binding.get_outputs())
        return list(binding.copy_outputs_to_cpu())

    def _response_tensor(self, name: str, value: Any, start: int, count: int, *, whole: bool) -> Any:
        if not isinstance(value, np.ndarray):
            if whole and name not in self._output_shapes:
                return pb.Tensor.from_dlpack(name, value._ortvalue.to_dlpack())
            value = value.numpy()
        if self._batching and not whole:
            value = value[start : start + count]
        value = value.reshape(_reshaped(value.shape, self._output_shapes.get(name), self._batching))
        return pb.Tensor(name, np.ascontiguousarray(value))

    def finalize(self) -> None:
        """Close the session."""
        self._session = None
        self._sessions.clear()


def _model_filename(config: Mapping[str, Any]) -> str:
    return str(config.get("default_model_filename") or "model.onnx")


def _shape(tensor: Any) -> list[int]:
    """Shape of a request tensor, on whichever device it lies."""
    return list(tensor.shape())


def _reshaped(shape: Sequence[int], reshape: Sequence[int] | None, batching: bool) -> list[int]:
    """`shape` on the other side of the config's `reshape`, whose shape leaves the batch axis out; None: as it is."""
    if reshape is None:
        return list(shape)
    return ([shape[0]] if batching else []) + list(reshape)


def _as_numpy(tensor: Any, *, strings: bool) -> np.ndarray[Any, Any]:
    """The tensor as an array. BYTES become str, as onnxruntime wants them; they must be UTF-8."""
    if not tensor.is_cpu():
        from torch.utils.dlpack import from_dlpack  # only reached with several GPU requests in one batch

        return np.asarray(from_dlpack(tensor.to_dlpack()).cpu().numpy())
    array = tensor.as_numpy()
    if not strings:
        return np.asarray(array)
    flat = [item.decode("utf-8") if isinstance(item, bytes) else str(item) for item in array.ravel()]
    return np.array(flat, dtype=object).reshape(array.shape)


def _reason(error: Exception) -> str:
    """The first meaningful line of an error; onnxruntime's own texts carry no stack worth showing."""
    text = str(error).strip() or type(error).__name__
    return text.splitlines()[0]

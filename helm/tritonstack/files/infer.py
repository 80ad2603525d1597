"""One inference for each model over HTTP and over gRPC, then the scaling metric read back. Exit code 0 or 1."""

import json
import sys
import time
import urllib.parse
import urllib.request
from pathlib import Path

import numpy as np
import tritonclient.grpc as triton
from tritonclient.utils import triton_to_np_dtype


def zeros(config, metadata):
    """Zeros (or empty texts) for each input: 1 for sizes that are free. `config` and `metadata` as the server says."""
    ragged = {entry.name for entry in config.input if entry.optional}
    for entry in metadata.inputs:
        if entry.name in ragged:
            continue
        shape = [1 if size < 0 else size for size in entry.shape]
        dtype = triton_to_np_dtype(entry.datatype)
        yield entry, (np.full(shape, b"", object) if dtype is np.object_ else np.zeros(shape, dtype))


def over_grpc(client, name, values, timeout_s):
    inputs = []
    for entry, array in values:
        tensor = triton.InferInput(entry.name, list(array.shape), entry.datatype)
        tensor.set_data_from_numpy(array)
        inputs.append(tensor)
    return client.infer(name, inputs, client_timeout=timeout_s).get_response().outputs


def over_http(host, name, values, timeout_s):
    inputs = [
        {
            "name": entry.name,
            "shape": list(array.shape),
            "datatype": entry.datatype,
            "data": [""] * array.size if entry.datatype == "BYTES" else array.ravel().tolist(),
        }
        for entry, array in values
        # JSON has no form for these; gRPC has tried the model already.
        if entry.datatype not in ("FP16", "BF16")
    ]
    if len(inputs) < len(values):
        return None
    request = urllib.request.Request(
        f"http://{host}/v2/models/{name}/infer",
        json.dumps({"inputs": inputs}).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=timeout_s) as answer:  # noqa: S310 (of the chart)
        return json.load(answer)["outputs"]


def patiently(what, deadline, attempt):
    """The result of `attempt`, tried until it succeeds or the deadline passes."""
    while True:
        try:
            return attempt()
        except Exception as error:
            if time.monotonic() > deadline:
                raise SystemExit(f"{what}: {error}") from error
            time.sleep(2)


def read_back(address, trigger, timeout_s):
    url = f"{address}/api/v1/query?{urllib.parse.urlencode({'query': trigger['query']})}"
    with urllib.request.urlopen(url, timeout=timeout_s) as answer:  # noqa: S310 (schema: http or https)
        result = json.load(answer)["data"]["result"]
    if len(result) != 1:
        raise ValueError(f"{len(result)} values instead of one; is the monitor picked up by this Prometheus?")
    return float(result[0]["value"][1])


def main(plan):
    deadline = time.monotonic() + plan["timeout_s"]
    http, grpc = f"{plan['host']}:{plan.get('http', 8000)}", f"{plan['host']}:{plan.get('grpc', 8001)}"
    client = triton.InferenceServerClient(grpc)
    for name in plan["models"]:
        patiently(name, deadline, lambda name=name: client.get_model_metadata(name, client_timeout=10))
        metadata = client.get_model_metadata(name, client_timeout=10)
        values = list(zeros(client.get_model_config(name, client_timeout=10).config, metadata))
        outputs = patiently(f"{name} over gRPC", deadline, lambda n=name, v=values: over_grpc(client, n, v, 30))
        print(f"{name} over gRPC: {', '.join(f'{o.name} {list(o.shape)}' for o in outputs)}")
        answers = patiently(f"{name} over HTTP", deadline, lambda n=name, v=values: over_http(http, n, v, 30))
        print(
            f"{name} over HTTP: "
            + (", ".join(f"{o['name']} {o['shape']}" for o in answers) if answers else "its dtypes have no JSON form")
        )
    if plan["prometheus"]:
        for trigger in plan["triggers"]:
            what = f"{trigger['kind']} of {trigger['model']}"
            value = patiently(what, deadline, lambda t=trigger: read_back(plan["prometheus"], t, 10))
            print(f"{what}: {value:.4g}, one pod should carry {trigger['threshold']}")


if __name__ == "__main__":
    with Path(sys.argv[1]).open() as file:
        main(json.load(file))

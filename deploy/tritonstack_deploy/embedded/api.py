"""What a running server tells about its models over HTTP."""

from __future__ import annotations

import http.client
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import quote

from tritonstack_deploy.embedded.log_lines import LogLine, short_reason

_NO_REASON = "no reason given"
# What a path segment may hold as it is: Triton 2.51 does not decode percent signs in model names.
_PATH_SAFE = "!$&'()*+,;=:@~"


@dataclass(frozen=True)
class ModelState:
    """State of one model version as the repository index tells it; `version` is "-" when none was tried."""

    name: str
    version: str
    state: str
    reason: str

    @property
    def ready(self) -> bool:
        return self.state == "READY"


@dataclass(frozen=True)
class ServerApi:
    """GET and POST to one server, a connection each: an idle one would hold up its stop. OSError passes through."""

    host: str
    port: int
    headers: Mapping[str, str]

    def get(self, path: str) -> bytes | None:
        """Body of a GET, or None for any answer but 200."""
        return self._request("GET", path)

    def post(self, path: str) -> Any:
        """The JSON answer to an empty POST; an empty list for any answer but 200."""
        body = self._request("POST", path)
        return json.loads(body) if body else []

    def is_live(self) -> bool:
        """Whether Triton calls itself live. As it opens its ports last, a no means that its start has failed."""
        return self.get("/v2/health/live") is not None

    def _request(self, method: str, path: str) -> bytes | None:
        connection = http.client.HTTPConnection(self.host, self.port, timeout=10)
        try:
            connection.request(method, path, headers=dict(self.headers))
            response = connection.getresponse()
            body = response.read()
            return body if response.status == 200 else None
        finally:
            connection.close()


def model_states(api: ServerApi, wanted: Sequence[str], log: Sequence[LogLine]) -> tuple[ModelState, ...]:
    """The state of each version of the `wanted` models; reasons come from the index or else from the `log`."""
    states = {}
    for row in api.post("/v2/repository/index"):
        name, version = str(row["name"]), str(row.get("version", "-"))
        if name in wanted:
            reason = str(row.get("reason", ""))
            states[name, version] = ModelState(name, version, str(row.get("state", "UNAVAILABLE")), reason)
    for name in set(wanted) - {name for name, _ in states}:
        states[name, "-"] = ModelState(name, "-", "UNAVAILABLE", "")
    return tuple(
        _explained(api, state, log)
        for _, state in sorted(states.items())
        # Versions that the policy did not ask for are listed too.
        if not (state.state == "UNAVAILABLE" and state.reason == "unloaded")
    )


def _explained(api: ServerApi, state: ModelState, log: Sequence[LogLine]) -> ModelState:
    if state.ready:
        name = quote(state.name, safe=_PATH_SAFE)
        # A name that needs encoding cannot be asked for over HTTP at all; the index has to do.
        if name != state.name or api.get(f"/v2/models/{name}/versions/{state.version}/ready") is not None:
            return state
        return replace(state, state="UNAVAILABLE", reason="listed as READY but not ready for requests")
    return replace(state, reason=short_reason(state.reason) if state.reason else _reason_from(log, state.name))


def _reason_from(log: Sequence[LogLine], model: str) -> str:
    for line in reversed(log):
        if line.level in ("error", "warning") and model in line.message:
            return short_reason(line.message)
    return _NO_REASON

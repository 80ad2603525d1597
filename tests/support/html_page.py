"""Looking at an HTML page: its elements, the contrast of its colours, and itself in a browser."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path

BROWSER = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
)
VOID = {"meta", "br", "hr"}


class Page(HTMLParser):
    """Collects elements and text, and refuses tags that do not nest."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(text)
        self.close()
        assert self.open == [], self.open

    def handle_starttag(self, name: str, attributes: list[tuple[str, str | None]]) -> None:
        assert len({key for key, _ in attributes}) == len(attributes), f"an attribute twice in {name}"
        self.elements.append((name, dict(attributes)))
        if name not in VOID:
            self.open.append(name)

    def handle_endtag(self, name: str) -> None:
        assert self.open and self.open.pop() == name, name

    def handle_data(self, data: str) -> None:
        if "style" not in self.open:
            self.text += data

    def all(self, name: str) -> list[dict[str, str | None]]:
        return [attributes for found, attributes in self.elements if found == name]


def schemes(style: str) -> tuple[dict[str, str], dict[str, str]]:
    """The colours of a page by name, in its light and in its dark scheme."""
    light, dark = (
        dict(re.findall(r"--([a-z0-9-]+): (#[0-9a-f]{6})", part)) for part in style.split("@media (pref")[:2]
    )
    return light, dark


def contrast(one: str, other: str) -> float:
    """The contrast ratio of WCAG 2 between two colours ``#rrggbb``."""

    def luminance(color: str) -> float:
        parts = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        r, g, b = (p / 12.92 if p <= 0.03928 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
        return 0.2126 * r + 0.7152 * g + 0.0722 * b

    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


@dataclass(frozen=True)
class Shown:
    """A page in a browser: `wide` are the pixels it would take, `shown` those it has; `log` what the browser said."""

    wide: int
    shown: int
    height: int
    count: int
    log: str


def show(folder: Path, text: str, *, width: int, counted: str) -> Shown:
    """Open a page in a frame of `width` pixels. `counted`: JavaScript over the document ``d`` that gives a number."""
    assert BROWSER is not None
    (folder / "report.html").write_text(text, "utf-8")
    frame = (
        f"<!doctype html><iframe id=f src=report.html style='width:{width}px;height:900px'></iframe><pre id=o></pre>"
        "<script>"
        "f.onload=()=>{const d=f.contentDocument,r=d.documentElement;o.textContent=JSON.stringify({wide:r.scrollWidth,"
        f"shown:r.clientWidth,height:d.body.scrollHeight,count:{counted}}})}}</script>"
    )
    (folder / "frame.html").write_text(frame, "utf-8")
    result = subprocess.run(
        [
            BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
            "--allow-file-access-from-files",
            "--enable-logging=stderr", "--log-level=0", f"--user-data-dir={folder / 'profile'}",
            "--virtual-time-budget=4000",
            "--dump-dom", f"file://{folder / 'frame.html'}",
        ],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    found = re.search(r'\{"wide":(\d+),"shown":(\d+),"height":(\d+),"count":(\d+)\}', result.stdout)
    assert found is not None, result.stderr[-2000:]
    wide, shown, height, count = map(int, found.groups())
    return Shown(wide, shown, height, count, result.stderr)

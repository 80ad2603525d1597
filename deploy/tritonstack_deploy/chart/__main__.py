"""Write or compare the generated files of the chart: `python -m tritonstack_deploy.chart {generate,verify} FOLDER`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from tritonstack.errors import TritonstackError, UsageError
from tritonstack.whole_file import taking_place_of


def generated_files(chart: Path) -> dict[Path, str]:
    """Text of each generated file. Raises UsageError where values.yaml cannot be read."""
    from tritonstack_deploy.chart.dashboards import DASHBOARDS, dashboard_text
    from tritonstack_deploy.chart.readme import readme_text
    from tritonstack_deploy.chart.schema import schema_text
    from tritonstack_deploy.chart.values import read_values

    try:
        text = (chart / "values.yaml").read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError("the chart's values.yaml cannot be read", given=str(error)) from error
    entries = read_values(text)
    return {
        chart / "values.schema.json": schema_text(entries),
        chart / "README.md": readme_text(entries),
        **{chart / "files" / "dashboards" / f"{name}.json": dashboard_text(name) for name in DASHBOARDS},
    }


def main(arguments: Sequence[str]) -> int:
    """Exit code 0: written, or equal. 1: something differs. 2: wrong usage."""
    parser = argparse.ArgumentParser(prog="tritonstack_deploy.chart", description=__doc__)
    parser.add_argument("action", choices=["generate", "verify"])
    parser.add_argument("chart", type=Path, help="the folder with Chart.yaml")
    options = parser.parse_args(arguments)
    try:
        files = generated_files(options.chart)
    except TritonstackError as error:
        print(error, file=sys.stderr)
        return 2
    stale = [path for path, text in files.items() if not path.exists() or path.read_text(encoding="utf-8") != text]
    for path in stale:
        if options.action == "generate":
            path.parent.mkdir(parents=True, exist_ok=True)
            with taking_place_of(path) as file:
                file.write(files[path].encode())
            print(f"wrote {path}", file=sys.stderr)
        else:
            print(f"{path} is not what values.yaml says: run `make generate-chart`", file=sys.stderr)
    return 1 if stale and options.action == "verify" else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))

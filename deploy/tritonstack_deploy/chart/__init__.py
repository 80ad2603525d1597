"""What is generated of the chart: its values schema and README from values.yaml, and its dashboards."""

from __future__ import annotations

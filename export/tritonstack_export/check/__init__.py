"""Validating a model repository before any server sees it."""

from tritonstack_export.check.finding import CheckReport, Finding, ServableModel
from tritonstack_export.check.repository_check import check_repository

__all__ = ["CheckReport", "Finding", "ServableModel", "check_repository"]

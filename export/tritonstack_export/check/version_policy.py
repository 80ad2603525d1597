"""Which versions a policy serves."""

from __future__ import annotations

from collections.abc import Sequence

from tritonstack_export.check.model_entry import ModelEntry
from tritonstack_export.repository.config_text import ModelConfig


def served_versions(config: ModelConfig, versions: Sequence[int]) -> tuple[int, ...]:
    """Those of `versions` (ascending) that the version policy of `config` serves; without one, the latest."""
    policy = config.version_policy
    choice = policy.WhichOneof("policy_choice")
    if choice == "all":
        return tuple(versions)
    if choice == "specific":
        return tuple(version for version in versions if version in policy.specific.versions)
    count = policy.latest.num_versions if choice == "latest" else 1
    return tuple(versions[-count:]) if count else ()


def resolve_served_versions(entry: ModelEntry, config: ModelConfig) -> None:
    """Set `entry.served` from the version policy; report a policy that serves nothing or asks for what is absent."""
    findings = entry.findings
    policy = config.version_policy
    choice = policy.WhichOneof("policy_choice")
    entry.served = served_versions(config, entry.versions)
    if choice == "specific":
        asked = list(policy.specific.versions)
        absent = [version for version in asked if version not in entry.versions]
        at = ("version_policy", "specific", "versions")
        if not asked:
            findings.error(
                "version-policy",
                "version_policy 'specific' names no version",
                fix=f"list some of {list(entry.versions)}, or remove version_policy to serve the latest",
                at=at,
            )
        elif absent and entry.versions:
            findings.error(
                "version-policy",
                f"version_policy asks for {asked}, available: {list(entry.versions)}",
                fix="export the missing versions or name available ones",
                at=at,
            )
    elif choice == "latest" and policy.latest.num_versions == 0:
        findings.error(
            "version-policy",
            "version_policy serves the latest 0 versions, so none",
            fix="set num_versions to 1 or more",
            at=("version_policy", "latest", "num_versions"),
        )

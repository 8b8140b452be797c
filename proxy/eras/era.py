"""Which era a message belongs to. Contract section 2, "Client's era, per message"."""

from __future__ import annotations

from enum import StrEnum

from proxy.protocol import names


class Era(StrEnum):
    LEGACY = "legacy"
    MODERN = "modern"


def client_era(*, has_meta_version: bool, version_header: str | None) -> Era:
    """The era of one HTTP message.

    Modern if `_meta` has the protocol version key, whatever its value, or if the version header names
    a version that is not legacy; so an unknown version is judged, and refused, by modern rules.
    """
    if has_meta_version:
        return Era.MODERN
    if version_header is not None and version_header not in names.LEGACY_VERSIONS:
        return Era.MODERN
    return Era.LEGACY

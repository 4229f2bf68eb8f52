"""What the adapters to Horovod and DeepSpeed ask of the release that is installed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ..compressors.errors import UnsupportedError

__all__ = ["require_names"]


def require_names(host: str, version: str, supported: Sequence[str], missing: Iterable[str]) -> None:
    """Refuse a release that lacks some of the private names that an adapter relies on.

    Args:
        host: the package's name as people write it.
        version: the one installed.
        supported: those that the names were checked against, the newest last.
        missing: names that were not found.

    Raises:
        UnsupportedError: something is missing; the text names it, the version found and the versions supported.
    """
    names = ", ".join(missing)
    if names:
        raise UnsupportedError(
            f"{host} {version} lacks what gradwire needs: {names}. "
            f"Supported: {', '.join(supported)}; pip install {host.lower()}=={supported[-1]}"
        )

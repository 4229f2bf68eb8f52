"""The exceptions of gradwire.

::

    GradwireError
     ├── ConfigError             (ValueError)    a setting out of its range, or two that exclude each other
     ├── UsageError                              a call at the wrong time, or with the wrong tensor
     ├── UnsupportedError                        something the host cannot do; the text names the alternative
     ├── PayloadError            (ValueError)    bytes that are truncated, corrupt, foreign or oversized
     ├── MismatchError                           ranks disagree about model, compressor or options
     ├── PeerError                               another rank failed while it compressed
     ├── TransportError                          a collective failed
     │    └── TransportTimeout   (TimeoutError)  a collective did not finish in time
     └── MissingDependencyError  (ImportError)   an optional package is not installed

None is a RuntimeError: Horovod takes every RuntimeError for a broken ring, which an elastic job would try to mend.
A text names the value, the limit and the remedy. Errors of torch, MPI and Horovod are translated where they
enter, with the original as ``__cause__``.
"""

from __future__ import annotations

__all__ = [
    "ConfigError",
    "GradwireError",
    "MismatchError",
    "MissingDependencyError",
    "PayloadError",
    "PeerError",
    "TransportError",
    "TransportTimeout",
    "UnsupportedError",
    "UsageError",
]


class GradwireError(Exception):
    """The base of everything that gradwire raises on purpose."""


class ConfigError(GradwireError, ValueError):
    """A setting is out of its range, or two settings exclude each other."""


class UsageError(GradwireError):
    """A call came at the wrong time, or with a tensor that does not fit."""


class UnsupportedError(GradwireError):
    """The host cannot do what was asked; the text names the alternative."""


class PayloadError(GradwireError, ValueError):
    """Bytes from a peer are truncated, corrupt, foreign or oversized."""


class MismatchError(GradwireError):
    """Ranks disagree about the model, the compressor or an option."""


class PeerError(GradwireError):
    """Another rank failed while it compressed; its own error says why."""


class TransportError(GradwireError):
    """A collective failed."""


class TransportTimeout(TransportError, TimeoutError):
    """A collective did not finish within its time limit."""


class MissingDependencyError(GradwireError, ImportError):
    """An optional package is needed here and is not installed."""

    def __init__(self, package: str, extra: str, purpose: str) -> None:
        super().__init__(f'{purpose} needs {package}, which cannot be imported: pip install "gradwire[{extra}]"')

# SPDX-License-Identifier: Apache-2.0
"""Exceptions, one class per error code of the library (docs/errors.md).

Each class is also the built-in class that programs would expect, so ``except ValueError`` and
``except TimeoutError`` work too. After TimeoutError, PeerLostError or AbortedError the group can only be
closed, together with everything made from it.
"""
import builtins


class Error(RuntimeError):
    """Every failure that the library reports. ``code`` is its name, for example "invalid_argument"."""

    code = "internal"
    """Name of the error code, for example "invalid_argument"."""


class InvalidArgumentError(Error, ValueError):
    """A shape, dtype, id or option is wrong; nothing was written."""

    code = "invalid_argument"


class ArgumentTypeError(InvalidArgumentError, TypeError):
    """An argument is of a type that the call does not take."""


class WorkspaceTooSmallError(Error, ValueError):
    """Memory from the caller is too small; the message says how much is needed."""

    code = "workspace_too_small"


class CapacityExceededError(Error):
    """More rows were sent to an expert than its capacity; nothing was moved."""

    code = "capacity_exceeded"


class MalformedFileError(Error, ValueError):
    """A file is truncated or not in the format that it claims."""

    code = "malformed_file"


class NotSupportedError(Error, NotImplementedError):
    """A valid request that the library does not support."""

    code = "not_supported"


class NotAvailableError(Error):
    """An optional part is missing in this build or on this machine."""

    code = "not_available"


class OutOfMemoryError(Error, MemoryError):
    """Memory or another system limit is exhausted."""

    code = "out_of_memory"


class TimeoutError(Error, builtins.TimeoutError):  # pylint: disable=redefined-builtin
    """A peer did not answer within the group's timeout."""

    code = "timeout"


class PeerLostError(Error, ConnectionError):
    """A peer died or left while it was needed."""

    code = "peer_lost"


class AbortedError(Error):
    """``Group.abort`` was called, here or on a peer, or another rank failed."""

    code = "aborted"


class SystemCallError(Error, OSError):
    """A call of the operating system failed."""

    code = "system"


class InternalError(Error):
    """A bug in this library; please report it with ``switchyard.build_summary()``."""

    code = "internal"


_CLASSES = {cls.code: cls for cls in Error.__subclasses__()}


def make_error(code: str, message: str) -> Error:
    """Returns the exception for an error code of the library."""
    return _CLASSES.get(code, Error)(message)

"""The one tree of errors that a user sees, and the exit statuses they lead to."""

from __future__ import annotations

EXIT_USAGE = 2
"""The command line is wrong; nothing was started."""

EXIT_BOUND_CROSSED = 3
"""A bound given with ``--fail-if`` was crossed and the script was good."""

EXIT_FAILED = 70
"""dlprof failed before the script could run, or in a command that runs no script."""


class DlprofError(Exception):
    """Something a user can act on: what happened and where, then what to do.

    Args:
        slug: Stable name; a key of the explanations.
        message: What happened, and where. One line.
        hint: What to do about it. One line, may be empty.
        status: Exit status of the command that ends with this error.
    """

    def __init__(self, slug: str, message: str, hint: str = "", status: int = EXIT_FAILED) -> None:
        super().__init__(message)
        self.slug = slug
        self.message = message
        self.hint = hint
        self.status = status

    def __str__(self) -> str:
        return f"{self.message}\n  {self.hint}" if self.hint else self.message


class UsageError(DlprofError):
    """A command line that cannot be carried out; said before the script starts."""

    def __init__(self, slug: str, message: str, hint: str = "") -> None:
        super().__init__(slug, message, hint, EXIT_USAGE)


class UnreadableInputError(DlprofError):
    """A file or folder given to a command is missing or is not what that command reads."""

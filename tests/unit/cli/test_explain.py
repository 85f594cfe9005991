"""`dlprof explain` on the command line."""

from __future__ import annotations

import pytest

from dlprof.cli.main import main
from dlprof.errors import EXIT_USAGE


def test_an_id_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "raise-num-workers"]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("raise-num-workers: advice\n")
    assert "When" in out
    assert "Do" in out
    assert err == ""


def test_what_two_kinds_are_called_is_explained_twice(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "storage_io"]) == 0
    assert capsys.readouterr().out.count("storage_io: ") == 2


def test_without_an_id_all_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain"]) == 0
    assert "no-such-run" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("written", "says"),
    [
        ("raise-workers", "did you mean raise-num-workers"),
        ("qqqqq", "'dlprof explain' lists all ids"),
        ("\x1b[31m" + "x" * 10_000, "lists all ids"),
    ],
)
def test_an_unknown_id_is_a_usage_error_with_the_nearest_names(
    written: str, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["explain", written]) == EXIT_USAGE
    out, err = capsys.readouterr()
    assert out == ""
    assert says in err
    assert len(err.splitlines()) == 2
    assert len(err) < 300
    assert "\x1b" not in err

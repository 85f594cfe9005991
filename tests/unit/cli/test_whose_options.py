"""What is said of options that stand after the script."""

from __future__ import annotations

import pytest

from dlprof.cli.argv import split
from dlprof.cli.run import say_whose_options


@pytest.mark.parametrize(
    ("argv", "verb", "said"),
    [
        (
            ["train.py", "--out", "x"],
            "run",
            ["--out after the script is the script's", "dlprof run --out ... train.py"],
        ),
        (["-m", "pkg", "--format=md"], "tune", ["--format after the script", "dlprof tune --format ... -m pkg"]),
        (["train.py", "--steps", "5"], "run", ["took '--steps 5' for itself", "dlprof run train.py -- --steps 5"]),
        (["train.py", "--lr", "1", "--out", "x"], "run", []),
    ],
)
def test_whose_an_option_is(argv: list[str], verb: str, said: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    say_whose_options(split(argv, verb=verb))
    written = capsys.readouterr().err
    assert written.count("dlprof: ") == bool(said)
    assert all(part in written for part in said)

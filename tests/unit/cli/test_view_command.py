"""`dlprof view`: what it serves, what it prints and opens, and how it ends."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import urllib.request
import webbrowser
from pathlib import Path

import pytest

from dlprof.cli.main import main
from dlprof.errors import EXIT_FAILED, EXIT_USAGE
from dlprof.tensorboard import server

RUN = Path(__file__).parents[2] / "data" / "text-2-workers"


def test_it_prints_the_address_serves_the_run_and_ends_with_ctrl_c() -> None:
    environ = {
        name: value for name, value in os.environ.items() if name not in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER")
    }
    started = subprocess.Popen(
        [sys.executable, "-m", "dlprof", "view", str(RUN / "run.dlprof"), "--lang", "zh"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environ,
    )
    try:
        address = started.stdout.readline().strip()
        assert address.startswith("http://127.0.0.1:")
        with urllib.request.urlopen(address) as answer:
            assert answer.url == f"{address}run?run=."
            assert "时间线" in answer.read().decode()
        with urllib.request.urlopen(f"{address}report?run=.") as answer:
            assert b"<h1" in answer.read()
        started.send_signal(signal.SIGINT)
        out, err = started.communicate(timeout=60)
    finally:
        started.kill()
    assert started.returncode == 0
    assert out == ""
    assert len(err.splitlines()) == 1


@pytest.mark.parametrize(
    ("options", "environ", "opened"),
    [([], {"DISPLAY": ":0"}, True), ([], {}, False), (["--no-browser"], {"DISPLAY": ":0"}, False)],
)
def test_a_browser_is_opened_where_there_is_one(
    options: list[str],
    environ: dict[str, str],
    opened: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    shown: list[str] = []
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(webbrowser, "open", shown.append)
    monkeypatch.setattr(server.Server, "serve", lambda self: None)
    assert main(["view", str(RUN), *options]) == 0
    assert shown == ([capsys.readouterr().out.strip()] if opened else [])


def test_a_port_that_is_in_use_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert main(["view", str(RUN), "--port", str(port)]) == EXIT_FAILED
    out, err = capsys.readouterr()
    assert out == ""
    assert f"cannot serve on port {port}" in err
    assert len(err.splitlines()) == 2


@pytest.mark.parametrize(
    ("argv", "status", "says"),
    [
        (["none"], EXIT_FAILED, "no such run"),
        ([str(RUN.parent)], EXIT_FAILED, "is not a run"),
        ([str(RUN), "--port", "65536"], EXIT_USAGE, "not a port"),
        ([str(RUN), "--port", "-1"], EXIT_USAGE, "at least 0"),
        ([], EXIT_USAGE, "Missing argument 'RUN'"),
    ],
)
def test_what_cannot_be_done(argv: list[str], status: int, says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["view", *argv]) == status
    assert says in capsys.readouterr().err

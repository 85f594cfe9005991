"""The plugin within TensorBoard's own application."""

from __future__ import annotations

import logging
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from werkzeug.test import Client

from dlprof.tensorboard import runs
from dlprof.words import language, speaking

base_plugin = pytest.importorskip("tensorboard.plugins.base_plugin")
application = pytest.importorskip("tensorboard.backend.application")

from dlprof.tensorboard.loader import Loader  # noqa: E402
from dlprof.tensorboard.plugin import NAME  # noqa: E402

ROOT = Path(__file__).parents[3]
MOUNTED = f"/data/plugin/{NAME}"


class Flags:
    """As TensorBoard fills them where nothing is said."""

    host: str | None = None
    bind_all = False


def loaded(logdir: Path | str, flags: Any = Flags) -> Any:
    return Loader().load(base_plugin.TBContext(logdir=str(logdir), flags=flags))


def served(plugin: Any, prefix: str = "") -> Client:
    return Client(application.TensorBoardWSGI([plugin], path_prefix=prefix))


def test_the_entry_point_names_the_loader() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["entry-points"]["tensorboard_plugins"] == {NAME: f"{Loader.__module__}:{Loader.__name__}"}
    assert NAME != "dlprof"


def test_what_tensorboard_imports_loads_nothing_but_tensorboards_own() -> None:
    code = (
        "import sys, tensorboard.plugins.base_plugin\nbefore = set(sys.modules)\nimport dlprof.tensorboard.loader\n"
        "print(*sorted(set(sys.modules) - before))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    more = {name for name in done.stdout.split() if name.partition(".")[0] not in sys.stdlib_module_names}
    assert more == {"dlprof", "dlprof.tensorboard", "dlprof.tensorboard.loader"}


@pytest.mark.parametrize("prefix", ["", "/tb", "/deep/er"])
def test_its_pages_are_there_below_any_prefix(root: Path, prefix: str) -> None:
    client = served(loaded(root), prefix)
    (plugin,) = client.get(f"{prefix}/data/plugins_listing").json.values()
    assert plugin["enabled"]
    assert plugin["tab_name"] == "dlprof"
    entry = client.get(f"{prefix}/data/plugin_entry.html?name={NAME}").text
    assert 'import("./plugin.js")' in entry
    module = client.get(f"{prefix}{MOUNTED}/plugin.js")
    assert module.content_type.startswith("text/javascript")
    assert "export function render" in module.text
    assert "tune/trial-1" in client.get(f"{prefix}{MOUNTED}/runs").text
    assert client.get(f"{prefix}{MOUNTED}/report?run=good").data == (root / "good" / "report.html").read_bytes()
    assert client.get(f"{prefix}{MOUNTED}/trace?run=good", headers={"Range": "bytes=0-1"}).data == b"\x1f\x8b"


@pytest.mark.parametrize("where", ["../../etc/passwd", "..%2f..%2fetc%2fpasswd", "/etc/passwd", "%2e%2e/%2e%2e/notes"])
def test_no_path_leads_out(root: Path, where: str) -> None:
    client = served(loaded(root))
    for address in (f"{MOUNTED}/{where}", f"{MOUNTED}/perfetto/{where}", f"{MOUNTED}/trace?run={where}"):
        assert client.get(address).status_code in (400, 404)


def test_tensorboard_finds_nothing_to_warn_of(root: Path, caplog: pytest.LogCaptureFixture) -> None:
    client = served(loaded(root))
    with caplog.at_level(logging.WARNING):
        for page in ("runs", "run?run=good", "report?run=good", "timeline?run=good", "perfetto/index.html", "nothing"):
            client.get(f"{MOUNTED}/{page}")
    assert caplog.text == ""


@pytest.mark.parametrize(
    ("host", "bind_all", "answered"),
    [(None, False, False), ("localhost", False, False), ("0.0.0.0", False, True), (None, True, True)],
)
def test_a_foreign_name_is_answered_where_tensorboard_was_told_to(
    root: Path, host: str | None, bind_all: bool, answered: bool
) -> None:
    flags = type("Asked", (Flags,), {"host": host, "bind_all": bind_all})
    status = served(loaded(root, flags)).get(f"{MOUNTED}/runs", headers={"Host": "gpu7:6006"}).status_code
    assert status == (200 if answered else 403)


@pytest.mark.parametrize("logdir", ["", "gs://bucket/runs"])
def test_without_a_folder_on_a_disk_it_stays_inactive(logdir: str) -> None:
    (plugin,) = served(loaded(logdir)).get("/data/plugins_listing").json.values()
    assert not plugin["enabled"]


def test_it_becomes_active_with_the_first_run(tmp_path: Path, made: Path) -> None:
    plugin = loaded(tmp_path / "runs")
    assert not plugin.is_active()
    (tmp_path / "runs").symlink_to(made)
    assert plugin.is_active()


def test_a_plugin_that_fails_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("no such luck")

    monkeypatch.setattr(runs.Runs, "__init__", fail)
    assert loaded(tmp_path) is None
    assert "no such luck" in caplog.text


def test_it_speaks_the_language_of_the_locale(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LC_ALL", "zh_CN.UTF-8")
    with speaking("en"):
        client = served(loaded(root))
        assert language() == "zh"
        assert "每步用时" in client.get(f"{MOUNTED}/runs").text

"""What is served, and what is refused."""

from __future__ import annotations

import gzip
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import pytest
from found_runs import HOSTILE
from werkzeug.test import Client

from dlprof.tensorboard import application, perfetto
from dlprof.tensorboard.application import Application
from dlprof.tensorboard.runs import Runs

TRACE = "here_1.2.pt.trace.json.gz"


@pytest.fixture
def client(root: Path) -> Client:
    return Client(Application(Runs(root)))


@pytest.fixture
def ui(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A stand-in for the Perfetto UI."""
    folder = tmp_path / "site" / "web_dist"
    (folder / "v1").mkdir(parents=True)
    (folder / "index.html").write_text("<script>\nstart();\n</script>")
    (folder / "v1" / "frontend.js").write_text("run();" * 1000)
    (folder / "v1" / "engine.wasm").write_bytes(b"\0asm" * 1000)
    (folder.parent / "settings.py").write_text("secret")
    (folder / "out").symlink_to(folder.parent / "settings.py")
    monkeypatch.setattr(perfetto, "find", lambda: folder)
    return folder


def test_the_start_is_the_table_and_below_a_prefix_too(client: Client) -> None:
    assert client.get("/").headers["Location"].endswith("/runs")
    moved = client.get("/", environ_overrides={"SCRIPT_NAME": "/at/some/path"})
    assert moved.headers["Location"].endswith("/at/some/path/runs")


def test_the_table_lists_runs_newest_first_and_by_any_column(client: Client) -> None:
    page = client.get("/runs").text
    assert page.index("tune/trial-1") < page.index(">good<") < page.index("&lt;img src=x")
    by_step = client.get("/runs?sort=step").text
    assert by_step.index(">tune/trial-1<") < by_step.index(">good<") < by_step.index(">recorded<")
    assert 'aria-sort="ascending"><a href="runs?sort=-step">' in by_step
    largest = client.get("/runs?sort=-step").text
    assert largest.index(">good<") < largest.index(">tune/trial-1<") < largest.index(">recorded<")
    assert client.get("/runs?sort=<script>").text == page
    for said in ("recording, or interrupted", "damaged", "no report yet", "copies", "5 ms", "2026-03-01 10:00"):
        assert said in page, said


def test_an_empty_folder_says_how_a_run_is_made(tmp_path: Path) -> None:
    assert "dlprof run train.py" in Client(Application(Runs(tmp_path))).get("/runs").text


def test_a_report_is_the_file_that_the_command_wrote(client: Client, root: Path) -> None:
    page = client.get("/run?run=good")
    assert 'src="report?run=good"' in page.text
    report = client.get("/report?run=good")
    assert report.data == (root / "good" / "report.html").read_bytes()
    assert report.content_type == "text/html; charset=utf-8"


def test_a_run_without_that_file_has_a_report_all_the_same(client: Client) -> None:
    assert "<h1" in client.get("/report?run=saved").text


def test_what_is_being_recorded_is_left_alone(client: Client, root: Path) -> None:
    assert "dlprof report RUN" in client.get("/run?run=recorded").text
    for address in ("report?run=recorded", "comparison?before=good&after=recorded"):
        assert client.get(f"/{address}").status_code == 404
    assert (root / "recorded" / "recording" / "settings.json").exists()
    assert [path.name for path in (root / "recorded").iterdir()] == ["recording"]


def test_two_runs_are_compared(client: Client) -> None:
    page = client.get("/compare?before=good&after=tune/trial-1").text
    assert "comparison?before=good&amp;after=tune%2Ftrial-1" in page
    assert "<h1" in client.get("/comparison?before=good&after=tune/trial-1").text


@pytest.mark.parametrize("wanted", ["bytes=0-9", "bytes=-5", "bytes=10-"])
def test_a_trace_is_served_whole_and_in_part(client: Client, root: Path, wanted: str) -> None:
    whole = (root / "good" / TRACE).read_bytes()
    served = client.get("/trace?run=good", headers={"Accept-Encoding": "gzip"})
    assert served.data == whole
    assert served.content_type == "application/gzip"
    assert "Content-Encoding" not in served.headers
    part = client.get("/trace?run=good", headers={"Range": wanted})
    assert part.status_code == 206
    assert part.data == {"bytes=0-9": whole[:10], "bytes=-5": whole[-5:], "bytes=10-": whole[10:]}[wanted]
    assert client.get("/trace?run=good", headers={"Range": f"bytes={len(whole)}-"}).status_code == 416
    again = client.get("/trace?run=good", headers={"If-None-Match": served.headers["ETag"]})
    assert again.status_code == 304
    assert client.head("/trace?run=good").data == b""


def test_pages_and_the_viewers_files_are_packed_where_the_browser_takes_it(client: Client, ui: Path) -> None:
    for address, content in (
        ("/runs", client.get("/runs").data),
        ("/perfetto/v1/frontend.js", (ui / "v1" / "frontend.js").read_bytes()),
        ("/perfetto/v1/engine.wasm", (ui / "v1" / "engine.wasm").read_bytes()),
    ):
        plain = client.get(address)
        assert "Content-Encoding" not in plain.headers
        packed = client.get(address, headers={"Accept-Encoding": "gzip"})
        assert packed.headers["Content-Encoding"] == "gzip"
        assert int(packed.headers["Content-Length"]) == len(packed.data) < len(content)
        assert gzip.decompress(packed.data) == content == plain.data
        assert "ETag" not in packed.headers


def test_the_viewers_files_have_their_types_and_a_policy_with_their_scripts(client: Client, ui: Path) -> None:
    types = {"index.html": "text/html", "v1/frontend.js": "text/javascript", "v1/engine.wasm": "application/wasm"}
    for name, type_ in types.items():
        served = client.get(f"/perfetto/{name}")
        assert served.data == (ui / name).read_bytes()
        assert served.content_type.partition(";")[0] == type_
    assert "immutable" in client.get("/perfetto/v1/frontend.js").headers["Cache-Control"]
    assert client.get("/perfetto/index.html").headers["Cache-Control"] == "no-cache"
    policy = client.get("/perfetto/index.html").headers["Content-Security-Policy"]
    # As openssl counts it: printf '\nstart();\n' | openssl dgst -sha256 -binary | base64
    assert "'sha256-FflUquKLTOFZgk0+8VvCqtWVuUbHfg32FlrpTHo84aw='" in policy
    assert "connect-src 'self';" in policy


def test_without_the_viewer_it_is_said_how_to_get_it_and_the_file_is_offered(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(perfetto, "find", lambda: None)
    page = client.get("/timeline?run=good").text
    assert "pip install &#39;dlprof[viewer]&#39;" in page
    assert 'href="trace?run=good" download' in page
    assert "<iframe" not in page
    assert client.get("/perfetto/index.html").status_code == 404


def test_without_a_trace_there_is_no_timeline(client: Client, ui: Path) -> None:
    assert "There is no trace" in client.get("/timeline?run=cut").text
    assert client.get("/trace?run=cut").status_code == 404


# ---- what is refused -----------------------------------------------------------------------------------------------

OUT = [
    "../../etc/passwd",
    "../notes/secret.txt",
    "good/../../../etc/passwd",
    "/etc/passwd",
    "//etc/passwd",
    "..",
    "....//....//etc/passwd",
    "..\\..\\etc\\passwd",
    "%2e%2e/%2e%2e/etc/passwd",
    "..%2f..%2fetc%2fpasswd",
    "%252e%252e%252fetc%252fpasswd",
    "..%c0%af..%c0%afetc/passwd",
    "good%00.html",
    "file:///etc/passwd",
    "notes/secret.txt",
    "~/.ssh/id_rsa",
    "out",
    "settings.py",
    "../settings.py",
]


@pytest.mark.parametrize("where", OUT)
@pytest.mark.parametrize("encoded", [False, True])
def test_no_path_leads_to_another_file(client: Client, ui: Path, where: str, encoded: bool) -> None:
    typed = quote(where, safe="") if encoded else where
    addresses = [f"/perfetto/{typed}", f"/{typed}", f"/perfetto/v1/{typed}", f"/perfetto/v1/../../{typed}"]
    addresses += [f"/{page}?run={typed}" for page in ("report", "trace", "run", "timeline")]
    addresses += [f"/comparison?before=good&after={typed}", f"/compare?before={typed}&after=good"]
    for address in addresses:
        served = client.get(address)
        assert served.status_code in (400, 404), address
        assert b"secret" not in served.data
        assert b"root:" not in served.data
        assert len(served.data) < 200


def test_a_trace_or_report_that_is_a_link_is_not_served(client: Client, root: Path) -> None:
    (root / "cut" / "x.pt.trace.json").symlink_to(root / "notes" / "secret.txt")
    (root / "cut" / "report.html").symlink_to(root / "notes" / "secret.txt")
    for address in ("/trace?run=cut", "/report?run=cut"):
        served = client.get(address)
        assert served.status_code == 404
        assert b"secret" not in served.data


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:6006", "127.0.0.1.evil.example", "localhost.evil", "[", ""]
)
def test_a_foreign_host_name_that_leads_here_gets_no_answer(root: Path, host: str) -> None:
    served = Client(Application(Runs(root))).get("/trace?run=good", headers={"Host": host})
    assert served.status_code == 403
    assert Client(Application(Runs(root), loopback=False)).get(
        "/trace?run=good", headers={"Host": "gpu7"}
    ).status_code == (200)


@pytest.mark.parametrize("host", ["localhost", "localhost:6006", "127.0.0.1:9", "[::1]:6006", "LOCALHOST:1"])
def test_this_machines_own_names_do(client: Client, host: str) -> None:
    assert client.get("/runs", headers={"Host": host}).status_code == 200


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Origin": "http://localhost"}, 200),
        ({"Origin": "http://localhost:8000"}, 403),
        ({"Origin": "https://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors", "Sec-Fetch-Dest": "image"}, 403),
        ({"Sec-Fetch-Site": "same-site", "Sec-Fetch-Mode": "cors", "Sec-Fetch-Dest": "empty"}, 403),
        ({"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "iframe"}, 403),
        ({"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}, 200),
        ({"Sec-Fetch-Site": "same-origin", "Sec-Fetch-Mode": "cors", "Sec-Fetch-Dest": "empty"}, 200),
        ({"Sec-Fetch-Site": "none", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}, 200),
    ],
)
def test_another_origin_gets_no_data(client: Client, headers: dict[str, str], status: int) -> None:
    served = client.get("/trace?run=good", headers=headers)
    assert served.status_code == status
    assert not [name for name in served.headers if name[0].lower().startswith("access-control")]


def test_every_answer_says_what_a_browser_may_do_with_it(client: Client, ui: Path) -> None:
    addresses = ["/runs", "/run?run=good", "/timeline?run=good", "/report?run=good", "/trace?run=good", "/runs.js"]
    for address in [*addresses, "/perfetto/index.html", "/perfetto/v1/frontend.js", "/nothing", "/"]:
        served: Any = client.get(address)
        assert served.headers["X-Content-Type-Options"] == "nosniff"
        assert served.headers["Cross-Origin-Resource-Policy"] == "same-origin"
        policy = served.headers["Content-Security-Policy"]
        assert policy.startswith("default-src 'none'; frame-ancestors 'self'")
        assert "*" not in policy
        assert "http" not in policy


def test_a_hostile_name_or_report_runs_nothing(client: Client) -> None:
    query = urlencode({"run": HOSTILE})
    for address in (
        "/runs",
        f"/run?{query}",
        f"/timeline?{query}",
        f"/compare?before=good&{urlencode({'after': HOSTILE})}",
    ):
        page = client.get(address).text
        assert "&lt;img src=x" in page
        assert "<img" not in page
    report = client.get(f"/report?{query}")
    assert "<script>alert(2)" in report.text
    policy = report.headers["Content-Security-Policy"]
    assert policy.endswith("; sandbox")
    assert "script-src" not in policy


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS"])
def test_nothing_but_reading(client: Client, method: str) -> None:
    assert client.open("/runs", method=method).status_code == 405


def test_what_fails_is_a_short_page_and_stands_in_the_log(
    client: Client, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object, **__: object) -> str:
        raise RuntimeError("the secret reason")

    monkeypatch.setattr(application.viewer, "runs_page", fail)
    with caplog.at_level(logging.ERROR):
        served = client.get("/runs")
    assert served.status_code == 500
    assert served.content_type == "text/plain; charset=utf-8"
    assert "secret" not in served.text
    assert "the secret reason" in caplog.text
    assert client.get("/report?run=cut").status_code == 404


def test_for_one_run_there_is_no_table(made: Path) -> None:
    client = Client(Application(Runs(made), all_runs=False))
    assert client.get("/").headers["Location"].endswith("/run?run=.")
    page = client.get("/run?run=.").text
    assert "All runs" not in page
    assert "Timeline" in page
    assert client.get("/runs").status_code == 404

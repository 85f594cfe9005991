"""The WSGI application: pages about known runs, their reports and traces, and the Perfetto UI.

A request names a run, never a file, and what is no run's name is not found. Nothing that a run's folder holds is
trusted: its report is shown without scripts and without an origin, its names are escaped.
"""

from __future__ import annotations

import gzip
import logging
import threading
from collections.abc import Callable, Iterable
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from werkzeug.exceptions import Forbidden, HTTPException, NotFound
from werkzeug.routing import Map, Rule
from werkzeug.utils import redirect, send_file
from werkzeug.wrappers import Request, Response

from dlprof.errors import DlprofError
from dlprof.model.listing import ListedRun, State
from dlprof.render import viewer
from dlprof.tensorboard import perfetto
from dlprof.tensorboard.runs import REPORT_HTML, Runs, own_file
from dlprof.words import folder as templates
from dlprof.words import tr

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIEnvironment

_log = logging.getLogger(__name__)

_ALWAYS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "SAMEORIGIN",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-cache",
}
_NOTHING = "default-src 'none'; frame-ancestors 'self'; base-uri 'none'"
_PAGE = (
    f"{_NOTHING}; script-src 'self'; style-src 'unsafe-inline'; connect-src 'self'; frame-src 'self'; "
    "img-src data:; form-action 'self'"
)
# Without an origin: what a report from elsewhere says can neither run nor ask for anything.
_REPORT = f"{_NOTHING}; style-src 'unsafe-inline'; img-src data:; form-action 'none'; sandbox"
# As the UI's own, but for the scripts, requests and pictures of other hosts. 'unsafe-eval' is how it compiles its
# WebAssembly and its messages.
_PERFETTO = (
    f"{_NOTHING}; script-src 'self' 'unsafe-eval' {{scripts}}; style-src 'self' 'unsafe-inline'; connect-src 'self'; "
    "img-src 'self' data: blob:; font-src 'self'; worker-src 'self'; manifest-src 'self'; form-action 'none'"
)
_SCRIPTS = ("runs.js", "timeline.js", "plugin.js")
_WASM = "application/wasm"
_PACKED = ("text/", "application/json", "application/javascript", _WASM)
_LEAST_PACKED = 1000
_LARGEST_PACKED = 50_000_000
"""Bytes of an answer that are worth packing, and that are packed in memory."""
LOOPBACK = ("localhost", "127.0.0.1", "::1")
"""Names of this machine that no other can be meant by."""

_rendering = threading.Lock()


class Application:
    """Serves runs to a browser; as such a WSGI application, below whatever path it is mounted.

    Args:
        runs: What may be seen.
        all_runs: Whether there is a table of them; without it ``/`` leads to the folder's own run.
        loopback: Whether only requests are answered that were made to this machine by a name that only this machine
            can mean, so that no foreign host name that leads here gets an answer.
    """

    def __init__(self, runs: Runs, *, all_runs: bool = True, loopback: bool = True) -> None:
        self._runs = runs
        self._all_runs = all_runs
        self._loopback = loopback
        rules: dict[str, Callable[..., Response]] = {
            "/": self._start,
            f"/{viewer.RUNS}": self._table,
            f"/{viewer.RUN}": self._run,
            f"/{viewer.TIMELINE}": self._timeline,
            f"/{viewer.COMPARE}": self._compare,
            f"/{viewer.REPORT}": self._report,
            f"/{viewer.COMPARISON}": self._comparison,
            f"/{viewer.TRACE}": self._trace,
            f"/{viewer.PERFETTO}/<path:name>": self._perfetto,
            "/<any('{}'):name>".format("', '".join(_SCRIPTS)): self._script,
        }
        self._map = Map(
            [Rule(path, endpoint=answer, methods=["GET"]) for path, answer in rules.items()], merge_slashes=False
        )

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        """Answer one request."""
        request = Request(environ)
        try:
            self._check_where_from(request)
            answer, values = self._map.bind_to_environ(environ).match()
            response: Response = answer(request, **values)
        except HTTPException as error:
            response = _short(error.code or HTTPStatus.INTERNAL_SERVER_ERROR, error.description or "")
        except DlprofError as error:
            response = _short(HTTPStatus.NOT_FOUND, str(error))
        except Exception:  # noqa: BLE001 - whatever it is, the browser gets a short page
            _log.exception("cannot answer %s", request.path)
            response = _short(HTTPStatus.INTERNAL_SERVER_ERROR, tr("dlprof could not answer this; the log says why."))
        for name, value in {**_ALWAYS, "Content-Security-Policy": _NOTHING}.items():
            response.headers.setdefault(name, value)
        return response(environ, start_response)

    def _check_where_from(self, request: Request) -> None:
        """Refuse what a page of another origin asks for, and requests to a name that is not this machine's.

        Raises:
            Forbidden: It is one of these.
        """
        here = request.headers.get("Host", "")
        if self._loopback and _host_name(here) not in LOOPBACK:
            raise Forbidden(tr("This is served to localhost only: open it by that name."))
        origin = request.headers.get("Origin")
        if origin is not None and urlsplit(origin).netloc != here:
            raise Forbidden(tr("Another page may not read this."))
        if request.headers.get("Sec-Fetch-Site") in ("cross-site", "same-site") and not (
            request.headers.get("Sec-Fetch-Mode") == "navigate" and request.headers.get("Sec-Fetch-Dest") == "document"
        ):
            raise Forbidden(tr("Another page may not read this."))

    # ---- pages -----------------------------------------------------------------------------------------------------

    def _start(self, request: Request) -> Response:
        to = viewer.RUNS if self._all_runs else f"{viewer.RUN}?run=."
        return redirect(f"{request.root_path}/{to}".replace("//", "/"), Response=Response)

    def _table(self, request: Request) -> Response:
        if not self._all_runs:
            raise NotFound
        return _page(request, viewer.runs_page(self._runs.listed(), request.args.get("sort", viewer.NEWEST_FIRST)))

    def _run(self, request: Request) -> Response:
        _, run = self._named(request)
        return _page(request, viewer.run_page(run, all_runs=self._all_runs))

    def _timeline(self, request: Request) -> Response:
        _, run = self._named(request)
        shown = viewer.timeline_page(run, all_runs=self._all_runs, viewer=perfetto.find() is not None)
        return _page(request, shown)

    def _compare(self, request: Request) -> Response:
        (_, before), (_, after) = (self._named(request, which) for which in ("before", "after"))
        return _page(request, viewer.comparison_page(before, after))

    # ---- what they frame -------------------------------------------------------------------------------------------

    def _report(self, request: Request) -> Response:
        folder, run = self._named(request)
        written = own_file(folder, REPORT_HTML)
        if written is not None:
            return _page(request, written.read_bytes(), _REPORT)
        _finished(run)
        from dlprof import api

        with _rendering:
            return _page(request, api.report_document(folder, "html"), _REPORT)

    def _comparison(self, request: Request) -> Response:
        (before, first), (after, second) = (self._named(request, which) for which in ("before", "after"))
        _finished(first, second)
        from dlprof import api

        with _rendering:
            return _page(request, api.compare_document(before, after, "html"), _REPORT)

    def _trace(self, request: Request) -> Response:
        folder, run = self._named(request)
        trace = own_file(folder, run.trace) if run.trace else None
        if trace is None:
            raise NotFound(tr("There is no trace in this run's folder."))
        packed = trace.suffix == ".gz"
        return _file(request, trace, "application/gzip" if packed else "application/json", pack=False)

    def _perfetto(self, request: Request, name: str) -> Response:
        folder = perfetto.find()
        path = perfetto.files(folder).get(name) if folder is not None else None
        if folder is None or path is None:
            raise NotFound
        response = _file(request, path, None)
        response.headers["Content-Security-Policy"] = _PERFETTO.format(
            scripts=perfetto.scripts_allowed(folder / "index.html")
        )
        if "/" in name:
            # Below a folder that is named for its version.
            response.headers["Cache-Control"] = "private, max-age=31536000, immutable"
        return response

    def _script(self, request: Request, name: str) -> Response:
        return _file(request, templates() / name, "text/javascript")

    def _named(self, request: Request, parameter: str = "run") -> tuple[Path, ListedRun]:
        """The run that a request names.

        Raises:
            NotFound: There is none of that name.
        """
        found = self._runs.find(request.args.get(parameter, "."))
        if found is None:
            raise NotFound(tr("There is no such run."))
        return found


def _finished(*runs: ListedRun) -> None:
    """Leave alone what is being recorded: to load it would be to analyse it, and to end its recording.

    Raises:
        NotFound: One of them is no finished run.
    """
    if any(run.state is State.RECORDING for run in runs):
        raise NotFound(tr("This run is not finished."))


def _host_name(host: str) -> str | None:
    try:
        return urlsplit(f"//{host}").hostname
    except ValueError:
        return None


def _short(status: int, text: str) -> Response:
    return Response(f"{int(status)} {text}\n", status, content_type="text/plain; charset=utf-8")


def _page(request: Request, page: str | bytes, policy: str = _PAGE) -> Response:
    response = Response(page, content_type="text/html; charset=utf-8")
    response.headers["Content-Security-Policy"] = policy
    return _packed(request, response)


def _file(request: Request, path: Path, content_type: str | None, *, pack: bool = True) -> Response:
    """A file, whole or the ranges that are asked for, or only that it is the same as before.

    Raises:
        NotFound: It is not there.
    """
    if not path.is_file():
        raise NotFound
    response = send_file(
        path,
        request.environ,
        mimetype=content_type,
        download_name=path.name,
        conditional=True,
        response_class=Response,
    )
    if pack and response.status_code == HTTPStatus.OK and "Range" not in request.headers:
        return _packed(request, response)
    return response


def _packed(request: Request, response: Response) -> Response:
    """Compressed, where that is worth it and the browser takes it."""
    size = response.content_length
    response.vary.add("Accept-Encoding")
    if (
        request.accept_encodings["gzip"]
        and (response.content_type or "").startswith(_PACKED)
        and (size is None or _LEAST_PACKED < size < _LARGEST_PACKED)
    ):
        response.direct_passthrough = False
        response.set_data(gzip.compress(response.get_data(), compresslevel=4, mtime=0))
        response.headers["Content-Encoding"] = "gzip"
        # They mean other bytes.
        response.headers.pop("ETag", None)
        response.headers.pop("Last-Modified", None)
    return response

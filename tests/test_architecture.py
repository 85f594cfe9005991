"""Who may import whom, and what is not loaded where it would cost."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
HEAVY = ("torch", "numpy", "pandas", "weasyprint", "altair", "jinja2", "vl_convert")


def loaded_by(code: str) -> set[str]:
    script = f"import sys\n{code}\nprint(*sorted(sys.modules))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT, check=True)
    return set(done.stdout.splitlines()[-1].split())


def test_imports_go_downwards_only() -> None:
    tool = Path(sys.executable).with_name("lint-imports")
    if not tool.exists():
        pytest.skip("import-linter is not installed")
    done = subprocess.run([str(tool)], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stdout


def test_the_script_and_its_workers_load_the_standard_library_only() -> None:
    ours = {
        name.partition(".")[0]
        for name in loaded_by("import dlprof.capture.install, dlprof.capture.marks, dlprof")
        if not name.startswith("dlprof")
    }
    assert ours <= set(sys.stdlib_module_names) | {"sitecustomize", "usercustomize"} | _site(), ours


def _site() -> set[str]:
    """What this environment's ``.pth`` files load into every Python."""
    return {name.partition(".")[0] for name in loaded_by("")}


def test_help_and_supervisor_load_nothing_heavy() -> None:
    loaded = loaded_by(
        "import dlprof.cli.main, dlprof.capture.supervisor\nassert dlprof.cli.main.main(['--help']) == 0"
    )
    assert not loaded & set(HEAVY)


def test_a_report_is_made_without_torch() -> None:
    loaded = loaded_by("import dlprof.api\nimport dlprof.render.pdf, dlprof.render.html")
    assert "dlprof.api" in loaded
    assert "torch" not in loaded

from __future__ import annotations

from pathlib import Path

import pytest

from dlprof.errors import DlprofError
from dlprof.render.templates import page
from dlprof.words import find_folder, folder


def test_the_folder_in_use_has_the_catalogue_and_the_page() -> None:
    assert {"messages.toml", "report.html.j2", "report.css", "print.css"} <= {path.name for path in folder().iterdir()}


def test_an_installed_package_carries_its_templates(tmp_path: Path) -> None:
    package = tmp_path / "site-packages" / "dlprof"
    (package / "templates").mkdir(parents=True)
    (tmp_path / "site-packages" / "templates").mkdir()
    assert find_folder(package) == package / "templates"


def test_a_checkout_has_them_beside_the_package(tmp_path: Path) -> None:
    (tmp_path / "dlprof").mkdir()
    (tmp_path / "templates").mkdir()
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "dlprof"\n')
    assert find_folder(tmp_path / "dlprof") == tmp_path / "templates"


@pytest.mark.parametrize("project", [None, '[project]\nname = "other"\n', "not toml ["])
def test_a_foreign_templates_folder_is_never_taken(tmp_path: Path, project: str | None) -> None:
    (tmp_path / "dlprof").mkdir()
    (tmp_path / "templates").mkdir()
    if project is not None:
        (tmp_path / "pyproject.toml").write_text(project)
    with pytest.raises(DlprofError) as caught:
        find_folder(tmp_path / "dlprof")
    assert caught.value.slug == "templates-missing"
    assert "pip install" in caught.value.hint


def test_a_page_needs_its_values() -> None:
    with pytest.raises(Exception, match="undefined"):
        page("report.html.j2")

"""The pipeline at single steps, as words and as charts."""

from __future__ import annotations

from dataclasses import replace
from xml.etree import ElementTree

import pytest
from compare_cases import RECORDED

from dlprof.analysis.moments import find_moments
from dlprof.formats import run_file
from dlprof.model.moments import Moment
from dlprof.render.charts import NARROW, WIDE
from dlprof.render.drawing import to_svg
from dlprof.render.moments import legend, moment_chart, moments_section


@pytest.fixture(scope="module")
def moments() -> tuple[Moment, ...]:
    return find_moments(run_file.load(RECORDED / "text-2-workers" / run_file.NAME))


def test_the_section_has_a_figure_for_each_step_and_says_what_it_shows(moments: tuple[Moment, ...]) -> None:
    section = moments_section(moments)
    assert section is not None
    typical, slowest = section.blocks
    assert typical.title == f"A typical step, number {moments[0].index}, ms"
    assert f"Step {moments[1].index} took" in slowest.description
    assert "made it in" in slowest.description


def test_without_steps_there_is_no_section() -> None:
    assert moments_section(()) is None


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"made_ms": None}, "The making of the batch was not seen."),
        ({"made_by": "making batches"}, "The training process made it itself"),
        ({"made_by": "worker 3", "made_from_ms": -40.0}, "Worker 3 made it in"),
        ({"made_from_ms": -40.0}, "begun 40.0 ms before the step asked for it"),
        ({"made_from_ms": 4.0}, "begun 4 ms after that"),
    ],
)
def test_how_the_batch_was_made(moments: tuple[Moment, ...], changes: dict[str, object], says: str) -> None:
    section = moments_section([replace(moments[0], **changes)])
    assert section is not None
    assert says in section.blocks[0].description


@pytest.mark.parametrize("width", [WIDE, NARROW])
def test_a_chart_names_its_lanes_and_has_one_axis(moments: tuple[Moment, ...], width: int) -> None:
    svg = to_svg(moment_chart(moments[0], width), "typical", "A step", "What it shows")
    words = [it.text for it in ElementTree.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")]
    assert {lane.name for lane in moments[0].lanes} <= set(words)
    assert words.count("0") == 1


def test_the_legend_names_what_is_drawn_and_no_more(moments: tuple[Moment, ...]) -> None:
    words = [label for _, label in legend(moments[0])]
    assert "its batch is made" in words
    assert "pinning" not in words
    assert len(set(words)) == len(words)

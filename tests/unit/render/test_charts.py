from __future__ import annotations

import re
from dataclasses import replace
from itertools import pairwise
from xml.etree import ElementTree

import pytest
from report_cases import gpu, images, short, steps_like, tokenizer

from dlprof.model.kinds import Cause, Confidence
from dlprof.model.report import Forecast, StepRow
from dlprof.render import drawing
from dlprof.render.charts import NARROW, WIDE, draw
from dlprof.render.palette import DARK, LIGHT
from dlprof.render.select import BARS_AT_MOST, bars

CHARTS = ("budget", "steps", "components", "forecast")
TEXTS = {key: (f"The {key}", f"What the {key} say & show <b>") for key in CHARTS}
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def drawn() -> dict[str, ElementTree.Element]:
    found = draw(images(), TEXTS)
    assert set(found) == set(CHARTS)
    return {
        f"{key}-{width}": ElementTree.fromstring(getattr(found[key], width))
        for key in found
        for width in ("wide", "narrow")
    }


def test_every_chart_tells_a_screen_reader_what_it_shows(drawn: dict[str, ElementTree.Element]) -> None:
    ids = []
    for key, root in drawn.items():
        assert root.get("role") == "img"
        named = [root.find(f"{SVG}title"), root.find(f"{SVG}desc")]
        assert (root.get("aria-labelledby") or "").split() == [
            element.get("id") for element in named if element is not None
        ]
        assert [element.text for element in named if element is not None] == list(TEXTS[key.split("-")[0]])
        ids += [element.get("id") for element in root.iter() if element.get("id")]
    assert len(ids) == len(set(ids))


def test_every_chart_has_the_width_it_was_drawn_for(drawn: dict[str, ElementTree.Element]) -> None:
    for key, root in drawn.items():
        assert float(root.get("width") or 0) == (WIDE if key.endswith("wide") else NARROW)


def test_every_colour_can_be_exchanged_in_the_dark(drawn: dict[str, ElementTree.Element]) -> None:
    known = {*LIGHT.values(), "none", "transparent"}
    for root in drawn.values():
        used = {element.get(name) for element in root.iter() for name in ("fill", "stroke")} - {None}
        assert used <= known


def test_nothing_in_a_chart_can_fetch_or_run(drawn: dict[str, ElementTree.Element]) -> None:
    for root in drawn.values():
        tags = {element.tag.removeprefix(SVG) for element in root.iter()}
        assert tags <= {"svg", "title", "desc", "g", "path", "line", "rect", "text"}
        assert not any("href" in name for element in root.iter() for name in element.attrib)


def test_the_budget_adds_up_to_the_width() -> None:
    paths = re.findall(r'd="M([\d.]+),0h([\d.]+)v46', draw(tokenizer(), {"budget": ("t", "d")})["budget"].wide)
    ends = [float(start) + float(width) for start, width in paths]
    assert max(ends) == pytest.approx(WIDE - 2, abs=0.1)


def test_labels_stand_only_where_they_fit() -> None:
    found = draw(gpu(), {"budget": ("t", "d")})["budget"]
    assert re.findall(r"<text[^>]*>([^<]+)<", found.narrow) == ["compute", "91 %"]


def test_no_chart_without_data() -> None:
    assert draw(short(), dict.fromkeys(("budget", "components", "forecast"), ("t", "d"))) == {}
    one_step = replace(tokenizer(), steps=[StepRow(1, 2.0, 1.0, False)])
    assert draw(one_step, {"steps": ("t", "d")}) == {}


def test_a_forecast_that_only_repeats_the_measured_setting_is_no_curve() -> None:
    same = Forecast("num_workers", 0, 0, (60, 61, 62), (1, 1, 1), Confidence.HIGH, None)
    assert draw(replace(tokenizer(), forecast=[same]), {"forecast": ("t", "d")}) == {}


def test_a_failing_chart_library_costs_only_the_charts(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> str:
        raise ValueError("Vega-Lite to SVG conversion failed")

    monkeypatch.setattr("dlprof.render.charts.to_svg", fail)
    assert draw(tokenizer(), TEXTS) == {}


def test_many_steps_are_averaged_and_traced_ones_kept_apart() -> None:
    steps = steps_like(50.0, 10.0, 5000, 10, {})
    found = bars(steps)
    assert len(found) <= BARS_AT_MOST + 2
    assert found[0].start == steps[0].index
    assert found[-1].end == steps[-1].index + 1
    assert sum(bar.traced for bar in found) == 1
    assert all(left.end == right.start for left, right in pairwise(found))


def test_one_step_that_towers_over_the_rest_is_cut_and_labelled() -> None:
    steps = steps_like(50.0, 10.0, 40, 0, {7: 20.0})
    texts = re.findall(
        r"<text[^>]*>([^<]+)<", draw(replace(tokenizer(), steps=steps), {"steps": ("t", "d")})["steps"].wide
    )
    assert sum(text.startswith("▲") for text in texts) == 1


def test_slimming_keeps_what_is_drawn() -> None:
    drawn = '<path class="background" d="M0,0h0v0h0Z"/><g class="x"></g><path d="M1.23456,2h3e-7" fill="#fff"/>'
    assert drawing.slim(drawn) == '<path d="M1.23,2h3e-7" fill="#fff"/>'


# ---------------------------------------------------------------- colours


def luminance(colour: str) -> float:
    """Relative luminance. Source: WCAG 2.2."""
    parts = [int(colour[index : index + 2], 16) / 255 for index in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("colours", [LIGHT, DARK], ids=["light", "dark"])
def test_text_can_be_read(colours: dict[str, str]) -> None:
    for ink in ("ink", "muted", "good", "warn", "accent"):
        for ground in ("surface", "raised"):
            assert contrast(colours[ink], colours[ground]) >= 4.5, (ink, ground)
    for cause in Cause:
        assert contrast(colours["on_fill"], colours[cause.value]) >= 4.5, cause
        assert contrast(colours[cause.value], colours["surface"]) >= 3, cause


def test_light_and_dark_have_the_same_colours_and_none_twice() -> None:
    assert LIGHT.keys() == DARK.keys()
    assert len(set(LIGHT.values())) == len(LIGHT)

"""The pipeline at single steps: a section with a chart of lanes for each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dlprof.model.moments import Moment, Part
from dlprof.render.blocks import Figure, Section
from dlprof.render.drawing import Pads, across, axis, chart_of, down, framed
from dlprof.render.numbers import milliseconds
from dlprof.render.palette import LIGHT
from dlprof.words import ENGLISH, joined, language, marked, tr

_COLOURS = {
    Part.WAIT: "input_wait",
    Part.STEP: "device_compute",
    Part.AWAITED: "python",
    Part.OTHERS: "rest",
    Part.HAND_OVER: "h2d_copy",
    Part.UNPICKLE: "synchronization",
    Part.PIN: "communication",
    Part.DEVICE: "device_compute",
}
_WORDS = {
    Part.WAIT: marked("waiting for the batch"),
    Part.STEP: marked("the step"),
    Part.AWAITED: marked("its batch is made"),
    Part.OTHERS: marked("other batches are made"),
    Part.HAND_OVER: marked("it is handed over"),
    Part.UNPICKLE: marked("unpickling a batch"),
    Part.PIN: marked("pinning"),
    Part.DEVICE: marked("the device is busy"),
}
_TITLES = {
    "typical": marked("A typical step, number {number}, ms"),
    "slowest": marked("The slowest step, number {number}, ms"),
}
_LANES = (marked("training loop"), marked("making batches"), marked("worker"), marked("pinning"), marked("device"))
"""What lanes are called."""
_PITCH, _THICK = 24, 14
_LABELS = 104


def moments_section(moments: Sequence[Moment]) -> Section | None:
    """The section; None without a moment."""
    figures = tuple(Figure(it.key, tr(_TITLES[it.key], number=it.index), _sentence(it)) for it in moments)  # type: ignore[arg-type]
    return Section("pipeline", tr("The pipeline at work"), figures) if figures else None


def _sentence(moment: Moment) -> str:
    wait = milliseconds(moment.wait_ms)
    took = tr(
        "Step {number} took {time}, and waited {wait} of it for its batch.",
        number=moment.index,
        time=milliseconds(moment.ms),
        wait=wait,
    )
    if moment.made_ms is None or moment.made_from_ms is None:
        return joined(took, tr("The making of the batch was not seen."))
    made = milliseconds(moment.made_ms)
    if moment.made_by == "making batches":
        return joined(took, tr("The training process made it itself meanwhile, in {time}.", time=made))
    since = (
        marked("{maker} made it in {time}, begun {before} before the step asked for it.")
        if moment.made_from_ms <= 0
        else marked("{maker} made it in {time}, begun {before} after that.")
    )
    maker = lane_name(moment.made_by)
    if language() == ENGLISH:
        maker = maker.capitalize()
    return joined(
        took,
        tr(since, maker=maker, time=made, before=milliseconds(abs(moment.made_from_ms))),
    )


def lane_name(name: str) -> str:
    """A lane for people; of ``worker 2`` the number stays."""
    kind, _, number = name.rpartition(" ")
    return f"{tr(kind)} {number}" if number.isdecimal() else tr(name)


def legend(moment: Moment) -> tuple[tuple[str, str], ...]:
    """Colours that are used, and what they mean."""
    used = {piece.part for lane in moment.lanes for piece in lane.slices}
    return tuple((_COLOURS[part], tr(_WORDS[part])) for part in Part if part in used)


def moment_chart(moment: Moment, width: int) -> Any:
    """The lanes of a moment, with the step's begin and end.

    Args:
        moment: What is drawn.
        width: Of the drawing, in pixels.
    """
    import altair as alt

    pads = Pads(_LABELS, 4, 10, 24)
    plot = width - pads.left - pads.right
    height = _PITCH * len(moment.lanes)
    y = down("y", height)
    # Places are in pixels but for the axis, since each layer has a scale of its own.
    scale = plot / (moment.to_ms - moment.from_ms)
    ticks = alt.X(
        "x:Q",
        scale=alt.Scale(domain=[moment.from_ms, moment.to_ms], nice=False),
        axis=axis(grid=False, tickCount=max(3, int(plot // 90)), format=",~f"),
    )
    rules = [{"x": place, "y": 0, "y2": height} for place in (0.0, moment.to_ms)]
    layers = [chart_of(rules).mark_rule(color=LIGHT["muted"], strokeDash=[3, 3]).encode(x=ticks, y=y, y2="y2")]
    for part in Part:
        boxes = [
            {
                "x": (piece.start_ms - moment.from_ms) * scale,
                "x2": (piece.end_ms - moment.from_ms) * scale,
                "y": row * _PITCH + 5,
                "y2": row * _PITCH + 5 + _THICK,
            }
            for row, lane in enumerate(moment.lanes)
            for piece in lane.slices
            if piece.part is part
        ]
        if boxes:
            box = chart_of(boxes).mark_rect(color=LIGHT[_COLOURS[part]], stroke=LIGHT["surface"], strokeWidth=1)
            layers.append(box.encode(x=across("x", plot), x2="x2", y=y, y2="y2"))
    names = [{"x": 0, "y": row * _PITCH + 12, "text": lane_name(lane.name)} for row, lane in enumerate(moment.lanes)]
    name = chart_of(names).mark_text(align="right", baseline="middle", dx=-10, color=LIGHT["ink"])
    layers.append(name.encode(x=across("x", plot), y=y, text="text:N"))
    return framed(alt.layer(*layers).resolve_scale(x="independent"), width, height, pads)

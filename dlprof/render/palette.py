"""Colours, light and dark. Charts are drawn in the light ones; a style sheet made here exchanges them in the dark.

The causes' colours differ in hue along blue and orange, which stay apart in every common colour blindness, and in
lightness; no chart relies on colour alone. Text on a coloured ground (``on_fill``) has a contrast of at least 4.5.
"""

from __future__ import annotations

LIGHT = {
    "surface": "#ffffff",
    "raised": "#f6f7f9",
    "ink": "#1b1f24",
    "muted": "#57606a",
    "line": "#d8dde3",
    "band": "#eef0f3",
    "accent": "#0b5cad",
    "good": "#1a6b33",
    "warn": "#8a4b00",
    "on_fill": "#fffffe",
    "input_wait": "#b54708",
    "device_compute": "#1f5fae",
    "h2d_copy": "#6941a8",
    "communication": "#0d6b68",
    "synchronization": "#962d61",
    "kernel_launch": "#55620a",
    "python": "#3d6b1e",
    "checkpoint": "#775412",
    "other": "#667080",
    "rest": "#a9bacd",
}

DARK = {
    "surface": "#14171b",
    "raised": "#1d2127",
    "ink": "#e6e9ed",
    "muted": "#a3adb8",
    "line": "#353c45",
    "band": "#23282f",
    "accent": "#79b8ff",
    "good": "#7fd391",
    "warn": "#f0b36b",
    "on_fill": "#0d1013",
    "input_wait": "#f39a5b",
    "device_compute": "#74aef0",
    "h2d_copy": "#bda2ee",
    "communication": "#58c4bd",
    "synchronization": "#e78db8",
    "kernel_launch": "#b9c657",
    "python": "#96cd72",
    "checkpoint": "#d9b05c",
    "other": "#98a2af",
    "rest": "#4e647c",
}


def style() -> str:
    """CSS: a variable per colour, dark by the reader's preference on screen, and the same for charts' attributes."""
    lines = [
        f":root {{ color-scheme: light dark; {_variables(LIGHT)} }}",
        f"@media screen and (prefers-color-scheme: dark) {{ :root {{ {_variables(DARK)} }} }}",
    ]
    for key, colour in LIGHT.items():
        lines.append(f'svg [fill="{colour}"] {{ fill: var(--{key}); }}')
        lines.append(f'svg [stroke="{colour}"] {{ stroke: var(--{key}); }}')
        lines.append(f".swatch-{key} {{ background: var(--{key}); }}")
    return "\n".join(lines)


def _variables(colours: dict[str, str]) -> str:
    return " ".join(f"--{key}: {colour};" for key, colour in colours.items())

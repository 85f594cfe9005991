"""report.json: written and read back, valid by its schema, and as the contract lays it out."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from importlib import resources
from typing import Any

import jsonschema
import pytest
from builders import ms, profile, step
from generated import of_dataclass
from hypothesis import HealthCheck, given, settings

from dlprof.diagnose import diagnose
from dlprof.formats.report_json import SCHEMA_FILE, decode_report, encode_report, report_schema
from dlprof.model.report import SCHEMA, Report, StepTimes, Totals

any_report = of_dataclass(Report).map(lambda report: replace(report, schema=SCHEMA))
unhurried = settings(
    max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)

MEASURED = diagnose(
    profile(step(tokenizer=ms(30), compute=ms(10)) * 20 + step(tokenizer=ms(30), compute=ms(12), traced=True) * 5)
)


@pytest.fixture(scope="module")
def validator() -> jsonschema.Draft202012Validator:
    jsonschema.Draft202012Validator.check_schema(report_schema())
    return jsonschema.Draft202012Validator(report_schema())


@unhurried
@given(report=any_report)
def test_any_report_is_read_back_as_it_was_written(report):
    assert decode_report(encode_report(report)) == report


@unhurried
@given(report=any_report)
def test_any_report_is_valid_by_the_schema(validator, report):
    validator.validate(json.loads(encode_report(report)))


def test_a_measured_report_is_valid_and_is_read_back(validator):
    validator.validate(json.loads(encode_report(MEASURED)))
    assert decode_report(encode_report(MEASURED)) == MEASURED


def test_a_report_in_which_nothing_is_known_is_valid(validator):
    nothing = replace(
        MEASURED,
        run=replace(MEASURED.run, batches_per_optimizer_step=None, device_name=None),
        verdict=replace(MEASURED.verdict, component=None, share=None),
        step=StepTimes(None, None, None, None, None, None),
        budget=[],
        totals=Totals(),
        device=None,
        input=None,
        forecast=[],
        advice=[],
        not_advised=[],
        steps=[],
        notices=[],
        overhead=replace(MEASURED.overhead, own_cost_ratio=None, traced_ratio=None),
    )
    validator.validate(json.loads(encode_report(nothing)))
    assert decode_report(encode_report(nothing)) == nothing


# The example in the contract, as data: key to what stands there. ``None`` in a set: null is allowed.
NUMBER, TEXT, LIST, OBJECT, ANY = "number", "string", "array", "object", "any"
CONTRACT: dict[str, dict[str, Any]] = {
    "Report": {
        "schema": TEXT,
        "dlprof": TEXT,
        "created": TEXT,
        "host": TEXT,
        "run": OBJECT,
        "verdict": OBJECT,
        "step": OBJECT,
        "budget": LIST,
        "totals": OBJECT,
        "device": {OBJECT, None},
        "input": {OBJECT, None},
        "forecast": LIST,
        "advice": LIST,
        "not_advised": LIST,
        "steps": LIST,
        "ranks": LIST,
        "environment": OBJECT,
        "notices": LIST,
        "overhead": OBJECT,
    },
    "Run": {
        "command": LIST,
        "steps_measured": NUMBER,
        "steps_traced": NUMBER,
        "batches_per_optimizer_step": {NUMBER, None},
        "device": TEXT,
        "device_name": {TEXT, None},
        "world_size": NUMBER,
        "exit": OBJECT,
    },
    "Exit": {"status": NUMBER, "reason": TEXT, "detail": {TEXT, None}},
    "Verdict": {
        "bottleneck": TEXT,
        "component": {TEXT, None},
        "share": {NUMBER, None},
        "confidence": TEXT,
        "headline": TEXT,
    },
    "StepTimes": {
        "mean_ms": {NUMBER, None},
        "p50_ms": {NUMBER, None},
        "p95_ms": {NUMBER, None},
        "steps_per_s": {NUMBER, None},
        "samples_per_s": {NUMBER, None},
        "first_batch_s": {NUMBER, None},
    },
    "BudgetRow": {"cause": TEXT, "ms_per_step": NUMBER, "share": NUMBER, "source": TEXT},
    "Totals": {
        "collate_fn": {OBJECT, None},
        "tokenizer": {OBJECT, None},
        "dataset": {OBJECT, None},
        "h2d": {OBJECT, None},
        "device_step": {OBJECT, None},
    },
    "Total": {"ms_per_batch": NUMBER, "calls": NUMBER},
    "Device": {
        "busy_ratio": NUMBER,
        "idle_ms_per_step": NUMBER,
        "h2d_bytes_per_step": {NUMBER, None},
        "h2d_gb_per_s": {NUMBER, None},
        "h2d_pageable_ratio": {NUMBER, None},
        "top_kernels": LIST,
    },
    "Input": {
        "loader": OBJECT,
        "per_batch_ms": OBJECT,
        "worker_busy_ratio": {NUMBER, None},
        "queue_depth_mean": {NUMBER, None},
        "workers": LIST,
        "pad_ratio": {NUMBER, None},
        "slowest_samples": LIST,
        "hot_lines": LIST,
    },
    "Spread": {"mean": NUMBER, "p50": NUMBER, "p95": NUMBER},
    "Worker": {
        "pid": NUMBER,
        "batches": NUMBER,
        "cpu_s": NUMBER,
        "no_core_s": NUMBER,
        "blocked_s": NUMBER,
        "private_mb_start": {NUMBER, None},
        "private_mb_end": {NUMBER, None},
    },
    "SlowSample": {"index": NUMBER, "ms": NUMBER},
    "HotLine": {"where": TEXT, "function": TEXT, "source": TEXT, "share": NUMBER, "state": TEXT},
    "Forecast": {
        "setting": TEXT,
        "from": ANY,
        "to": ANY,
        "step_ms": LIST,
        "speedup": LIST,
        "confidence": TEXT,
        "limited_by": {TEXT, None},
    },
    "AdviceRow": {
        "id": TEXT,
        "setting": {TEXT, None},
        "from": ANY,
        "to": ANY,
        "speedup": {LIST, None},
        "evidence": LIST,
        "how": TEXT,
    },
    "Evidence": {"metric": TEXT, "value": NUMBER, "unit": TEXT},
    "NotAdvised": {"id": TEXT, "why": TEXT},
    "StepRow": {"index": NUMBER, "ms": NUMBER, "input_wait_ms": NUMBER, "traced": "boolean"},
    "NoticeRow": {"slug": TEXT, "count": NUMBER, "text": TEXT},
    "Overhead": {"own_cost_ratio": {NUMBER, None}, "traced_ratio": {NUMBER, None}, "lost_spans": NUMBER},
}


def kinds(definition: dict[str, Any], definitions: dict[str, Any]) -> set[str | None]:
    """What a part of the schema allows: names of JSON types, None for null, "any" for no restriction."""
    if "anyOf" in definition:
        return set().union(*(kinds(each, definitions) for each in definition["anyOf"]))
    if "$ref" in definition:
        return kinds(definitions[definition["$ref"].rpartition("/")[2]], definitions)
    if "enum" in definition or "const" in definition:
        return {TEXT}
    name = definition.get("type", ANY)
    return {{"integer": NUMBER, "null": None}.get(name, name)}


@pytest.mark.parametrize("name", CONTRACT)
def test_keys_and_types_are_those_of_the_contract(name):
    definitions = report_schema()["$defs"]
    properties = definitions[name]["properties"]
    found = {key: kinds(part, definitions) for key, part in properties.items()}
    expected = {key: allowed if isinstance(allowed, set) else {allowed} for key, allowed in CONTRACT[name].items()}
    assert found == expected


def test_every_object_of_the_report_is_in_the_contract():
    objects = {name for name, each in report_schema()["$defs"].items() if each.get("type") == "object"}
    assert objects - set(CONTRACT) == {"Kernel"}


def test_a_trailing_underscore_of_a_python_name_is_nowhere_in_the_json():
    document = json.loads(encode_report(MEASURED))
    keys = set()

    def collect(part: Any) -> None:
        if isinstance(part, dict):
            keys.update(part)
        for each in part.values() if isinstance(part, dict) else part if isinstance(part, list) else ():
            collect(each)

    collect([document, report_schema()])
    assert not [key for key in keys if key.endswith("_")]
    assert "from" in keys


def test_top_level_keys_stand_in_the_order_of_the_contract():
    assert list(json.loads(encode_report(MEASURED))) == list(CONTRACT["Report"])
    assert [each.name for each in fields(Report)] == list(CONTRACT["Report"])


def test_the_schema_that_the_package_ships_is_that_of_the_types():
    shipped = resources.files("dlprof") / "schema" / SCHEMA_FILE
    assert json.loads(shipped.read_text(encoding="utf-8")) == report_schema()


def test_the_file_ends_with_a_line_break_and_is_utf8():
    report = replace(MEASURED, host="höst")
    assert encode_report(report).endswith(b"}\n")
    assert "höst".encode() in encode_report(report)


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"null", b"{}", b'{"schema": "dlprof.report/1"}'])
def test_what_is_no_report_is_refused(data):
    with pytest.raises(ValueError, match=r"."):
        decode_report(data)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("schema", "dlprof.report/2"),
        ("verdict", None),
        ("budget", [{"cause": "coffee", "ms_per_step": 1, "share": 1, "source": "light"}]),
        ("step", {}),
    ],
)
def test_the_schema_refuses_what_no_report_says(validator, key, value):
    document = json.loads(encode_report(MEASURED)) | {key: value}
    assert not validator.is_valid(document)

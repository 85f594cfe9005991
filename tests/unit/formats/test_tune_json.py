"""tune.json: written and read back, and valid by its schema."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from importlib import resources

import jsonschema
import pytest
from generated import of_dataclass
from hypothesis import HealthCheck, given, settings

from dlprof.formats.tune_json import SCHEMA_FILE, decode_tune, encode_tune, tune_schema
from dlprof.model.tune import SCHEMA, Tune

any_tune = of_dataclass(Tune).map(lambda tune: replace(tune, schema=SCHEMA))
unhurried = settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)


@unhurried
@given(tune=any_tune)
def test_any_result_is_read_back_as_it_was_written(tune):
    assert decode_tune(encode_tune(tune)) == tune


@unhurried
@given(tune=any_tune)
def test_any_result_is_valid_and_lacks_no_key(tune):
    document = json.loads(encode_tune(tune))
    jsonschema.validate(document, tune_schema())
    assert list(document) == [field.name for field in fields(Tune)]


def test_the_packaged_schema_is_that_of_the_types():
    packaged = resources.files("dlprof").joinpath("schema", SCHEMA_FILE).read_text()
    assert json.loads(packaged) == tune_schema(), "run: python -m dlprof.formats.tune_json"


@pytest.mark.parametrize("data", [b"", b"{}", b"[1", b'{"schema": "dlprof.tune/1"}'])
def test_what_is_no_result_is_refused(data):
    with pytest.raises(ValueError, match=r"."):
        decode_tune(data)

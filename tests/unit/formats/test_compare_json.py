"""compare.json: written and read back, and valid by its schema."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from importlib import resources

import jsonschema
import pytest
from generated import of_dataclass
from hypothesis import HealthCheck, given, settings

from dlprof.formats.compare_json import SCHEMA_FILE, compare_schema, decode_compare, encode_compare
from dlprof.model.compare import SCHEMA, Compare

any_compare = of_dataclass(Compare).map(lambda it: replace(it, schema=SCHEMA))
unhurried = settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)


@unhurried
@given(compare=any_compare)
def test_any_result_is_read_back_as_it_was_written(compare):
    assert decode_compare(encode_compare(compare)) == compare


@unhurried
@given(compare=any_compare)
def test_any_result_is_valid_and_lacks_no_key(compare):
    document = json.loads(encode_compare(compare))
    jsonschema.validate(document, compare_schema())
    assert list(document) == [field.name for field in fields(Compare)]


def test_the_packaged_schema_is_that_of_the_types():
    packaged = resources.files("dlprof").joinpath("schema", SCHEMA_FILE).read_text()
    assert json.loads(packaged) == compare_schema(), "run: python -m dlprof.formats.compare_json"


@pytest.mark.parametrize("data", [b"", b"{}", b"[1", b'{"schema": "dlprof.compare/1"}'])
def test_what_is_no_result_is_refused(data):
    with pytest.raises(ValueError, match=r"."):
        decode_compare(data)

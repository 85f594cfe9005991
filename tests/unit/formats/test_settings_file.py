from __future__ import annotations

import json

import pytest

from dlprof.formats.settings_file import NAME, Settings, load_settings

ASKED = Settings(steps=50, warmup=5, trace_steps=10, max_disk_bytes=500_000_000, supervisor_pid=42)


@pytest.mark.parametrize("steps", [50, None])
def test_what_the_supervisor_asks_for_arrives(tmp_path, steps):
    asked = Settings(steps, 5, 10, 500_000_000, 42)
    asked.save(tmp_path)
    assert load_settings(str(tmp_path)) == asked


def test_a_folder_without_settings_is_refused(tmp_path):
    with pytest.raises(OSError, match=NAME):
        load_settings(str(tmp_path))


@pytest.mark.parametrize("text", ["", "{", "[]", '{"steps": 1}', json.dumps({"nonsense": 1})])
def test_what_is_no_settings_file_is_refused(tmp_path, text):
    (tmp_path / NAME).write_text(text)
    with pytest.raises((ValueError, TypeError)):
        load_settings(str(tmp_path))

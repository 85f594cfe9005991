"""What is hooked when the script imports torch."""

from __future__ import annotations

from types import ModuleType

import pytest
from recordings import begin, events, rows

from dlprof.capture import install
from dlprof.capture.patches import Patches
from dlprof.model.kinds import Kind


@pytest.fixture
def session(tmp_path):
    return begin(tmp_path)


def written(session, tmp_path, *kinds: Kind):
    session.recorder.flush_all()
    return rows(tmp_path, *kinds)


def test_nothing_is_recorded_in_a_python_of_the_users_own():
    assert install.current() is None


def test_a_hook_that_does_not_fit_this_version_leaves_a_notice_and_no_error(session, tmp_path):
    def broken(_: ModuleType) -> None:
        raise AttributeError("no such thing in this version")

    install._guarded(session, "torch.optim.optimizer", broken)(ModuleType("torch.optim.optimizer"))
    (notice,) = events(tmp_path, "notice")
    assert (notice["slug"], notice["hook"]) == ("hook-missing", "torch.optim.optimizer")
    assert session.recorder.on


@pytest.fixture
def serialization(session):
    module = ModuleType("torch.serialization")

    def save(thing: object, to: list[object]) -> int:
        if thing == "bad":
            raise OSError("the user's own disk is full")
        to.append(thing)
        return len(to)

    module.save = save
    patches = Patches()
    install._hook_save(session, patches, module)
    yield module
    patches.restore()
    assert module.save is save


def test_saving_is_a_checkpoint(session, serialization, tmp_path):
    kept: list[object] = []
    assert serialization.save("state", to=kept) == 1
    assert kept == ["state"]
    assert len(written(session, tmp_path, Kind.CHECKPOINT)) == 1
    assert serialization.save.__name__ == "save"


def test_an_error_while_saving_passes(session, serialization, tmp_path):
    with pytest.raises(OSError, match="user's own"):
        serialization.save("bad", to=[])
    assert len(written(session, tmp_path, Kind.CHECKPOINT)) == 1
    assert session.recorder.on


def test_a_recording_that_has_ended_leaves_saving_alone(session, serialization, tmp_path):
    session.recorder.on = False
    assert serialization.save("state", to=[]) == 1
    assert written(session, tmp_path) == []


def test_a_recording_that_fails_does_not_keep_the_script_from_saving(session, serialization, monkeypatch):
    def full(*_, **__) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(type(session.recorder.thread().writer), "add", full)
    assert serialization.save("state", to=[]) == 1
    assert not session.recorder.on


def test_every_optimizers_step_is_seen(session, tmp_path):
    module = ModuleType("torch.optim.optimizer")
    hooks = {}

    class Handle:
        def __init__(self, **hook) -> None:
            self.name = next(iter(hook))
            hooks.update(hook)

        def remove(self) -> None:
            del hooks[self.name]

    module.register_optimizer_step_pre_hook = lambda hook: Handle(before=hook)
    module.register_optimizer_step_post_hook = lambda hook: Handle(after=hook)
    patches = Patches()
    install._hook_optimizers(session, patches, module)
    assert hooks["before"]("optimizer", (), {}) is None
    assert hooks["after"]("optimizer", (), {}) is None
    assert len(written(session, tmp_path, Kind.OPTIMIZER)) == 1
    patches.restore()
    assert hooks == {}

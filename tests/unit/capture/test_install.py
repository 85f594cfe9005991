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

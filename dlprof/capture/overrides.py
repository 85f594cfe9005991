"""``--set NAME=VALUE``: other arguments for a DataLoader than the script gives, where the script makes it.

What depends on a setting that was changed goes with it, as torch would otherwise refuse the whole: without workers
nothing is prefetched. What torch does not allow is left as the script has it, and said.
"""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from dlprof.capture.recorder import Recorder
from dlprof.formats.places import Place
from dlprof.formats.settings_file import Override
from dlprof.model.kinds import Role

_NEEDS_WORKERS: dict[str, Any] = {
    "prefetch_factor": None,
    "persistent_workers": False,
    "multiprocessing_context": None,
    "timeout": 0,
}
"""Arguments that have no meaning without workers, and the value that torch accepts there."""

_WARNS = "check_worker_number_rationality"
"""torch's method that warns of more workers than cores, when a loader is made and whenever it is iterated."""


class Overrides:
    """The settings to change, and the datasets that a loader was made of so far.

    Args:
        recorder: Is told what became of each setting.
        wanted: What to change. Where several name the same setting of a loader, the last one holds.
    """

    def __init__(self, recorder: Recorder, wanted: Iterable[Override]) -> None:
        self._recorder = recorder
        self._wanted = tuple(wanted)
        self._datasets: list[_Dataset] = []
        self._said: set[str] = set()

    def index_of(self, dataset: Any) -> int:
        """The number of a dataset from 0, in the order in which the script makes loaders of them.

        Loaders of one dataset share a number: the loader of every epoch, and that which a framework makes anew.
        """
        for index, known in enumerate(self._datasets):
            if known.is_(dataset):
                return index
        self._datasets.append(_Dataset(dataset))
        return len(self._datasets) - 1

    def plan(
        self, original: Callable[..., None], loader: Any, args: Any, kwargs: Any, made_at: Sequence[Place] = ()
    ) -> Plan | None:
        """What to change of one loader that is being made; None where nothing is. Raises nothing.

        Args:
            original: The constructor, ``DataLoader.__init__`` or that of a subclass.
            loader: What is made.
            args: The script's positional arguments.
            kwargs: The script's keyword arguments.
            made_at: Where the loader is made, as `Constructions.noted` gives it.
        """
        try:
            dataset = args[0] if args else kwargs["dataset"]
            # Datasets are numbered also where nothing is changed.
            index = self.index_of(dataset)
            if not self._wanted or self._recorder.role is Role.WORKER:
                # In a worker it is a loader inside of a dataset: that must not have workers of its own.
                return None
            bound = inspect.signature(original).bind(loader, *args, **kwargs)
            bound.apply_defaults()
            meant = [it for it in self._wanted if _is_meant(it.loader, index, bound.arguments)]
            facts = {"index": index, "dataset": _class_of(dataset), "made_at": made_at}
            if not meant:
                self._say(facts)
                return None
            return Plan(bound, facts | {"asked": list(map(str, meant))}, {it.name: it.value for it in meant})
        except Exception:
            # Arguments that do not fit are for torch to name.
            return None

    def make(self, plan: Plan, original: Callable[..., None], loader: Any, args: Any, kwargs: Any) -> None:
        """Initialise ``loader`` as planned; with the script's own arguments where torch does not allow the others.

        Args:
            plan: From `plan`.
            original: As there, like the following ones.
            loader: What to initialise.
            args: The script's positional arguments.
            kwargs: The script's keyword arguments.

        Raises:
            Exception: What the constructor raises of the script's own arguments.
        """
        if plan.changed:
            quiet = "num_workers" in plan.changed and hasattr(loader, _WARNS)
            try:
                if quiet:
                    # It would warn of more workers than cores, at every trial, a script that asks for none of them.
                    object.__setattr__(loader, _WARNS, _not_warned)
                original(*plan.bound.args, **plan.bound.kwargs)
            except (ValueError, TypeError) as error:
                plan.give_up(str(error))
                if quiet:
                    object.__delattr__(loader, _WARNS)
                original(loader, *args, **kwargs)
        else:
            original(loader, *args, **kwargs)
        changed = {name: [_plain(old), new] for name, (old, new) in plan.changed.items()}
        self._say(plan.facts | {"changed": changed, "dropped": plan.dropped, "refused": plan.refused})

    def _say(self, facts: dict[str, Any]) -> None:
        """Tell of a loader, also of one that no setting is meant for: who named none has to know which there are."""
        said = repr(facts)
        if said not in self._said:
            self._said.add(said)
            self._recorder.event("set", **facts)


class Plan:
    """One constructor's arguments, changed as far as they can be.

    Args:
        bound: The script's arguments, defaults included; they are changed in place.
        facts: What tells which loader it is.
        wanted: New values.
    """

    def __init__(self, bound: inspect.BoundArguments, facts: dict[str, Any], wanted: dict[str, Any]) -> None:
        self.bound = bound
        self.facts = facts
        self.changed: dict[str, tuple[Any, Any]] = {}
        self.dropped: list[str] = []
        self.refused: dict[str, str] = {}
        self._change(wanted)

    def give_up(self, reason: str) -> None:
        """Torch does not allow it."""
        self.refused.update(dict.fromkeys(self.changed, reason))
        self.changed.clear()
        self.dropped.clear()

    def _change(self, wanted: dict[str, Any]) -> None:
        # From what others depend on to what depends on others.
        arguments = self.bound.arguments
        if "num_workers" in wanted:
            self._set("num_workers", wanted["num_workers"])
        workers = arguments["num_workers"]
        for name, value in wanted.items():
            if name == "num_workers":
                continue
            if name not in arguments:
                self.refused[name] = "this version of torch has no such setting"
            elif name in _NEEDS_WORKERS and not workers and value != _NEEDS_WORKERS[name]:
                self.refused[name] = "it needs num_workers of at least 1"
            elif name == "batch_size":
                self._set_batch_size(value)
            else:
                self._set(name, value)
        if not workers:
            for name, value in _NEEDS_WORKERS.items():
                if name in arguments and arguments[name] not in (value, None):
                    arguments[name] = value
                    self.dropped.append(name)

    def _set(self, name: str, value: Any) -> None:
        arguments = self.bound.arguments
        if arguments.get(name) != value:
            self.changed[name] = (arguments.get(name), value)
        arguments[name] = value

    def _set_batch_size(self, value: int) -> None:
        arguments = self.bound.arguments
        sampler = arguments.get("batch_sampler")
        if sampler is None:
            if arguments["batch_size"] is None:
                self.refused["batch_size"] = "the dataset makes the batches itself (batch_size=None)"
            else:
                self._set("batch_size", value)
            return
        from torch.utils.data.sampler import BatchSampler

        if type(sampler) is not BatchSampler:
            kind = type(sampler).__qualname__
            self.refused["batch_size"] = f"the script's own batch_sampler ({kind}) decides what a batch is"
        elif sampler.batch_size != value:
            self.changed["batch_size"] = (sampler.batch_size, value)
            arguments["batch_sampler"] = BatchSampler(sampler.sampler, value, sampler.drop_last)


def _is_meant(loader: str, index: int, arguments: dict[str, Any]) -> bool:
    if loader == "train":
        return _draws_or_streams(arguments)
    return not loader or int(loader) == index


def _draws_or_streams(arguments: dict[str, Any]) -> bool:
    """Whether a loader shuffles, draws by a sampler of its own or streams, as loaders to train from do."""
    from torch.utils.data.dataset import IterableDataset
    from torch.utils.data.sampler import SequentialSampler

    sampler = arguments.get("sampler")
    if sampler is None:
        sampler = getattr(arguments.get("batch_sampler"), "sampler", None)
    streams = isinstance(arguments["dataset"], IterableDataset)
    return bool(arguments.get("shuffle")) or streams or (sampler is not None and type(sampler) is not SequentialSampler)


def _not_warned() -> None:
    """Stands in for `_WARNS`; a function of this module, so that the loader can still be pickled."""


def _class_of(thing: Any) -> str:
    return f"{type(thing).__module__}.{type(thing).__qualname__}"


def _plain(value: Any) -> Any:
    """A value that JSON can hold: a start method of torch by its name."""
    method = getattr(value, "get_start_method", None)
    return method() if method is not None else value


class _Dataset:
    """A dataset that a loader was made of, not kept alive by this; a list and the like is known by its address."""

    def __init__(self, dataset: Any) -> None:
        self._address = id(dataset)
        try:
            self._reference: Callable[[], Any] | None = weakref.ref(dataset)
        except TypeError:
            self._reference = None

    def is_(self, dataset: Any) -> bool:
        """Whether it is this one."""
        return id(dataset) == self._address and (self._reference is None or self._reference() is dataset)

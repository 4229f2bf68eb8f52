"""From a gradient on every rank to the mean on every rank."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import torch

from .._version import __version__
from ..compressors import Compressor, State, TensorMeta, with_defaults
from ..compressors.errors import ConfigError, TransportError, UsageError
from .announce import announce
from .exchange import Clock, Source
from .plan import Planner
from .registry import Entry, Place, Registry
from .snapshot import StateDict
from .state import adopted, owed, registered, restored, saved
from .statistics import Account, Statistics
from .step import Step
from .transport import Transport, Work
from .worker import Worker, check_overlap

__all__ = ["GradientReducer"]

ALONE = "one process: gradients are used as they are, nothing is compressed"

#: what a tensor has that keeps nothing, or nothing yet; states are never changed
NO_STATE: State = {}


class GradientReducer:
    """Takes gradients as backward produces them, and gives means: the one place where a mean is taken.

    A step begins with the first `ready` and is settled as a whole by the first `wait`: if every rank's gradients
    were finite, all residuals move and `step` counts up; if not, nothing moves and every mean is NaN, so that a loss
    scaler skips the step on all ranks alike. (Where no tensor is compressed, sums pass as they are.)
    After a failed collective a reducer takes no further step.

    Args:
        compressor: a codec, or one wrapped in memories and policies. A bare biased codec gets error feedback, and
            small and one-dimensional tensors travel dense (`gradwire.with_defaults`).
        transport: the ranks.
        name: prefix of all collectives' names; equal on all ranks, different for every reducer of a job.
        bucket_bytes: gradients are exchanged in buckets of about this many bytes.
        exchange: "auto" takes the cheapest for each bucket. "all_reduce" adds payloads up, "gather" gives every rank
            those of all, "two_phase" has each rank average a shard and encode the mean again, "sparse" does so with
            entries that ranks have chosen, "hierarchical" first averages within each host.
        timeout: seconds that a collective may take.
        seed: base of all pseudo-random choices.
        overlap: encode, and launch later phases, in a thread of its own while backward goes on. The transport must be
            for this reducer alone, unless its collectives go by names (Horovod). Little models and GPUs do without.

    Raises:
        ConfigError: an option is out of its range, the exchange cannot carry the compressor's payloads, or the
            transport serves no thread but one.
    """

    def __init__(
        self,
        compressor: Compressor,
        transport: Transport,
        *,
        name: str = "gradwire",
        bucket_bytes: int = 25 << 20,
        exchange: str = "auto",
        timeout: float = 60.0,
        seed: int = 0,
        overlap: bool = False,
    ) -> None:
        if not timeout > 0:
            raise ConfigError(f"timeout is {timeout!r}; it must be a number of seconds above 0")
        check_overlap(overlap, transport)
        self.compressor = with_defaults(compressor)
        self.transport = transport
        self.step = 0
        self._name = name
        self.timeout = timeout
        self._seed = seed
        self._lock = threading.RLock()
        planner = Planner(self.compressor, transport, exchange, bucket_bytes)
        options = f"exchange={exchange} bucket_bytes={bucket_bytes} seed={seed} overlap={overlap}"
        facts = [f"gradwire {__version__}", f"compressor {self.compressor!r}", options]
        self._registry = Registry(planner, transport, name, facts)
        self._states: dict[str, State] = {}
        self._servers: dict[str, State] = {}
        self._arriving: Step | None = None
        self._settled: Step | None = None
        self._untaken: set[str] = set()
        self._broken: TransportError | None = None
        self._device = torch.device("cpu")
        self._account = Account()
        self._overlap = overlap
        self._worker = Worker(f"gradwire {name}")

    # Before the first step.

    def register(self, metas: Sequence[TensorMeta], groups: Sequence[Sequence[str]] = ()) -> None:
        """Announce tensors; a collective operation: returns when all ranks are known to have announced the same.

        May be called again for further tensors, between steps.

        Args:
            metas: equal on all ranks, in the order in which backward is expected to produce them.
            groups: lists of names; each list gets buckets of its own, the remaining tensors share theirs.

        Raises:
            UsageError: a name is registered or grouped twice, or unknown; or a step is under way.
            MismatchError: ranks differ; raised on every rank, with the first difference.
        """
        with self._lock:
            if self.in_step:
                raise UsageError("tensors can only be registered between steps: call wait() or abandon() first")
            first = not self._registry.metas
            self._registry.add(metas, groups, step=self.step, timeout=self.timeout)
            self._account.per_step = self._registry.per_step()
            if first and self.transport.rank == 0:
                announce(ALONE if self.transport.world_size == 1 else self.statistics.summary())

    @property
    def names(self) -> frozenset[str]:
        """The registered tensors."""
        return frozenset(self._registry.metas)

    @property
    def in_step(self) -> bool:
        """Whether gradients were made ready and are not settled yet."""
        return self._arriving is not None

    @property
    def statistics(self) -> Statistics:
        """What was sent and how long it took."""
        with self._lock:
            self._note_last()
            states = [*self._states.values(), *self._servers.values()]
            saturated = sum(int(state["saturated"]) for state in states if "saturated" in state)
            return replace(self._account.of(self._registry.statistics()), steps=self.step, saturated=saturated)

    # A step.

    def ready(self, name: str, grad: torch.Tensor, *, donate: bool = False) -> None:
        """Hand over a gradient; in any order, once per step. The exchange of a bucket starts when it is full.

        Args:
            name: a registered tensor.
            grad: its gradient; must not be changed before `wait`.
            donate: the gradient's storage may be overwritten and kept.

        Raises:
            UsageError: the name is unknown or ready already, or the tensor does not fit its registration.
        """
        self.ready_all([(name, grad)], donate=donate)

    def ready_all(self, grads: Iterable[tuple[str, torch.Tensor]], *, donate: bool = False) -> None:
        """`ready` for several gradients by name; costs less than one at a time."""
        with self._lock:
            step, filled = self._arriving, False
            for name, grad in grads:
                entry = self._registry.entry(name, grad)
                self._device = grad.device
                step = self._arriving = step or self._begin()
                if step.has(entry.place):
                    raise UsageError(f"gradient {name!r} is ready already: wait() or abandon() comes first")
                filled |= step.put(entry.place, self._source(name, grad, entry, donated=donate))
            if step is not None and filled:
                self._launch(step)

    def _launch(self, step: Step) -> None:
        """After the last gradient there is nothing left that could go on meanwhile."""
        if not step.overlap or self._device.type != "cpu" or step.complete:
            with self.breaking():
                step.launch()
        else:
            self._worker.rouse(step)

    def flush(self) -> None:
        """Count missing gradients as zeros and start every exchange that has not started."""
        with self._lock:
            self._arriving = self._arriving or self._begin()
            self._arriving.fill(self._zeros)
            with self.breaking():
                self._arriving.launch()

    def wait(self, name: str, scale: float = 1.0, out: torch.Tensor | None = None) -> torch.Tensor:
        """The mean of a gradient over the ranks, times `scale`, once per step, in its shape and dtype, or in `out`.

        Raises:
            UsageError: no step is under way, the name is unknown, or its mean was taken already.
            MismatchError, PeerError, TransportError: the step failed; states are as they were before it.
        """
        with self._lock:
            if self._arriving is not None:
                self._commit(self._settle())
            if self._settled is None or name not in self._untaken:
                raise UsageError(f"there is no mean of {name!r} to take: it is taken once per step, after ready()")
            self._untaken.remove(name)
            mean = self._settled.mean(self._registry.entries[name].place, scale, out)
            if not self._untaken:
                self._retire()
            return mean

    def work(self, name: str) -> Work | None:
        """The collective that carries a tensor right now; None before its bucket is full, and for one rank alone."""
        step = self._arriving or self._settled
        return None if step is None else step.work(self._registry.entries[name].place)

    def pending(self, name: str) -> torch.Tensor:
        """This rank's part of the update that is still owed: summed over the ranks, mean gradients minus means given.

        fp32, in the gradient's shape; zero where nothing is compressed or error feedback is off.
        """
        with self._lock:
            state, server = self._states.get(name, NO_STATE), self._servers.get(name, NO_STATE)
            return owed(self._registry, name, state, server, self._device)

    def state_dict(self) -> StateDict:
        """What this rank keeps after the last applied step: values and copies of tensors (`backends/snapshot.py`)."""
        with self._lock:
            kept = registered(self._registry, self._states, self._servers, self.step, self._account.skipped)
            return saved(kept, self.compressor, self.transport)

    def load_state_dict(self, state: StateDict) -> None:
        """Go on from a state, once all tensors are registered: from this rank's own at the same world size and with the
        same buckets, or at any from one that `merge_states` made.

        Raises:
            UsageError: a step is under way.
            ConfigError: it does not fit, or is malformed; the text names the first difference. Nothing has changed.
        """
        with self._lock:
            if self.in_step:
                raise UsageError("a state can only be loaded between steps: call wait() or abandon() first")
            kept = restored(state, self.compressor, self.transport)
            self._states, self._servers = adopted(kept, self._registry, self.compressor)
            self.step, self._account.skipped = kept.step, kept.skipped_steps

    def abandon(self) -> None:
        """Finish a step's collectives and drop its results; states stay as they were. All ranks must do so."""
        with self._lock:
            if self._arriving is not None:
                self._settle()

    def _begin(self) -> Step:
        if self._broken is not None:
            raise TransportError(
                f"reducer {self._name!r} takes no further step, because ranks may have parted when a collective "
                f"failed ({self._broken}): make a new one on every rank, from the last checkpoint"
            ) from self._broken
        self._retire()
        clock = Clock(self.step, self.transport.rank, self._seed)
        overlap = self._overlap and self._registry.gains_by_overlap
        return Step(self._registry.exchanges, clock, ordered=self.transport.ordered, overlap=overlap)

    def _settle(self) -> Step:
        """End the open step on all ranks. Whatever happens, the next `ready` begins a new one."""
        self.flush()
        step, self._arriving = self._arriving or self._begin(), None
        with self.breaking():
            step.settle(self.timeout)
        return step

    @contextmanager
    def breaking(self) -> Iterator[None]:
        """A failed collective ends the step and the reducer: other ranks may have applied what this one has not."""
        try:
            yield
        except TransportError as error:
            step, self._arriving, self._broken = self._arriving, None, error
            if step is not None:
                step.stop()
            raise

    def _commit(self, step: Step) -> None:
        if step.applied:
            for name, place in self._registry.stateful.items():
                self._states[name], self._servers[name] = step.states(place)
            self.step += 1
        self._account.begin(applied=step.applied)
        self._settled, self._untaken = step, set(self._registry.entries)

    def _retire(self) -> None:
        """Let go of a settled step and its buffers; means that nobody took are dropped."""
        self._note_last()
        self._settled, self._untaken = None, set()

    def _note_last(self) -> None:
        if self._settled is not None:
            self._account.note(self._settled.times)

    def _source(self, name: str, grad: torch.Tensor, entry: Entry, *, donated: bool) -> Source:
        grad = grad.detach() if grad.requires_grad else grad
        state, server = self._states.get(name, NO_STATE), self._servers.get(name, NO_STATE)
        return Source(grad, donated, state, server, entry.keeps)

    def _zeros(self, place: Place) -> Source:
        meta = self._registry.exchanges[place.bucket].bucket.slots[place.slot].meta
        zeros = torch.zeros(meta.shape, dtype=meta.dtype, device=self._device)
        return self._source(meta.name, zeros, self._registry.entries[meta.name], donated=True)

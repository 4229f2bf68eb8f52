"""The mean of one flat bucket at a time, for hosts that fill buckets themselves."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from time import perf_counter

import torch

from .._version import __version__
from ..compressors import Compressor, with_defaults
from ..compressors.errors import ConfigError, TransportError, UsageError
from ..compressors.memory import RESIDUAL
from .bucket_account import BucketAccount
from .bucket_call import BucketCall
from .call_agreement import CallAgreement, Turn
from .exchange import Clock
from .flat_plan import FlatPlan, Request
from .flat_plans import FlatPlans
from .ledger import Ledger
from .parts import Part
from .snapshot import StateDict
from .state import Kept, check_shapes, restored, saved
from .statistics import Statistics, Times
from .transport import Transport

__all__ = ["BucketReducer"]


class BucketReducer:
    """Takes a flat bucket and gives its mean over the ranks, in one call. Every method may be called by any thread.

    All ranks call in the same order with the same parts. Residuals belong to the elements of a tensor, by its name:
    buckets may be made up otherwise in every step. A call whose bucket is finite on every rank moves them at once;
    a later call sees them. `commit` ends a step and keeps them; `rollback` ends it as if it had not been. Where
    some rank's bucket is not finite, the result is NaN on all of them and nothing moves.
    Every call begins with one small collective, by which ranks that ask for different things find out.
    After a failed collective a reducer takes no further call.

    Args:
        compressor: as for a `GradientReducer`: biased codecs get error feedback, small tensors travel dense.
        transport: the ranks. One rank alone gets its bucket back, times `scale`.
        name: prefix of all collectives' names; equal on all ranks, different for every reducer of a job.
        exchange: "auto", "all_reduce", "gather" or "two_phase"; a reduce-scatter always goes in one all-to-all.
        timeout: seconds that a collective may take.
        seed: base of all pseudo-random choices.

    Raises:
        ConfigError: an option is out of its range, or the exchange cannot carry the compressor's payloads.
    """

    def __init__(
        self,
        compressor: Compressor,
        transport: Transport,
        *,
        name: str = "gradwire",
        exchange: str = "auto",
        timeout: float = 60.0,
        seed: int = 0,
    ) -> None:
        if not timeout > 0:
            raise ConfigError(f"timeout is {timeout!r}; it must be a number of seconds above 0")
        self.compressor = with_defaults(compressor)
        self.transport = transport
        self.timeout = timeout
        self._seed = seed
        self._lock = threading.RLock()
        facts = [f"gradwire {__version__}", f"compressor {self.compressor!r}", f"exchange={exchange} seed={seed}"]
        self._plans = FlatPlans(self.compressor, transport, exchange, prefix=name, facts=facts)
        self._agreement = CallAgreement(self._plans, transport, prefix=name, facts=facts, timeout=timeout)
        self._workers = Ledger()
        self._servers = Ledger()
        #: calls that moved residuals, and how many of them are committed
        self._calls = 0
        self._committed_calls = 0
        self._broken: TransportError | None = None
        self._account = BucketAccount(self._agreement.sent_bytes)

    # Calls.

    def all_reduce(self, flat: torch.Tensor, parts: Sequence[Part], *, scale: float = 1.0, exact: bool = False) -> None:
        """Replace a bucket by its mean over the ranks, times `scale`.

        Args:
            flat: 1-D, contiguous; fp32, fp16 or bf16; of the same length on all ranks.
            parts: which tensors lie where in it. What lies in between is padding, and becomes zero.
            scale: what the mean is multiplied with; equal on all ranks.
            exact: do not compress, and leave residuals alone: a plain sum, which passes NaN and inf on where
                they are. Sums of 16-bit values are formed in the dtype, of values that were divided before.

        Raises:
            UsageError: the bucket or the parts do not fit.
            MismatchError, PeerError, TransportError: the call failed; residuals are as they were before it.
        """
        with self._lock:
            self._call(Request(tuple(parts), flat.numel(), flat.dtype, None, exact), flat, flat, scale)

    def reduce_scatter(
        self,
        flat: torch.Tensor,
        parts: Sequence[Part],
        bounds: Sequence[int],
        out: torch.Tensor,
        *,
        scale: float = 1.0,
        exact: bool = False,
    ) -> None:
        """Write this rank's run of the mean over the ranks, times `scale`, to `out`.

        Args:
            flat: as for `all_reduce`; it is left as it is.
            parts: as for `all_reduce`.
            bounds: rank r gets `flat[bounds[r] : bounds[r + 1]]`; world size + 1 places that ascend from 0 to
                the bucket's length. One rank may get everything.
            out: as long as this rank's run, 1-D, contiguous; any of `flat`'s dtypes. It may be that run itself.
            scale: what the mean is multiplied with.
            exact: do not compress, and leave residuals alone.

        Raises:
            As `all_reduce`.
        """
        with self._lock:
            self._call(Request(tuple(parts), flat.numel(), flat.dtype, tuple(bounds), exact), flat, out, scale)

    # Between calls.

    @property
    def step(self) -> int:
        """Committed steps."""
        return self._account.steps

    def commit(self) -> None:
        """End a step: what the calls since the last commit left out is kept."""
        with self._lock:
            self._account.end(applied=True)
            self._committed_calls = self._calls
            self._workers.commit()
            self._servers.commit()

    def rollback(self) -> None:
        """End a step that does not count: residuals are as they were at the last commit, bit for bit."""
        with self._lock:
            self._account.end(applied=False)
            self._calls = self._committed_calls
            self._workers.rollback()
            self._servers.rollback()

    def reset(self) -> None:
        """Forget everything that is kept; ends a step that is open. All ranks must do so."""
        with self._lock:
            self._account.end(applied=False)
            self._workers.load({})
            self._servers.load({})

    def rescale(self, factor: float) -> None:
        """Multiply all residuals: gradients will be `factor` times as large from now on (a loss scale has changed).

        Exact where `factor` is a power of two and no value leaves the range of fp32.

        Raises:
            UsageError: `factor` is not a finite number above 0.
        """
        if not 0 < factor < float("inf"):
            raise UsageError(f"factor is {factor!r}; it must be a finite number above 0")
        with self._lock:
            for ledger in (self._workers, self._servers):
                ledger.update(lambda run: run.scaled(factor, self.compressor))

    def pending(self, name: str) -> torch.Tensor:
        """This rank's part of what is still owed of a tensor, as `GradientReducer.pending`.

        Raises:
            UsageError: no bucket has held this tensor, and no state had it.
        """
        with self._lock:
            if name not in self._plans.shapes:
                raise UsageError(f"no bucket has held a tensor {name!r}")
            shape = self._plans.shapes[name]
            owed = torch.zeros(shape).view(-1)
            for ledger, share in ((self._workers, self.transport.world_size), (self._servers, 1)):
                run = ledger.get(name)
                if run is not None and RESIDUAL in run.state:
                    owed[run.low : run.high] += run.state[RESIDUAL].to(owed.device) / share
            return owed.view(shape)

    def state_dict(self) -> StateDict:
        """What this rank kept at the last commit: plain values and copies of tensors (see `backends/snapshot.py`)."""
        with self._lock:
            workers, servers = self._workers.committed(), self._servers.committed()
            steps, skipped = self._account.steps, self._account.skipped
            kept = Kept(steps, self._committed_calls, skipped, self._plans.shapes, workers, servers)
            return saved(kept, self.compressor, self.transport)

    def load_state_dict(self, state: StateDict, shapes: Mapping[str, Sequence[int]] | None = None) -> None:
        """Go on from a state: this rank's own at the same world size, or a merged one. Ends a step that is open.

        Args:
            state: from `state_dict` or `merge_states`.
            shapes: the model's tensors, to be compared with the state's; None: only those seen so far are.

        Raises:
            ConfigError: it does not fit, or is malformed; the text names the first difference. Nothing has changed.
        """
        with self._lock:
            kept = restored(state, self.compressor, self.transport)
            seen = self._plans.shapes
            check_shapes(kept.shapes, seen, kept.shapes.keys() & seen.keys())
            if shapes is not None:
                check_shapes(kept.shapes, {name: tuple(shape) for name, shape in shapes.items()}, kept.shapes)
            self._account.end(applied=False)
            self._account.steps, self._account.skipped = kept.step, kept.skipped_steps
            self._plans.shapes |= kept.shapes
            self._workers.load(kept.workers)
            self._servers.load(kept.servers)
            self._calls = self._committed_calls = kept.calls

    @property
    def statistics(self) -> Statistics:
        """What was sent and how long it took. A step is what lies between two commits; `last` is the last ended one."""
        with self._lock:
            states = [run.state for ledger in (self._workers, self._servers) for run in ledger.current]
            saturated = sum(int(state["saturated"]) for state in states if "saturated" in state)
            return replace(self._account.of(self._plans.statistics()), saturated=saturated)

    # Inside a call.

    def _call(self, request: Request, flat: torch.Tensor, out: torch.Tensor, scale: float) -> None:
        if self._broken is not None:
            raise TransportError(
                f"this reducer takes no further call, because ranks may have parted when a collective failed "
                f"({self._broken}): make a new one on every rank, from the last checkpoint"
            ) from self._broken
        begun = perf_counter()
        with self._breaking():
            plan, waited = self._agreement.agree(request, Turn(self.step, self._calls, float(scale)), flat, out)
        times = self._sum(plan, flat, scale) if plan.summed else self._exchange(plan, flat, out, scale)
        self._account.add(plan.per_call, replace(times, begun=begun, waited=times.waited + waited))

    def _exchange(self, plan: FlatPlan, flat: torch.Tensor, out: torch.Tensor, scale: float) -> Times:
        clock = Clock(self._calls, self.transport.rank, self._seed)
        call = BucketCall(plan, flat, self.compressor, clock, ordered=self.transport.ordered)
        call.load(self._workers, self._servers)
        with self._breaking():
            call.settle(self.timeout)
        if call.applied:
            call.give(out, scale)
            call.keep(self._workers, self._servers)
            self._calls += 1
        else:
            out.fill_(float("nan"))
        return call.times

    def _sum(self, plan: FlatPlan, flat: torch.Tensor, scale: float) -> Times:
        world_size = self.transport.world_size
        divisor = 1 if flat.dtype == torch.float32 else 1 << (world_size - 1).bit_length()  # 16 bits overflow early
        if divisor > 1:
            flat.mul_(1 / divisor)
        begun = perf_counter()
        with self._breaking():
            self.transport.all_reduce(flat, plan.name).wait(self.timeout)
        wait = perf_counter() - begun
        flat.mul_(scale * divisor / world_size)
        for start, stop in plan.blanks:
            flat[start:stop].zero_()
        return Times(begun, perf_counter(), waited=wait)

    @contextmanager
    def _breaking(self) -> Iterator[None]:
        """A failed collective ends the reducer: other ranks may have done what this one has not."""
        try:
            yield
        except TransportError as error:
            self._broken = error
            raise

"""The settings in ds.json that are gradwire's: the 1-bit optimizers' parameters, and the block for gradients.

A refusal names the key, its value and the reason, and something that works instead.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from difflib import get_close_matches
from functools import cached_property
from typing import Annotated, Any, ClassVar, Literal, TypeVar, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, field_validator, model_validator

from ..compressors import Compressor, SizePolicy, with_defaults
from ..compressors.errors import ConfigError
from ..compressors.options import nearest
from ..compressors.spec import make_codec, option_names
from ._host import TIMEOUT

__all__ = [
    "GradientCompression",
    "MomentumOptions",
    "OneBitAdamOptions",
    "OneBitLambOptions",
    "Settings",
    "ZeroOneAdamOptions",
]

S = TypeVar("S", bound="Settings")

_Positive = Annotated[float, Field(gt=0)]
_NotNegative = Annotated[float, Field(ge=0)]
_Beta = Annotated[float, Field(ge=0, lt=1)]
_Count = Annotated[int, Field(ge=0)]
_Interval = Annotated[int, Field(ge=1)]
_Betas = Annotated[
    tuple[_Beta, _Beta], BeforeValidator(lambda given: tuple(given) if isinstance(given, list) else given)
]


class Settings(BaseModel):
    """Checked settings; types are taken as they are written, so that "0.1" is no number."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False)
    #: where the keys stand, for messages
    place: ClassVar[str]

    @classmethod
    def read(cls: type[S], given: Mapping[str, object]) -> S:
        """The settings that `given` describes.

        Raises:
            ConfigError: for each key that is unknown or has a wrong value.
        """
        try:
            return cls.model_validate(dict(given))
        except ValidationError as error:
            faults = {fault["loc"][:1]: fault for fault in reversed(error.errors())}  # the first one of each key
            texts = [_explain(cls, given, fault) for fault in reversed(faults.values())]
            raise ConfigError(f"{cls.place}: {'; '.join(texts)}") from error


class MomentumOptions(Settings):
    """What the 1-bit optimizers have in common.

    Attributes:
        lr: step size.
        betas: decay of momentum and variance, each in [0, 1).
        eps: added to the root of the variance.
        weight_decay: decoupled, inside the update.
        bias_correction: accepted; never had an effect.
        eps_inside_sqrt: accepted; never had an effect.
        amsgrad: only false.
        max_grad_norm: only 0.
        cuda_aware: MPI takes device pointers.
        comm_backend_name: "mpi" goes over MPI; the others over DeepSpeed's process group, whatever its backend is.
        legacy: reproduce DeepSpeed 0.19.6.
    """

    #: settings that a parameter group may have for itself
    grouped: ClassVar[tuple[str, ...]] = ("lr", "bias_correction", "betas", "eps", "weight_decay", "max_grad_norm")

    lr: _NotNegative = 1e-3
    betas: _Betas = (0.9, 0.999)
    eps: _NotNegative = 1e-8
    weight_decay: _NotNegative = 0.0
    bias_correction: bool = True
    eps_inside_sqrt: bool = False
    amsgrad: bool = False
    max_grad_norm: float = 0.0
    cuda_aware: bool = False
    comm_backend_name: Literal["nccl", "gloo", "mpi", "compressed"] = "nccl"
    legacy: bool = False

    @field_validator("amsgrad")
    @classmethod
    def _no_amsgrad(cls, value: bool) -> bool:
        if value:
            raise ValueError("amsgrad is true, and a frozen variance has no maximum to keep; leave the key out")
        return value

    @field_validator("max_grad_norm")
    @classmethod
    def _no_clipping(cls, value: float) -> float:
        if value:
            raise ValueError(
                f"max_grad_norm is {value}, and DeepSpeed clips gradients itself; leave the key out and write "
                f'"gradient_clipping": {value} at the top of ds.json'
            )
        return value

    def group_defaults(self) -> dict[str, Any]:
        """What a parameter group holds unless it says otherwise."""
        return self.model_dump(include=set(self.grouped))


class OneBitAdamOptions(MomentumOptions):
    """1-bit Adam (2102.02888).

    Attributes:
        freeze_step: steps before the variance is frozen and momenta are compressed.
    """

    place: ClassVar[str] = "optimizer.params of OneBitAdam"

    freeze_step: _Count = 100000


class OneBitLambOptions(MomentumOptions):
    """1-bit LAMB (2104.06069).

    Attributes:
        freeze_step: steps before variance and trust ratio are frozen and momenta are compressed.
        max_coeff: largest trust ratio.
        min_coeff: smallest trust ratio.
        coeff_beta: decay of the trust ratio's average, which is what is frozen.
        factor_max: largest factor on the frozen ratio.
        factor_min: smallest factor on the frozen ratio.
        factor_threshold: largest relative change of the factor in a step.
    """

    place: ClassVar[str] = "optimizer.params of OneBitLamb"
    grouped: ClassVar[tuple[str, ...]] = (*MomentumOptions.grouped, "max_coeff", "min_coeff")

    freeze_step: _Count = 100000
    max_coeff: _Positive = 10.0
    min_coeff: _NotNegative = 0.01
    coeff_beta: _Beta = 0.9
    factor_max: _Positive = 4.0
    factor_min: _NotNegative = 0.5
    factor_threshold: _NotNegative = 0.1

    @model_validator(mode="after")
    def _ordered(self) -> OneBitLambOptions:
        for low, high in (("min_coeff", "max_coeff"), ("factor_min", "factor_max")):
            if getattr(self, low) > getattr(self, high):
                limits = {name: type(self).model_fields[name].default for name in (low, high)}
                raise ValueError(
                    f"{low} is {getattr(self, low)}, above {high}, {getattr(self, high)}; "
                    f"write {json.dumps(limits)[1:-1]}"
                )
        return self


class ZeroOneAdamOptions(MomentumOptions):
    """0/1 Adam (2202.06009).

    Attributes:
        var_freeze_step: the last step that may change the variance.
        var_update_scaler: changes of the variance before the interval between them doubles.
        local_step_scaler: steps with a frozen variance before the local interval doubles.
        local_step_clipper: largest local interval.
    """

    place: ClassVar[str] = "optimizer.params of ZeroOneAdam"

    var_freeze_step: _Count = 100000
    var_update_scaler: _Interval = 16
    local_step_scaler: _Interval = 32678
    local_step_clipper: _Interval = 16


class GradientCompression(Settings):
    """The block `gradient_compression` of ds.json; keys that are not listed here are the codec's options.

    Attributes:
        type: name of a compressor: topk, randomk, onebit, int8, fp16, bf16 or none.
        min_numel: tensors with fewer elements travel dense; None for the default, which casts do not have.
        warmup_steps: steps before gradients are compressed.
        exchange: how ranks combine, "auto" to let sizes decide.
        timeout: seconds that a collective may take; torch's own default.
        seed: base of all pseudo-random choices.
    """

    model_config = ConfigDict(extra="allow")
    place: ClassVar[str] = "gradient_compression"

    type: str = Field(examples=["topk"])
    min_numel: _Count | None = None
    warmup_steps: _Count = 0
    exchange: Literal["auto", "all_reduce", "gather", "two_phase", "sparse"] = "auto"
    timeout: _Positive = TIMEOUT
    seed: _Count = 0

    @classmethod
    def read(cls, given: object) -> GradientCompression:
        """The settings that the block describes, with a compressor that was made already.

        Raises:
            ConfigError: the block is no mapping; a key is unknown or has a wrong value.
        """
        if not isinstance(given, Mapping):
            example = '{"type": "topk", "ratio": 0.01}'
            raise ConfigError(f"{cls.place} is {given!r}, expected a block such as {example}")
        settings = super().read(given)
        try:
            _ = settings.compressor
        except ConfigError as error:
            raise ConfigError(f"{cls.place}: {error}") from error
        return settings

    @cached_property
    def compressor(self) -> Compressor:
        """The codec with its memory and policy, as a reducer uses it."""
        options, name = self.model_extra or {}, self.type.lower()
        allowed = [*option_names(name), *type(self).model_fields]
        for key in options:
            if key not in allowed:
                raise ConfigError(_unknown(key, allowed))
        codec = make_codec(name, options)
        return with_defaults(codec if self.min_numel is None else SizePolicy(codec, min_numel=self.min_numel))

    @property
    def reducer_options(self) -> dict[str, Any]:
        """The keyword arguments that the reducers of `gradwire.backends` share."""
        return {"exchange": self.exchange, "timeout": self.timeout, "seed": self.seed}


def _explain(settings: type[Settings], given: Mapping[str, object], fault: Any) -> str:
    if fault["type"] == "value_error":
        return str(fault["ctx"]["error"])
    key = str(fault["loc"][0])
    if fault["type"] == "extra_forbidden":
        return _unknown(key, list(settings.model_fields))
    if key not in given:
        return f"{key} is missing; {_remedy(settings, key, None)}"
    reason = "which is too short" if fault["type"] == "missing" else fault["msg"].replace("Input", "which", 1)
    return f"{key} is {given[key]!r}, {reason}; {_remedy(settings, key, given[key])}"


def _unknown(key: str, allowed: list[str]) -> str:
    return f"unknown key {key!r}{nearest(key, allowed)}; allowed: {', '.join(sorted(allowed))}"


def _remedy(settings: type[Settings], key: str, value: object) -> str:
    """The value itself, if only its type is wrong; else the nearest word that is allowed, or the default."""
    field = settings.model_fields[key]
    words = [word for word in get_args(field.annotation) if isinstance(word, str)]
    close = get_close_matches(str(value), words, n=1)
    fallback = field.examples[0] if field.examples else field.default
    fitting = close[0] if close else _converted(settings, key, value, fallback)
    return "leave the key out" if fitting is None else f"write {json.dumps({key: fitting})[1:-1]}"


def _converted(settings: type[Settings], key: str, value: object, fallback: object) -> object:
    if isinstance(value, bool):
        return fallback
    needed = {name: field.examples[0] for name, field in settings.model_fields.items() if field.examples}
    try:
        return getattr(settings.model_validate({**needed, key: value}, strict=False), key)
    except ValidationError:
        return fallback

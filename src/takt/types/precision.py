"""In which numbers each operator keeps its weights and computes: policies as data."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from takt.types.kv import KVDtype
from takt.types.quant import FLOAT_TYPES, QuantType


class Operator(enum.Enum):
    """Classes of operators that a policy tells apart."""

    EMBED = "embed"
    QKV = "qkv"
    OUTPUT = "o"
    GATE_UP = "gate_up"
    DOWN = "down"
    HEAD = "head"
    ATTENTION = "attention"
    NORM = "norm"


class Phase(enum.Enum):
    PREFILL = "prefill"
    DECODE = "decode"


LINEAR_OPERATORS = (
    Operator.QKV,
    Operator.OUTPUT,
    Operator.GATE_UP,
    Operator.DOWN,
    Operator.HEAD,
)


class Activations(enum.Enum):
    """What an operator's inputs are rounded to; sums are exact integers in a group, else f32."""

    INT8 = "int8"
    BF16 = "bf16"
    F32 = "f32"


class Int8Tokens(enum.Enum):
    """Tokens that products with quantised weights take as int8; the others are bf16."""

    ALL = "all"
    GENERATED = "generated"
    NONE = "none"


_ACTIVATIONS_OF = {
    QuantType.F32: Activations.F32,
    QuantType.F16: Activations.F32,
    QuantType.BF16: Activations.BF16,
}


def activations_of(weights: QuantType) -> Activations:
    """The form in which a product with weights of this type takes its inputs."""
    return _ACTIVATIONS_OF.get(weights, Activations.INT8)


@dataclass(frozen=True, slots=True)
class OperatorPrecision:
    """`quantized` and `floats` are the types that stored weights of either kind are packed as.

    None keeps the stored type.
    """

    floats: QuantType | None = None
    quantized: QuantType | None = None

    def packed_type(self, stored: QuantType, num_columns: int) -> QuantType:
        """The type that a matrix is packed as.

        A float matrix whose columns do not fill the groups of the type stays as it is stored.
        """
        is_float = stored in FLOAT_TYPES
        wanted = self.floats if is_float else self.quantized
        if wanted is None or (is_float and num_columns % wanted.group_size):
            return stored
        return wanted


@dataclass(frozen=True, slots=True)
class PrecisionPolicy:
    """One track: the precision of each operator class.

    `linear` has an entry for each of `LINEAR_OPERATORS` and for `EMBED`, which looks rows up and
    computes nothing; a table that serves as head too follows the head. Attention and norms compute
    in f32 under every policy; what attention reads is `kv_dtype`.

    `int8_tokens` says which tokens products with quantised weights take as int8. What counts is
    what a token is, not how it comes to be computed: one that is computed again, after a
    preemption, has the bits it had.
    """

    name: str
    linear: dict[Operator, OperatorPrecision]
    kv_dtype: KVDtype
    int8_tokens: Int8Tokens = Int8Tokens.ALL

    @property
    def phases_differ(self) -> bool:
        """Whether generated tokens are computed in another precision than a prompt's."""
        return self.int8_tokens is Int8Tokens.GENERATED

    def activations_of(self, weights: QuantType) -> str:
        """Names what products with weights of this type take."""
        activations = activations_of(weights)
        if activations is not Activations.INT8 or self.int8_tokens is Int8Tokens.ALL:
            return activations.value
        bf16 = Activations.BF16.value
        return f"{activations.value} (prompts {bf16})" if self.phases_differ else bf16

    def of(self, operator: Operator, phase: Phase) -> OperatorPrecision | None:
        """Precision of an operator with weights in a phase; None where there are none."""
        return self.linear.get(operator)

    def packed_type(self, operator: Operator, stored: QuantType, num_columns: int) -> QuantType:
        precision = self.of(operator, Phase.DECODE)
        return stored if precision is None else precision.packed_type(stored, num_columns)


class PrecisionInUse:
    """A policy and the types that it gave a model's matrices."""

    def __init__(self, policy: PrecisionPolicy) -> None:
        self.policy = policy
        self._kinds: dict[Operator, list[QuantType]] = {}

    def packed_type(self, operator: Operator, stored: QuantType, num_columns: int) -> QuantType:
        kind = self.policy.packed_type(operator, stored, num_columns)
        kinds = self._kinds.setdefault(operator, [])
        if kind not in kinds:
            kinds.append(kind)
        return kind

    def describe(self) -> str:
        """One line: weights x activations, operators with equal ones together."""
        groups: dict[str, list[str]] = {}
        for operator in LINEAR_OPERATORS:
            kinds = self._kinds.get(operator)
            if kinds:
                labels = "+".join(sorted(kind.label for kind in kinds))
                inputs = "+".join(sorted({self.policy.activations_of(kind) for kind in kinds}))
                groups.setdefault(f"{labels} x {inputs}", []).append(operator.value)
        parts = [f"{' '.join(names)} {what}" for what, names in groups.items()]
        return (
            f"{self.policy.name} ({', '.join(parts)}; KV {self.policy.kv_dtype.label}; norms f32)"
        )


def uniform(precision: OperatorPrecision) -> dict[Operator, OperatorPrecision]:
    return dict.fromkeys((Operator.EMBED, *LINEAR_OPERATORS), precision)

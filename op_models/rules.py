"""Rules: what an operator type's work is and, where onnx does not infer them, what its outputs are.

`op` registers a rule for operator types, which `work_of` and `work_or_bytes` apply.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import Any

from op_models.axes import Axes, by_pattern
from op_models.core import Operator, OpModelError, Pointwise, Tensor, Work, work

#: An operator type: of ai.onnx its name alone, of another domain with that in front.
TYPE = re.compile(r"(?!ai\.onnx::)([^:\s]+::)?[^:\s]+")
IN_PLACE = "in place"  # the attribute by which a runtime says that the first output is the first input's buffer
Inputs = Sequence[Tensor | None]
Attributes = Mapping[str, Any]
Outputs = Sequence[tuple[str, tuple[int, ...]] | None]  # the dtype and the shape of each output; None: not known


@dataclass(frozen=True, slots=True)
class Like:
    """The output has the shape that the operator `type` of ai.onnx gives it, with the same attributes.

    inputs: which inputs that operator reads, in its order; dtype: the input whose dtype the output has;
    channels_last: images are [N, H, W, C], in the first input and in the output.
    """

    type: str
    inputs: tuple[int, ...] | slice = (0,)
    dtype: int = 0
    channels_last: bool = False


def as_first(x: Tensor) -> Outputs:
    """One output with the dtype and the shape of the first input."""
    return [(x.dtype, x.shape)]


OutputRule = Like | Callable[..., Outputs]
_RULES: dict[str, Callable[[Operator], Work]] = {}
_OUTPUTS: dict[str, OutputRule] = {}
_AXES: dict[str, Callable[[Operator], Axes]] = {}
_CACHES: dict[str, Mapping[int, int]] = {}
AxesRule = str | Callable[..., Axes]


def op(
    *types: str, inputs: Sequence[int] = (), outputs: OutputRule | Mapping[str, OutputRule] | None = None,
    axes: AxesRule | Mapping[str, AxesRule] | None = None, continued: Mapping[int, int] | None = None,
) -> Callable[[Callable[..., Work]], Callable[..., Work]]:  # fmt: skip
    """Register a rule for operator types ("Conv"; outside ai.onnx "domain::Type").

    The rule is called with the operator, then its inputs in order (absent ones as their default), then, as
    keywords, those attributes its signature names; defaults in the signature are ONNX's defaults. `inputs`
    says which inputs the rule takes, where a type has them in other places.

    `outputs` is for types that onnx does not define, or whose outputs it can't infer. It is the operator of ai.onnx
    whose outputs are like theirs, or a function that takes all inputs and attributes as the rule does, but not the
    operator, and returns `Outputs`; or a mapping from types to these, where `types` differ in it. Without it the
    shapes that the file declares hold, else those that what follows needs, else the first input's.

    `axes` says where axes of the inputs go: a pattern such as "N c ..., o c ... -> N o ..." (see `Axes`), or a function
    that takes the operator, all its inputs and attributes and returns `Axes`; or a mapping from types to these. Without
    it, no axis is followed through the operator.

    `continued` are caches: outputs, by position, with the inputs that they continue. Where both have the same shape,
    the operator writes into the input's own buffer (see `shared_caches`).

    A rule of the same module and name takes the place of the old one, so that a notebook's cell can be run again.
    Raises OpModelError where a type is written in another way, or has another rule already.
    """
    for name in types or ("",):
        if not isinstance(name, str) or not TYPE.fullmatch(name):
            problem = f"{name!r:.60} is none" if name else "there is none"
            raise OpModelError(f'op takes operator types, as @op("Conv") or @op("my.domain::MyOp"); {problem}')

    def register(rule: Callable[..., Work]) -> Callable[..., Work]:
        call = caller(rule, 1)

        @wraps(rule)
        def work_by_rule(op: Operator) -> Work:
            taken = [op.inputs[i] if i < len(op.inputs) else None for i in inputs] if inputs else op.inputs
            result = call(taken, op.attrs, op)
            if not isinstance(result, Work):
                raise TypeError(f"it returns {type(result).__name__}, not Work")
            return result

        for name in types:
            if _place(_RULES.get(name, rule)) != _place(rule):
                first = ".".join(_place(_RULES[name]))
                raise OpModelError(f"operator {name} has a rule already, {first}; a second one would hide it")
        for name in types:
            _RULES[name] = work_by_rule
            _OUTPUTS.pop(name, None)
            output = outputs.get(name) if isinstance(outputs, Mapping) else outputs
            if output is not None:
                _OUTPUTS[name] = output if isinstance(output, Like) else caller(output, 0)
            _AXES.pop(name, None)
            stated = axes.get(name) if isinstance(axes, Mapping) else axes
            if stated is not None:
                _AXES[name] = _axes_by(stated)
            _CACHES[name] = continued or {}
        return rule

    return register


def _axes_by(rule: AxesRule) -> Callable[[Operator], Axes]:
    """What gives the axes of an operator by a pattern or a function."""
    if isinstance(rule, str):
        return lambda op: by_pattern(op, rule)
    call = caller(rule, 1)
    return lambda op: call(op.inputs, op.attrs, op)


def axes_of(op: Operator) -> Axes | None:
    """Where the axes of an operator's inputs go; None where nobody says so.

    Raises Unknown where that is only known in the run, and what its rule raises for forms that it can't have.
    """
    return _AXES[op.type](op) if op.type in _AXES else None


def _place(rule: Callable[..., Any]) -> tuple[str, str]:
    """Where a rule is defined: its module, and its name there (a `functools.partial` has none)."""
    return rule.__module__, getattr(rule, "__qualname__", repr(rule))


def caller(rule: Callable[..., Any], first: int) -> Callable[..., Any]:
    """A function of inputs, attributes and `first` leading arguments that calls a rule with what its signature names.

    It raises OpModelError where the signature says that an attribute is a number and it is none.
    """
    parameters = inspect.signature(rule).parameters.values()
    keywords = frozenset(p.name for p in parameters if p.kind is p.KEYWORD_ONLY)
    numbers = frozenset(p.name for p in parameters if p.annotation in ("int", "float", int, float))
    variadic = any(p.kind is p.VAR_POSITIONAL for p in parameters)
    positional = sum(p.kind is p.POSITIONAL_OR_KEYWORD for p in parameters) - first

    def call(inputs: Inputs, attrs: Attributes, *leading: Any) -> Any:
        named = {k: v for k, v in attrs.items() if k in keywords}
        for k, v in named.items():
            if k in numbers and not isinstance(v, int | float):
                raise OpModelError(f"attribute {k} is {v!r:.40}, but {rule.__name__} needs a number")
        return rule(*leading, *(inputs if variadic else inputs[:positional]), **named)

    return call


def registered() -> tuple[Callable[[Operator], Work], ...]:
    """Every rule: what was worked out by some of them holds as long as this is the same."""
    return tuple(_RULES.values())


def known(type: str) -> bool:
    """True where a rule for this operator type is registered."""
    return type in _RULES


def output_rule(type: str) -> OutputRule | None:
    """What says which outputs an operator type has: a `Like`, or a function of its inputs and attributes, or None."""
    return _OUTPUTS.get(type)


def caches(type: str) -> Mapping[int, int]:
    """The outputs of an operator type, by position, that continue an input, with that input."""
    return _CACHES.get(type, {})


def shared_caches(op: Operator) -> dict[int, int]:
    """The outputs, by position, that are the buffer of an input, with that input: caches that do not grow, and the
    result of an operator that its runtime lets work IN_PLACE.

    A present cache as long as its past is the past's own buffer, in which the new positions are written; a longer one
    is another buffer.
    """
    positions = {0: 0} if IN_PLACE in op.attrs else caches(op.type)
    pairs = ((o, i) for o, i in positions.items() if o < len(op.outputs) and i < len(op.inputs))
    return {o: i for o, i in pairs if (past := op.inputs[i]) is not None and past.shape == op.outputs[o].shape}


def bytes_only(op: Operator) -> Work:
    """The work of an operator that no rule understands: its bytes, one pass over its outputs."""
    return work(op, Pointwise(max(sum(t.size for t in op.outputs), 1)))


def work_of(op: Operator) -> Work:
    """The work of an operator; one that no rule knows costs its bytes. Raises what its rule raises."""
    return _RULES.get(op.type, bytes_only)(op)


def work_or_bytes(op: Operator) -> tuple[Work, str]:
    """The work of an operator, and "", or why it is assumed to cost its bytes: it has no rule, or its rule failed.

    Raises OpModelError, which names the rule and the nodes, where one that is not of this package fails.
    """
    try:
        return work_of(op), "" if known(op.type) else f"no rule fits {op.type}"
    except Exception as e:
        rule = _RULES.get(op.type, bytes_only)
        if rule.__module__.partition(".")[0] != __package__:
            nodes = ", ".join(op.nodes) or op.name
            what = f"the rule {rule.__name__} of {rule.__module__} for {op.type} fails at {nodes}"
            raise OpModelError(f"{what}: {type(e).__name__}: {e}") from e
        return bytes_only(op), f"the rule {rule.__name__} for {op.type} failed with {type(e).__name__}: {str(e)[:200]}"

"""Tensor parallelism after Megatron-LM (Shoeybi et al., 2019), on any graph whose structure allows it.

A product with a stored matrix whose input every GPU has is divided by columns: each GPU computes its part of the last
axis. That part is followed through elementwise operators, views, heads of attention and products of activations, until
a product with a stored matrix contracts it: that one is divided by rows, and an all-reduce adds up its parts. Where the
part meets an operator that needs all of the axis, the products that it comes from stay whole. A product that the graph
ends with, as that with the vocabulary, is gathered; the table of token embeddings is divided by rows.

In training, a tensor that divided products read is marked: gradients of it are added up over the GPUs.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from onnxperf.graph import Graph, Note, is_trained
from onnxperf.ground.errors import UsageError, printable
from onnxperf.passes.exchanges import SHARED, Group, exchange
from onnxperf.passes.experts import MIXTURES
from onnxperf.passes.repeated_heads import with_repeated_heads
from onnxperf.passes.shard_rules import HEADS, Divided, check_heads, counted, follow, part, stated, weights_of
from onnxperf.passes.shard_weights import (
    COLUMNS,
    PACKED,
    PLAIN,
    ROWS,
    WIDTH,
    WITH_PRODUCT,
    matrix,
    rows_divide,
    width,
)
from onnxperf.passes.tape import renamed
from op_models import Operator, Tensor, caches
from op_models.collectives import ALL_GATHER, ALL_REDUCE

NAMED = 3  # nodes in a message
PRODUCTS = (*PLAIN, PACKED)
ROUNDS = 32  # in which products are found to lead nowhere; a transformer takes one for each kind of them
MOST_TRIED = 65  # numbers of GPUs, for the nearest that works
VIEWS = ("Cast", "Flatten", "Identity", "Reshape", "Squeeze", "Unsqueeze")


def shard(graph: Graph, ranks: int, training: bool = False) -> Graph:
    """The part of a graph that each of `ranks` GPUs computes, with all exchanges.

    Raises UsageError where nothing of it can be divided so, or attention's heads can't be divided by that number.
    """
    graph = _with_stored_transposes(graph) if training else with_repeated_heads(graph, ranks)
    division = _divided(graph, ranks, training)
    if division.indivisible or not division.pairs:
        fewer = sorted(
            range(2, min(ranks, MOST_TRIED)), key=lambda n: (ranks % n > 0, -n)
        )  # those that leave a number for dp first
        nearest = next((n for n in fewer if _works(graph, n, training)), 1)
        rest = f", with dp={ranks // nearest} for as many GPUs" * (ranks % nearest == 0)
        instead = f"tp={nearest} fits{rest}" if nearest > 1 else "take dp or pp"
        division.indivisible = division.indivisible or division.odd
        if not division.indivisible:
            raise UsageError(
                f"tp={ranks}: no pair of GEMMs with stored weights can be split by columns and rows; {instead}"
            )
        node, what = next(iter(division.indivisible.items()))
        more = f" and {len(division.indivisible) - 1} more" if len(division.indivisible) > 1 else ""
        raise UsageError(f"tp={ranks} does not divide {what} of node {printable(node)[:80]}{more}: {instead}")
    return _rewritten(graph, division, training)


def _with_stored_transposes(graph: Graph) -> Graph:
    """The graph with transposed weights stored as such: eager PyTorch's transpositions are views."""
    stored: dict[str, Tensor] = {}
    for o in graph.operators:
        if o.type == "Transpose" and is_trained(o.present[0]):
            stored[o.out.name] = replace(o.out, kind="weight")
    kept = (renamed(o, stored, o.name) for o in graph.operators if not {t.name for t in o.outputs} & stored.keys())
    return replace(graph, operators=tuple(kept))


def _works(graph: Graph, ranks: int, training: bool) -> bool:
    graph = graph if training else with_repeated_heads(graph, ranks)
    division = _divided(graph, ranks, training)
    return bool(division.pairs) and not division.indivisible


@dataclass(slots=True)
class _Division:
    """Which products are divided, and the axis by which each tensor is.

    columns, rows: operators by name; tables: embeddings; axes: of tensors; letters: of
    these in operators that they are followed through; stored: of those of which an operator reads
    a part although not all do: weights, constants, inputs of the graph and, in inference, what every GPU has computed;
    pairs: how many products are divided by rows; indivisible: heads that could not be divided, by node; odd: columns
    that stay whole because of their number.
    """

    ranks: int
    training: bool
    whole: set[str] = field(default_factory=set)
    columns: set[str] = field(default_factory=set)
    rows: set[str] = field(default_factory=set)
    tables: set[str] = field(default_factory=set)
    axes: dict[str, int] = field(default_factory=dict)
    letters: dict[str, str] = field(default_factory=dict)
    stored: dict[str, dict[str, int]] = field(default_factory=dict)
    pairs: int = 0
    indivisible: dict[str, str] = field(default_factory=dict)
    odd: dict[str, str] = field(default_factory=dict)

    def add_summand(self, o: Operator, letter: str) -> None:
        """Divide an operator by a letter that it sums over, so that each GPU has a summand of its result."""
        self.rows.add(o.name)
        self.letters[o.name] = letter
        self.pairs += 1


def _divided(graph: Graph, ranks: int, training: bool) -> _Division:
    """What can be divided: products are tried, and those whose parts lead nowhere stay whole in the next round."""
    whole: set[str] = set()
    indivisible: dict[str, str] = {}
    graph_inputs = {t.name for t in graph.inputs}
    ids = set(graph_inputs)  # and what is the same numbers in another shape or type
    for o in graph.operators:
        if o.type in VIEWS and o.present[0].name in ids:
            ids.add(o.out.name)
    for _ in range(ROUNDS):
        division, sources = _Division(ranks, training, whole), dict[str, frozenset[str]]()
        failed: set[str] = set()
        for o in graph.operators:
            comes_from = frozenset().union(*(sources.get(t.name, frozenset()) for t in o.present))
            try:
                _place(o, division, graph_inputs, ids)
            except Divided as e:
                if not comes_from & failed - whole:  # else this may follow from what has failed before
                    failed |= comes_from
                sources |= {t.name: comes_from for t in o.outputs}
                if e.size:
                    indivisible[o.name] = e.size
                continue
            if o.name in division.columns:
                comes_from = frozenset({o.name})
            for t in o.outputs:
                if t.name in division.axes or o.type in VIEWS:
                    sources[t.name] = comes_from
        for t in graph.outputs:  # caches stay with their heads, what ends with the divided axis is gathered
            if t.name in division.axes and division.axes[t.name] != t.rank - 1 and t.rank < 4:
                failed |= sources.get(t.name, frozenset())
        if not failed - whole:
            division.indivisible = indivisible
            return division
        whole |= failed
    raise UsageError(f"tp={ranks}: the GEMMs of this graph can't be analysed for tensor parallelism; take dp or pp")


def _place(o: Operator, division: _Division, graph_inputs: set[str], ids: set[str]) -> None:
    """Find how an operator is divided. Raises Divided where its operands are and it needs them whole."""
    ranks, axes = division.ranks, division.axes
    if o.type in PRODUCTS and (w := matrix(o)) is not None:
        x = o.present[0]
        at, (k, n) = axes.get(x.name), w
        if at == x.rank - 1:
            if not rows_divide(o, k, ranks):
                blocks = f"{o.present[1].shape[1]:,} blocks of weights"
                raise Divided(blocks if k % ranks == 0 else f"{k:,} columns of the input")
            division.add_summand(o, ROWS)
        elif at is not None:
            axes[o.out.name] = at
        elif o.name not in division.whole and (n % ranks == 0 or n > 4 * k):
            division.columns.add(o.name)
            division.letters[o.name] = COLUMNS
            axes[o.out.name] = o.out.rank - 1
        elif n % ranks:
            division.odd[o.name] = f"the {n:,} columns"
        return
    if o.type in MIXTURES and not any(t.name in axes for t in o.present) and width(o) and width(o) % ranks == 0:
        division.add_summand(o, WIDTH)
        return
    if o.type == WITH_PRODUCT and not any(t.name in axes for t in o.present) and o.name not in division.whole:
        _place_attention(o, division, graph_inputs)
        return
    if o.type == "Gather" and _is_table(o, ids) and o.name not in division.whole:
        division.tables.add(o.name)
        return
    if not any(t.name in axes for t in o.present):
        if caches(o.type) and "r" in (letters := stated(o)).sizes:
            check_heads(letters, ranks)  # products before it may stay whole because of the same number
        return
    read = [axes.get(t.name) if t is not None else None for t in o.inputs]
    partial = [t is not None and (t.stored or t.name in graph_inputs or not division.training) for t in o.inputs]
    placed = follow(o, read, partial, ranks)
    division.letters[o.name] = placed.letter
    for i, axis in placed.inputs.items():
        if (t := o.inputs[i]) is not None:
            division.stored.setdefault(o.name, {})[t.name] = axis
            if t.name in graph_inputs:
                axes[t.name] = axis
    axes.update((t.name, axis) for t, axis in zip(o.outputs, placed.outputs, strict=True) if axis is not None)


def _place_attention(o: Operator, division: _Division, graph_inputs: set[str]) -> None:
    """Attention that contains the product which makes queries, keys and values: heads are divided, with the cache."""
    if (heads := int(o.attrs.get("num_heads", 1))) % division.ranks:
        raise Divided(f"{heads:,} heads")
    caches = [t for t in (*o.inputs[4:5], *o.outputs[1:2]) if t is not None]  # past and present, keys before values
    if any(t.rank != 5 or (t not in o.outputs and t.name not in graph_inputs) for t in caches):
        raise Divided
    division.columns.add(o.name)
    division.letters[o.name] = HEADS
    division.axes[o.out.name] = o.out.rank - 1
    division.axes.update((t.name, 2) for t in caches)


def _is_table(o: Operator, ids: set[str]) -> bool:
    """Whether a Gather reads rows of a table of token embeddings: of more rows than columns, by inputs of the graph."""
    if len(o.present) < 2 or o.attrs.get("axis", 0) or not (table := o.present[0]).stored or table.rank != 2:
        return False
    return table.shape[0] > table.shape[1] and o.present[1].name in ids


def _rewritten(graph: Graph, division: _Division, training: bool) -> Graph:
    """The graph of one GPU."""
    operators: list[Operator] = []
    shared: dict[str, Tensor] = {}
    graph_inputs = {t.name for t in graph.inputs}
    padded: list[str] = []
    group = Group("tp", division.ranks, 1)
    for o in graph.operators:
        share = _share(o, division)
        for i, t in enumerate(o.inputs):  # what every GPU computes whole, of which this operator reads a part
            if (
                t is not None
                and not t.stored
                and t.name not in graph_inputs
                and t.name in division.stored.get(o.name, {})
            ):
                piece = replace(
                    part(t, division.stored[o.name][t.name], division.ranks), name=f"{o.name}#{t.name}#part"
                )
                operators.append(Operator(piece.name, "Identity", (t,), (piece,), {"part": 1}, 0, o.nodes))
                share = replace(share, inputs=(*share.inputs[:i], piece, *share.inputs[i + 1 :]))
        if o.name in division.columns and (size := matrix(o)) is not None:
            padded += o.nodes if size[1] % division.ranks else ()
            x = share.present[0]
            if training and not x.stored:
                if x.name not in shared:
                    shared[x.name] = replace(x, name=f"{x.name}#shared", kind="activation")
                    view = exchange(SHARED, f"{x.name}#shared", (x,), (shared[x.name],), group, o.nodes)
                    operators.append(replace(view, place="free"))
                share = replace(share, inputs=(shared[x.name], *share.inputs[1:]))
        if o.name in division.rows | division.tables:
            summand = replace(share.out, name=f"{o.out.name}#part")
            operators.append(replace(share, outputs=(summand,)))
            share = exchange(ALL_REDUCE, f"{o.name}#all_reduce", (summand,), share.outputs, group, o.nodes)
        operators.append(share)
    outputs, sources = [], {t.name: o.nodes for o in graph.operators for t in o.outputs}
    for t in graph.outputs:
        if division.axes.get(t.name) == t.rank - 1:
            whole = replace(t, name=f"{t.name}#whole")
            columns = part(t, t.rank - 1, division.ranks)
            gather = exchange(ALL_GATHER, whole.name, (columns,), (whole,), group, sources.get(t.name, ()))
            operators.append(gather)
            outputs.append(whole)
        else:
            outputs.append(_now(t, division))
    note = _note(division, padded)
    inputs = tuple(_now(t, division) for t in graph.inputs)
    return replace(graph, operators=tuple(operators), inputs=inputs, outputs=tuple(outputs), notes=(*graph.notes, note))


def _note(division: _Division, padded: list[str]) -> Note:
    more = f"; {len(padded)} with padding" if padded else ""
    columns, rows, tables = (len(names) for names in (division.columns, division.rows, division.tables))
    says = (
        f"each of {division.ranks} GPUs has a part of {columns} products by columns{more}, of {rows} by rows, and of"
        f" {tables} tables of embeddings; everything else is replicated"
    )
    return Note("sharded", says)


def _now(t: Tensor, division: _Division) -> Tensor:
    return part(t, division.axes[t.name], division.ranks) if t.name in division.axes else t


def _share(o: Operator, division: _Division) -> Operator:
    """An operator on one GPU: its tensors as they are there, and attributes that count slices of what is divided."""
    stored, inputs = division.stored.get(o.name, {}), list(o.inputs)
    letter, ranks = division.letters.get(o.name, ""), division.ranks
    for i, t in enumerate(inputs):
        if t is not None and (axis := stored.get(t.name, division.axes.get(t.name))) is not None:
            inputs[i] = part(t, axis, ranks)
    if o.name in division.columns | division.rows:
        shares = weights_of(o, letter, ranks)
        inputs = [share if t is x else t for t, x, share in zip(inputs, o.inputs, shares, strict=True)]
    if o.name in division.tables:
        inputs[0] = part(o.present[0], 0, ranks)
    outputs = tuple(_now(t, division) for t in o.outputs)
    divided = any(t.name in division.axes for t in (*o.present, *o.outputs))
    if o.type == "Reshape" and divided and len(inputs) > 1 and (shape := inputs[1]) is not None and shape.stored:
        inputs[1] = replace(shape, name=f"{o.name}#shape", value=outputs[0].shape)
    return replace(o, inputs=tuple(inputs), outputs=outputs, attrs=counted(o, letter, ranks))

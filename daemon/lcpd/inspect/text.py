"""The report of `lcpd inspect` for the terminal.

Texts from the file go through `shown`: it may be hostile, and a terminal obeys control characters.
"""

from __future__ import annotations

from itertools import groupby

from rich.console import Group
from rich.table import Table
from rich.text import Text

from lcpd.config.sizes import readable_size
from lcpd.inspect.chat import ChatTemplate
from lcpd.inspect.layers import Kind
from lcpd.inspect.parts import Gguf
from lcpd.inspect.projector import Tower
from lcpd.inspect.report import EXAMPLE_FACTOR, ModelReport, ProjectorReport, context_limit, kv_bytes
from lcpd.inspect.shape import ModelShape
from lcpd.inspect.tokenizer import Tokenizer
from lcpd.inspect.weights import TensorClass, Weights

_SHOWN_MAX = 120
"""Characters of a text from the file."""


def shown(text: str) -> str:
    """A text from the file as it may be printed."""
    cut = text if len(text) <= _SHOWN_MAX else f"{text[: _SHOWN_MAX - 3]}..."
    return "".join(char if char.isprintable() else "�" for char in cut)


def rendered(report: ModelReport | ProjectorReport) -> Group:
    """The report, to be printed without markup."""
    if isinstance(report, ProjectorReport):
        rows = _projector_rows(report)
        return Group(_title(report.name or "projector"), _rows(rows), Text(), _weights(report.weights))
    return Group(
        _title(report.shape.name or report.file.path.name),
        _rows(_model_rows(report)),
        Text(),
        _weights(report.shape.weights),
    )


def _title(name: str) -> Text:
    return Text(shown(name), style="bold")


def _rows(rows: list[tuple[str, str]]) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(style="cyan", no_wrap=True)
    table.add_column()
    for name, value in rows:
        table.add_row(Text(name), Text(value))
    return table


def _model_rows(report: ModelReport) -> list[tuple[str, str]]:
    shape = report.shape
    quant = report.file_type or "unknown mix"
    if report.label and report.label.lower() != report.file_type.lower():
        quant += f" ({report.label} by its name)"
    bits = shape.weights.bits_per_weight
    rows = [
        *_file_rows(report.file),
        ("architecture", f"{shown(shape.architecture)}, {_count(shape.weights.elements)} parameters"),
        ("quantisation", f"{shown(quant)}, {readable_size(shape.weights.nbytes)}, {bits:.2f} bits per weight"),
        ("layers", _layers(shape)),
        ("attention", _attention(shape)),
    ]
    if shape.recurrent:
        rows.append(("recurrent", _recurrent(shape)))
    if shape.experts:
        experts = shape.experts
        shared = f", {experts.shared} shared" if experts.shared else ""
        rows.append(("experts", f"{experts.used} of {experts.count}{shared}"))
    if shape.n_mtp:
        mtp = readable_size(shape.weights.nbytes_of(TensorClass.MTP))
        rows.append(("mtp", f"{shape.n_mtp} layer{'s' * (shape.n_mtp > 1)} for multi-token prediction, {mtp}"))
    if shape.unmodelled:
        rows.append(("beware", f"a context keeps {shape.unmodelled}, which is not counted here"))
    rows += [
        ("context", _context(report)),
        ("tokenizer", _tokenizer(report.tokenizer, shape.n_vocab)),
        ("special", _special(report.tokenizer)),
        ("template", _template(report.template)),
        ("projector", _projectors(report)),
    ]
    return [(name, value) for name, value in rows if value]


def _file_rows(file: Gguf) -> list[tuple[str, str]]:
    rows = [("file", f"{shown(str(file.path))}, {readable_size(file.nbytes)}, GGUF {file.version}")]
    if len(file.parts) > 1:
        rows.append(("parts", f"{len(file.parts)}: {', '.join(readable_size(part.nbytes) for part in file.parts)}"))
    return rows


def _layers(shape: ModelShape) -> str:
    kinds = [layer.kind for layer in shape.layers if not layer.mtp]
    if not kinds:
        return "none but those for multi-token prediction: this is a draft model"
    counts = ", ".join(f"{kinds.count(kind)} {_named(kind, shape)}" for kind in Kind if kind in kinds)
    pattern = _pattern(kinds)
    return f"{len(kinds)}: {counts}{f'; {pattern}' if pattern else ''}"


def _named(kind: Kind, shape: ModelShape) -> str:
    if kind is Kind.WINDOW:
        window = max(layer.window for layer in shape.layers)
        return f"{kind} of {window:,} tokens" if shape.window_kind == "standard" else f"{kind} (chunks of {window:,})"
    return "without a cache of their own" if kind is Kind.NONE else str(kind)


def _pattern(kinds: list[Kind]) -> str:
    """How the kinds of layers alternate: "3 recurrent + 1 attention, 16 times"; else where the rarest are."""
    present = set(kinds)
    if len(present) < 2:
        return ""
    for period in range(2, len(kinds) // 2 + 1):
        if all(kind is kinds[index % period] for index, kind in enumerate(kinds)):
            runs = " + ".join(f"{len(list(run))} {kind}" for kind, run in groupby(kinds[:period]))
            whole = len(kinds) % period == 0
            return f"{runs}, {len(kinds) // period} times" if whole else f"{runs}, over and over"
    rarest = min(present, key=kinds.count)
    where = [str(index) for index, kind in enumerate(kinds) if kind is rarest]
    return f"{rarest} in {', '.join(where[:16])}{', ...' if len(where) > 16 else ''}"


def _attention(shape: ModelShape) -> str:
    layers = (*shape.attention_layers, *shape.window_layers)
    if not layers:
        return ""
    shapes = sorted({(layer.n_head, layer.n_head_kv, layer.head_k, layer.head_v) for layer in layers}, reverse=True)
    heads = "; ".join(
        f"{n_head} heads, {n_kv} for K and V, of {k if k == v else f'{k} and {v}'}" for n_head, n_kv, k, v in shapes[:3]
    )
    kept = [
        f"{readable_size(kv_bytes(shape, kept))} in {len(kept)} {what}"
        for kept, what in ((shape.attention_layers, "layers"), (shape.window_layers, "windows"))
        if kept
    ]
    return f"{heads}; a token's K and V (f16): {', '.join(kept)}"


def _recurrent(shape: ModelShape) -> str:
    state = shape.recurrent
    assert state is not None
    parts = [state.family]
    if state.d_conv:
        parts.append(f"convolution {state.d_conv} over {state.conv_channels:,}")
    if state.d_state and state.d_inner:
        parts.append(f"state {state.d_state} x {state.d_inner:,}, {state.dt_rank} heads, {state.n_group} groups")
    parts.append(f"{readable_size(shape.r_bytes + shape.s_bytes)} a sequence in {len(shape.recurrent_layers)} layers")
    return ", ".join(parts)


def _context(report: ModelReport) -> str:
    shape, rope = report.shape, report.shape.rope
    said = f"{shape.n_ctx_train:,} tokens"
    if context_limit(report) == "none":
        return f"{said} by its file; nothing in the model limits it"
    if rope.scaling != "none":
        factor = f", factor {rope.factor:g}" if rope.factor != 1 else ""
        trained = f" from {rope.original_context:,}" if rope.original_context != shape.n_ctx_train else ""
        return f"{said}, extended{trained} by rope scaling already ({shown(rope.scaling)}{factor})"
    return (
        f"{said}; rope scaling (YaRN) can extend it, by {EXAMPLE_FACTOR} to {EXAMPLE_FACTOR * shape.n_ctx_train:,}, "
        "if its model card says so"
    )


def _tokenizer(tokenizer: Tokenizer, n_vocab: int) -> str:
    kind = shown(tokenizer.model or "unknown") + (f", {shown(tokenizer.pre)}" if tokenizer.pre else "")
    merges = f", {tokenizer.merges:,} merges" if tokenizer.merges else ""
    adds = [name for name, flag in (("bos", tokenizer.adds_bos), ("eos", tokenizer.adds_eos)) if flag]
    added = f", adds {' and '.join(adds)}" if adds else ""
    return f"{kind}, {n_vocab:,} tokens{merges}{added}"


def _special(tokenizer: Tokenizer) -> str:
    return ", ".join(
        f"{role} {special.id}" + (f" {shown(special.text)}" if special.text is not None else "")
        for role, special in tokenizer.special.items()
    )


def _template(template: ChatTemplate | None) -> str:
    if template is None:
        return "none: the model is a base model, or its template must be given"
    can = {"tools": template.tools, "earlier tool calls": template.tool_calls, "system role": template.system}
    parts = [f"{name}: {'yes' if able else 'no'}" for name, able in can.items()]
    parts.append(f"thinking: {shown(template.thinking)}")
    if template.variants:
        parts.append(f"further ones: {', '.join(map(shown, template.variants))}")
    return ", ".join(parts)


def _projectors(report: ModelReport) -> str:
    return ", ".join(shown(path.name) for path in report.projectors[:8])


def _projector_rows(report: ProjectorReport) -> list[tuple[str, str]]:
    rows = [*_file_rows(report.file), ("kind", "projector: lets a model see or hear")]
    for name, tower in (("vision", report.projector.vision), ("audio", report.projector.audio)):
        if tower is not None:
            rows.append((name, _tower(tower)))
    return rows


def _tower(tower: Tower) -> str:
    parts = [shown(tower.projector or "unknown projector"), f"{tower.layers} layers of {tower.width:,}"]
    if tower.image_size:
        parts.append(f"images of {tower.image_size} pixels in patches of {tower.patch_size}")
    if tower.output:
        parts.append(f"for models with embeddings of {tower.output:,}")
    return ", ".join(parts)


def _weights(weights: Weights) -> Table:
    table = Table("tensors", "parameters", "size", "bits per weight", "quantisations")
    for column in table.columns[1:4]:
        column.justify = "right"
    for cls in weights.classes:
        shares = weights.of(cls)
        total = weights.nbytes_of(cls)
        mix = ", ".join(
            share.quant if len(shares) == 1 else f"{share.quant} {100 * share.nbytes / max(total, 1):.0f} %"
            for share in shares
        )
        bits = f"{weights.bits_per_weight_of(cls):.2f}"
        table.add_row(str(cls), _count(weights.elements_of(cls)), readable_size(total), bits, mix)
    table.add_section()
    table.add_row("all", _count(weights.elements), readable_size(weights.nbytes), f"{weights.bits_per_weight:.2f}", "")
    return table


def _count(number: int) -> str:
    for unit, factor in (("T", 10**12), ("B", 10**9), ("M", 10**6), ("K", 10**3)):
        if number >= factor:
            return f"{number / factor:.2f} {unit}"
    return str(number)

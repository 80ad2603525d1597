"""One variant's section of the HTML report."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tritonstack.terminal import human_bytes, human_seconds
from tritonstack_export.report.data import NumericRow, Variant
from tritonstack_export.report.markup import Child, Markup, data_table, facts, tag
from tritonstack_export.report.wording import METRICS, figure, gate_figure, percent, sizes_text

_KNOWN = ("fp32", "fp16", "bf16", "int8")


def color_class(precision: str) -> str:
    """The class of a precision's colour in the stylesheet."""
    return precision if precision in _KNOWN else "other"


def verdict(passed: bool) -> Markup:
    """A word and a mark, not a colour alone."""
    return tag("span", "✓ passed" if passed else "✗ failed", class_=f"verdict {'good' if passed else 'bad'}")


def named(variant: Variant) -> Markup:
    """The variant's name with the colour it has in the plots."""
    dot = tag("span", class_=f"dot {color_class(variant.precision)}", aria_hidden="true")
    return tag("span", dot, variant.name, class_="named")


def bars(rows: Sequence[tuple[str, float, str]], *, css: str = "bars") -> Markup:
    """Bars of (name, share of the track from 0 to 1, amount as text); the amount tells what the length shows."""
    return tag(
        "div",
        [
            (
                tag("span", name, class_="name"),
                tag("span", _bar(share), class_="track", aria_hidden="true"),
                tag("span", amount, class_="amount"),
            )
            for name, share, amount in rows
        ],
        class_=css,
    )


def _bar(share: float) -> Markup:
    return tag("span", class_="bar", style=f"width:{100 * max(0.0, min(1.0, share)):.1f}%")


def render_variant(variant: Variant, *, identity: str) -> Markup:
    """The whole section."""
    heading = tag("h2", named(variant), " ", verdict(variant.passed), id=identity)
    return tag("section", heading, tag("div", list(_parts(variant)), class_="card"), aria_labelledby=identity)


def _parts(variant: Variant) -> Iterator[Markup]:
    if variant.error is not None:
        yield tag("p", variant.error, class_="problem")
    yield _facts(variant)
    for note in variant.notes:
        yield tag("p", note, class_="note")
    if variant.served is not None:
        yield from _served(variant)
    yield from _accuracy(variant)
    yield from _numbers(variant)
    yield from _costs(variant)
    yield from _latency(variant)
    yield from _preflight(variant)


def _facts(variant: Variant) -> Markup:
    nodes = ", ".join(f"{count} in {precision}" for precision, count in variant.nodes.items() if count)
    quantized = f"{variant.layers_quantized} in INT8" if variant.layers_quantized is not None else ""
    rows: list[tuple[str, Markup | str]] = [
        ("precision", variant.precision),
        ("published", tag("code", variant.path) if variant.path else ""),
        ("version", str(variant.version) if variant.version is not None else ""),
        ("size", human_bytes(variant.size_bytes) if variant.size_bytes is not None else ""),
        ("SHA-256", tag("code", variant.sha256) if variant.sha256 else ""),
        ("made from", tag("code", variant.made_from) if variant.made_from else ""),
        ("nodes", nodes),
        ("layers", quantized),
    ]
    return facts(rows)


def _served(variant: Variant) -> Iterator[Markup]:
    served = variant.served
    if served is None:
        return
    yield tag("h3", "As served on this CPU")
    ratio = f" (SNR {figure(served.snr_db)} dB)" if served.snr_db is not None else ""
    yield tag("p", verdict(served.passed), " ", served.detail, ratio)
    if served.options:
        written = "\n".join(f"{key} = {value}" for key, value in served.options.items())
        yield tag("p", "Session options in its config that see to it:", class_="soft")
        yield tag("pre", written)


def _accuracy(variant: Variant) -> Iterator[Markup]:
    accuracy = variant.accuracy
    if accuracy is None:
        return
    yield tag("h3", "Accuracy")
    cells = [
        accuracy.metric,
        percent(accuracy.value),
        percent(accuracy.reference),
        figure(accuracy.drop),
        figure(accuracy.max_drop),
        percent(accuracy.agreement),
        f"{accuracy.samples:,}",
        verdict(accuracy.passed),
    ]
    header = ["metric", "value", "reference", "points lost", "allowed", "agreement", "samples", ""]
    yield data_table("On the labelled set", header, [cells], numbers=range(1, 7))
    if accuracy.allow_drop is not None:
        yield tag("p", f"--allow-drop {figure(accuracy.allow_drop)} conceded a larger loss.", class_="note")


def _numbers(variant: Variant) -> Iterator[Markup]:
    if not variant.rows and variant.independence is None:
        return
    yield tag("h3", f"Against {variant.compared_with}" if variant.compared_with else "Numbers")
    for output in dict.fromkeys(row.output for row in variant.rows):
        rows = [row for row in variant.rows if row.output == output]
        cells = [
            [
                sizes_text(row.sizes),
                figure(row.max_abs),
                figure(row.max_rel),
                f"{row.cosine:.6f}" if row.cosine is not None else "–",
                figure(row.snr_db),
                _limits(row),
                verdict(row.passed),
            ]
            for row in rows
        ]
        header = ["sizes", "max abs", "max rel", "cosine", "SNR dB", "limits", ""]
        yield data_table(f"Output {output}", header, cells, numbers=range(1, 5))
    if variant.independence is not None:
        alone = variant.independence
        seen = f" Largest difference: {figure(alone.largest)}." if alone.largest is not None else ""
        told = alone.detail or (
            "Each sample has the same result whatever it is batched with."
            if alone.passed
            else "A sample's result depends on the others in its batch."
        )
        yield tag("p", verdict(alone.passed), " ", told, seen)


def _limits(row: NumericRow) -> Markup | str:
    if row.problem is not None:
        return row.problem
    said = [
        f"{METRICS.get(gate.metric, gate.metric)} {'≥' if gate.direction == 'least' else '≤'} "
        f"{gate_figure(gate.metric, gate.limit)}" + ("" if gate.passed else " (missed)")
        for gate in row.gates
    ]
    return "; ".join(said) or "none"


def _costs(variant: Variant) -> Iterator[Markup]:
    if variant.excluded:
        yield tag("h3", f"Layers that cost accuracy, kept out of INT8: {len(variant.excluded)}")
        yield tag(
            "p", "The longer the bar, the more signal-to-noise ratio the layer gives back when it is not quantized.",
            class_="soft",
        )  # fmt: skip
        largest = max((layer.gain_db or 0.0 for layer in variant.excluded), default=0.0) or 1.0
        yield bars(
            [
                (
                    f"{layer.node} ({layer.operator}{', by hand' if layer.by_hand else ''})",
                    (layer.gain_db or 0.0) / largest,
                    f"{figure(layer.gain_db)} dB" if layer.gain_db is not None else "–",
                )
                for layer in variant.excluded
            ]
        )
        shares = [
            [
                layer.node,
                layer.operator,
                f"{figure(layer.gain_db)}" if layer.gain_db is not None else "–",
                percent(layer.macs_share),
                percent(layer.bytes_share),
            ]
            for layer in variant.excluded
        ]
        header = ["layer", "operator", "gain dB", "share of MACs", "share of weights"]
        yield data_table("What giving them back costs", header, shares, numbers=range(2, 5))
    if variant.islands:
        yield tag("h3", f"FP32 islands: {len(variant.islands)}")
        rows = [[island.node, island.operator, island.reason] for island in variant.islands]
        table = data_table("Nodes that stayed in FP32", ["node", "operator", "why"], rows)
        yield table if len(rows) <= 12 else tag("details", tag("summary", f"Show all {len(rows)}"), table)


def _latency(variant: Variant) -> Iterator[Markup]:
    if not variant.latency:
        return
    yield tag("h3", "Latency on this machine")
    rows: list[list[Child]] = [
        [row.batch, f"{figure(row.p50_ms)} ms", f"{figure(row.p90_ms)} ms", figure(row.samples_per_s), row.calls]
        for row in variant.latency
    ]
    threads = {row.threads for row in variant.latency if row.threads is not None}
    said = f", {threads.pop()} threads" if len(threads) == 1 else ""
    header = ["batch", "median", "90th percentile", "samples/s", "calls"]
    yield data_table(f"ONNX Runtime on the CPU, as served{said}", header, rows, numbers=range(1, 5))


def _preflight(variant: Variant) -> Iterator[Markup]:
    if not variant.preflight:
        return
    yield tag("h3", "Pre-flight")
    rows = [
        [
            build.builder,
            ", ".join(build.compute_capabilities),
            str(build.layers) if build.layers is not None else "–",
            human_bytes(build.engine_bytes) if build.engine_bytes is not None else "–",
            human_seconds(build.seconds) if build.seconds is not None else "–",
            verdict(build.passed),
        ]
        for build in variant.preflight
    ]
    header = ["built with", "compute capability", "layers", "engine", "time", ""]
    yield data_table("A proxy for TensorRT: the engines were thrown away", header, rows, numbers=range(2, 5))
    for build in variant.preflight:
        for problem in build.problems:
            yield tag("p", problem, class_="problem")

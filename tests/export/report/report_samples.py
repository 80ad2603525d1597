"""Reports with something in every field, for the tests of the renderers."""

from __future__ import annotations

from dataclasses import replace

from tritonstack_export.report import (
    Accuracy,
    BatchIndependence,
    Environment,
    ExcludedLayer,
    ExportReport,
    GateLimit,
    Island,
    LatencyRow,
    NumericRow,
    PreflightRow,
    ServedPath,
    Variant,
)

NASTY = """<script>alert("x")</script>&amp;'" ü\x00\x1b[31m\u202e\udcff"""
BUILDER = "TensorRT for RTX 1.7.1.116"


def rows(output: str, snr_db: float | None, *, limit: float = 20.0) -> tuple[NumericRow, ...]:
    gates = () if snr_db is None else (GateLimit("snr_db", snr_db, limit, "least", snr_db >= limit),)
    return tuple(
        NumericRow(output, {"batch": batch}, 0.08 / batch, 0.004, 0.99997, snr_db, gates) for batch in (1, 2, 8, 32)
    )


def variants() -> tuple[Variant, ...]:
    fp32 = Variant(
        name="efficientnet_lite0",
        precision="fp32",
        path="models/efficientnet_lite0/1",
        version=1,
        sha256="a" * 64,
        size_bytes=18_703_112,
        compared_with="PyTorch",
        nodes={"fp32": 94},
        rows=rows("logits", None),
        accuracy=Accuracy("top1", 0.7510, 1000, passed=True),
        latency=(LatencyRow(1, 210, 9.1, 10.4, 109.9, 2), LatencyRow(8, 31, 64.0, 71.2, 125.0, 2)),
        preflight=(PreflightRow(BUILDER, ("8.0", "8.9"), True, 98, 19_063_884, 0.8),),
    )
    fp16 = Variant(
        name="efficientnet_lite0_fp16",
        precision="fp16",
        path="models/efficientnet_lite0_fp16/1",
        version=1,
        sha256="b" * 64,
        size_bytes=9_301_000,
        made_from="a" * 64,
        compared_with="FP32",
        nodes={"fp16": 92, "fp32": 2},
        rows=rows("logits", 43.7, limit=35),
        independence=BatchIndependence(True, 0.0),
        accuracy=Accuracy("top1", 0.7507, 1000, 0.7510, 0.03, 0.1, 0.999),
        islands=(Island("node_Pow_3", "Pow", "its values reach 1.2e+06, FP16 ends at 65504"),),
        latency=(LatencyRow(1, 120, 17.3, 19.4, 57.8, 2), LatencyRow(8, 16, 131.0, 137.2, 61.1, 2)),
        preflight=(PreflightRow(BUILDER, ("8.9",), True, 100, 9_815_452, 0.7),),
    )
    int8 = Variant(
        name="efficientnet_lite0_int8",
        precision="int8",
        path="models/efficientnet_lite0_int8/1",
        version=1,
        sha256="c" * 64,
        size_bytes=5_230_000,
        made_from="a" * 64,
        compared_with="FP32",
        nodes={"int8": 43, "fp32": 51},
        layers_quantized=43,
        rows=rows("logits", 22.2),
        independence=BatchIndependence(True, 1e-6),
        accuracy=Accuracy("top1", 0.7442, 1000, 0.7510, 0.68, 1.0, 0.964),
        excluded=(
            ExcludedLayer("node_conv2d", "Conv", 4.6, 0.028, 0.0002),
            ExcludedLayer("node_conv2d_1", "Conv", 2.1, 0.009, 0.0001),
            ExcludedLayer("node_linear", "Gemm", None, 0.003, 0.27, by_hand=True),
        ),
        served=ServedPath(True, "right with these options", 22.0, {"session.disable_quant_qdq": "1"}),
        latency=(LatencyRow(1, 400, 4.9, 5.3, 204.1, 2), LatencyRow(8, 60, 33.1, 36.2, 241.7, 2)),
        preflight=(PreflightRow(BUILDER, ("8.9",), True, 692, 10_770_000, 2.1),),
        notes=("calibrated on 64 pictures",),
    )
    return fp32, fp16, int8


def good() -> ExportReport:
    return ExportReport(
        model="efficientnet_lite0",
        created_at="2026-11-30T22:30:00+00:00",
        command="tritonstack export spec.yaml --repository models --precision fp32,fp16,int8",
        environment=Environment("AMD EPYC", 2, ("avx2", "avx512_vnni"), "Linux 6.1 x86_64", {"torch": "2.13.0"}),
        variants=variants(),
        repository="models",
        default_variant="efficientnet_lite0",
        calibration="64 pictures of calibration/",
        evaluation="1,000 labelled pictures of evaluation/",
        seconds={"load": 1.2, "export": 21.0, "int8": 64.5, "publish": 0.2},
    )


def failed() -> ExportReport:
    """A gate missed, a variant refused, a pre-flight that failed; nothing published."""
    fp32, fp16, int8 = variants()
    bad = Accuracy("top1", 0.70, 1000, 0.751, 5.1, 1.0, 0.84, passed=False)
    low = replace(int8, path=None, rows=rows("logits", 13.2), accuracy=bad)
    broken = PreflightRow(BUILDER, ("8.9",), False, problems=("node 'custom0' (MyOp): no such operator",))
    refused = replace(fp16, rows=(), preflight=(broken,), error="AutoCast: not a number in 'logits'")
    return replace(good(), variants=(fp32, refused, low), published=False)


def nasty() -> ExportReport:
    """Names that try to become markup, numbers that are none, everywhere."""
    numbers = (NumericRow(NASTY, {NASTY: 2}, float("nan"), float("inf"), None, float("-inf"),
                          (GateLimit(NASTY, float("nan"), 1.0, "least", False),), problem=NASTY),)  # fmt: skip
    variant = Variant(
        name=NASTY, precision=NASTY, path=NASTY, sha256=NASTY, made_from=NASTY, compared_with=NASTY, nodes={NASTY: 1},
        rows=numbers, independence=BatchIndependence(False, None, NASTY), size_bytes=0,
        accuracy=Accuracy(NASTY, 0.5, 1, passed=False), islands=(Island(NASTY, NASTY, NASTY),) * 20,
        excluded=(ExcludedLayer(NASTY, NASTY, float("nan")),), served=ServedPath(False, NASTY, None, {NASTY: NASTY}),
        latency=(LatencyRow(1, 1, 0.0, 0.0, 0.0),),
        preflight=(PreflightRow(NASTY, (NASTY,), False, problems=(NASTY,)),),
        notes=(NASTY,), error=NASTY,
    )  # fmt: skip
    return ExportReport(
        NASTY, NASTY, NASTY, Environment(NASTY, 1, (NASTY,), NASTY, {NASTY: NASTY}), (variant, variant),
        repository=NASTY, default_variant=NASTY, calibration=NASTY, evaluation=NASTY, seconds={NASTY: 0.0},
        notes=(NASTY,),
    )  # fmt: skip

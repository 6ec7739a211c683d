"""Training steps on a GPU wait only where they are said to, and launch no more kernels than today.

Kernels are counted and not run (`benchmarks.null_gpu`), so a machine without a GPU can run these tests.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from asr.base.settings.conf import names
from benchmarks.gpu.launches import ACCUMULATION, LOGGED, NAME, NO_TRITON, WAYS
from tests.conftest import CONF, PATIENCE

ENCODERS = names("encoder")
HEADS = sorted(path.stem for path in (CONF / "head").glob("*.yaml") if path.stem != "ctc")
XS = "encoder=conformer_xs"
FAST = {f"{XS} head=ctc", f"{XS} head=ctc_self_conditioned", f"{XS} head=ctc {LOGGED}"}
CASES = [
    *(f"encoder={encoder} head=ctc" for encoder in ENCODERS),
    *(f"{XS} head={head}" for head in HEADS),
    *(f"{XS} head=ctc {way}" for way in WAYS),
]
WITHOUT_ATTENTION = ("encoder=lstm", "encoder=gru", "encoder=zipformer")  # or with explicit attention weights
BATCH = (
    "128x16"  # large, so that the workspaces of operations, which no forecast counts, are a small part of the memory
)
MEMORY = 0.05  # largest difference from the forecast, as a fraction of it
IN_LOSS = {"ctc_loss.ctc_loss": 7, "outside of asr": 3}  # waits of torch's CTC loss, forward and backward
MARGIN = 1.02  # because versions of torch differ: 2.14 launches up to 1.6 % more than 2.11
LAUNCHES = {  # launches of a step with torch 2.11
    "encoder=conformer_l head=ctc": 1_520,
    "encoder=conformer_m head=ctc": 1_121,
    "encoder=conformer_s head=ctc": 980,
    "encoder=conformer_streaming_m head=ctc": 1_257,
    "encoder=conformer_streaming_s head=ctc": 1_182,
    "encoder=conformer_streaming_xs head=ctc": 925,
    "encoder=conformer_xs head=ctc": 789,
    "encoder=fast_conformer_l head=ctc": 2_251,
    "encoder=fast_conformer_m head=ctc": 2_251,
    "encoder=fast_conformer_s head=ctc": 2_275,
    "encoder=fast_conformer_streaming_l head=ctc": 2_244,
    "encoder=fast_conformer_streaming_s head=ctc": 2_268,
    "encoder=gru head=ctc": 533,
    "encoder=lstm head=ctc": 545,
    "encoder=medasr_l head=ctc": 2_170,
    "encoder=transformer head=ctc": 575,
    "encoder=transformer_xl head=ctc": 1_603,
    "encoder=turboctc_l head=ctc": 672,
    "encoder=w2v_bert_adapter_l head=ctc": 2_344,
    "encoder=w2v_bert_l head=ctc": 686,
    "encoder=wav2vec2_l head=ctc": 12_954,  # grouped convolutions without cuDNN, which is not counted here
    "encoder=zipformer_l head=ctc": 5_152,
    "encoder=zipformer_m head=ctc": 5_152,
    "encoder=zipformer_s head=ctc": 5_142,
    "encoder=zipformer_streaming_l head=ctc": 6_254,
    "encoder=zipformer_streaming_m head=ctc": 6_254,
    "encoder=zipformer_streaming_s head=ctc": 6_244,
    "encoder=zipformer_streaming_xs head=ctc": 6_198,
    "encoder=zipformer_xs head=ctc": 5_096,
    "encoder=conformer_xs head=ctc_attention": 1_891,
    "encoder=conformer_xs head=ctc_consistency": 895,
    "encoder=conformer_xs head=ctc_intermediate": 818,
    "encoder=conformer_xs head=ctc_intermediate_espnet": 818,
    "encoder=conformer_xs head=ctc_self_conditioned": 847,
    "encoder=conformer_xs head=tdt": 973,
    "encoder=conformer_xs head=transducer": 960,
    "encoder=conformer_xs head=ctc average": 791,
    "encoder=conformer_xs head=ctc checkpointing": 1_021,
    "encoder=conformer_xs head=ctc lora": 736,
    "encoder=conformer_xs head=ctc accumulation": 1_618,
    "encoder=conformer_xs head=ctc logged": 792,
    "encoder=conformer_xs head=ctc no-triton": 791,
}


def overrides_of(case: str) -> str:
    """Return a case with two blocks, or one in each stack of a Zipformer, and AdamW."""
    extra = " features/normalize=global_cmvn" if "streaming" in case else ""
    extra += " encoder.subsampling.num_channels=64" if "wav2vec2" in case else ""  # 512 do not fit into 80 GB
    extra += " head.num_intermediate=1" if "intermediate" in case or "self_conditioned" in case else ""
    size = "encoder.layers=[1,1,1,1,1,1]" if "zipformer" in case else "encoder.num_layers=2"
    return f"{case} {size} optimizer=adamw{extra}"


@pytest.fixture(scope="session")
def rows(
    null_gpu: dict[str, str], request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, dict[str, Any]]:
    """Measure the cases of all selected tests in one process."""
    own = (item for item in request.session.items if item.path == Path(__file__))
    cases = [item.callspec.params["case"] for item in own]  # type: ignore[attr-defined]
    folder = tmp_path_factory.mktemp("launches")
    options = ["--batch", BATCH, "--vocab-size", "64", "--turns", "1", "--output-dir", str(folder)]
    command = [sys.executable, "-m", "benchmarks.gpu.launches", *options, "--cases", *map(overrides_of, cases)]
    done = subprocess.run(command, env=null_gpu, capture_output=True, text=True, timeout=2 * PATIENCE)
    assert done.returncode == 0, done.stderr
    content = json.loads((Path(folder) / f"{NAME}.json").read_text())
    return dict(zip(cases, content["rows"], strict=True))


@pytest.mark.parametrize(
    "case", [case if case in FAST else pytest.param(case, marks=pytest.mark.slow) for case in CASES]
)
def test_a_step_waits_only_in_torchs_loss_and_launches_no_more_kernels(
    case: str, rows: dict[str, dict[str, Any]]
) -> None:
    row = rows[case]
    batches = 2 if ACCUMULATION in case else 1
    expected = {place: batches * number for place, number in IN_LOSS.items() if NO_TRITON in case}
    expected |= {"step_sums.wait_for": 1} if LOGGED in case else {}
    assert (row["waits in"] or {}) == expected
    assert row["launches"] <= MARGIN * LAUNCHES[case]
    assert (row["attention"] == "efficient_attention") is not case.startswith(WITHOUT_ATTENTION)
    if ACCUMULATION not in case:  # the forecast is that of one batch
        assert row["peak GB"] == pytest.approx(row["forecast GB"], rel=MEMORY)

"""asr.check: a package with a fault is reported by component and rule; asr's own components pass in the other tests."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from textwrap import dedent

import pytest

from asr.apps.check.heads import check_restriction
from asr.apps.check.network import SMALL, model_of
from asr.base.settings import plugins
from asr.base.settings.conf import default_settings, overridden
from asr.check import main as check
from asr.components.head.transducer import Transducer
from asr.core.build import component
from asr.errors import InputError
from tests.refusals import mentions, refused

HEAD = """
    from asr.components.head.ctc import CTC
    from asr.interfaces import Decoders

    class Mine(CTC):
        {body}
    """
ENCODER = """
    from torch import nn

    from asr.interfaces import Encoded
    from asr.lengths import padding_mask
    from asr.base.settings.rule import Dim

    class Mine(nn.Module):
        '''Halve the frame rate.

        Args:
            dim: dimension.
        '''

        stride = 2
        streaming = None

        def __init__(self, input_dim, *, dim: Dim):
            super().__init__()
            self.output_dim = dim
            self.linear = nn.Conv1d(input_dim, dim, 3, 2, 1)

        def forward(self, features, feature_lengths, taps=None):
            {masked}
            out = self.linear(features.transpose(1, 2)).transpose(1, 2)
            return Encoded(out, self.output_lengths(feature_lengths), {{}})

        def named_blocks(self):
            return []

        @staticmethod
        def output_lengths(lengths):
            return ({lengths}) // 2
    """
MASKED = "features = features * 1; features[padding_mask(feature_lengths, features.shape[1])] = 0"
AUGMENT = """
    import random

    import torch

    class Mine:
        stage = "waveform"
        max_added_seconds = 0.0

        def __init__(self, sample_rate):
            pass

        def __call__(self, waveform):
            return {result}
    """
DECODER = """
    from asr.components.decode.greedy import Greedy

    class Mine(Greedy):
        needs = ("frame_head",)

        def search(self, evidence):
            nbests = super().search(evidence)
            nothing = [nbests[0][0]._replace(tokens=[], frames=[])]
            return nbests[:{best}] + [nothing for _ in nbests[{best}:]]
    """


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Write a component named `mine` into the package lab, which Python can import."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(plugins, "_named", {})

    def write(group: str, code: str, settings: str = "name: mine\n", name: str = "mine") -> None:
        for file, text in ((f"lab/{group}/{name}.py", dedent(code)), (f"lab/conf/{group}/{name}.yaml", settings)):
            (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / file).write_text(text)

    yield write
    for name in [name for name in sys.modules if name.partition(".")[0] == "lab"]:
        del sys.modules[name]


FAULTS = [
    ("head", HEAD.format(body="decoders = None"), "name: mine", "decoders: a head ... greedy"),
    ("head", HEAD.format(body="decoders = Decoders(greedy=(), beam=())"), "name: mine", "decoders: a head ... greedy"),
    (
        "head",
        HEAD.format(body="decoders = Decoders(greedy=('greedy', 'nowhere'), beam=())"),
        "name: mine",
        "decoders: ... nowhere",
    ),
    (
        "head",
        HEAD.format(body="decoders = Decoders(greedy=('transducer_greedy',), beam=())"),
        "name: mine",
        "decoders: ... transducer_greedy ... joiner",
    ),
    (
        "head",
        HEAD.format(body="log_probs = CTC.all_log_probs"),
        "name: mine",
        "restriction to tokens: ... log_probs ... -inf",
    ),
    (
        "head",
        HEAD.format(body="def all_of(self, encoded): return self.log_probs(encoded.out)"),
        "name: mine",
        "restriction to tokens: ... loss",
    ),
    (
        "head",
        HEAD.format(body="def log_probs(self, out): return self.mask.logits(self.all_log_probs(out))"),
        "name: mine",
        "restriction to tokens: ... add up to 1",
    ),
    ("head", HEAD.format(body="pass"), "name: mine\nscale: 2", "settings: ... scale"),
    ("head", HEAD.format(body="pass"), "name: [mine", "settings: ... conf/head/mine.yaml ... YAML"),
    ("head", "class Other: pass", "name: mine", "settings: ... head/mine.py ... class Mine ... Other"),
    ("head", "scale = 2", "name: mine", "settings: ... head/mine.py ... class Mine ... no class"),
    ("head", "import nowhere_to_be_found", "name: mine", "settings: ... ModuleNotFoundError ... mine.py:1"),
    ("encoder", ENCODER.format(masked="", lengths="lengths + 1"), "name: mine\ndim: 8", "batch: ... alone"),
    (
        "encoder",
        ENCODER.format(masked=MASKED, lengths="lengths"),
        "name: mine\ndim: 8",
        "batch: output_lengths ... Encoded.lengths",
    ),
    ("augment", AUGMENT.format(result="waveform * random.random()"), "# @package augment.mine\n", "draws: ... seed"),
    ("augment", AUGMENT.format(result="waveform.mul_(torch.rand(1))"), "# @package augment.mine\n", "draws: ... input"),
    ("augment", AUGMENT.format(result="waveform * torch.rand(1)"), "{}", "settings: ... # @package augment.mine"),
    ("decode", DECODER.format(best=1), "name: mine", "transcripts: ... batch"),
]


@pytest.mark.parametrize(("group", "code", "settings", "expected"), FAULTS, ids=[fault[-1] for fault in FAULTS])
def test_a_faulty_component_fails_the_check_that_names_its_fault(
    lab: Callable[..., None],
    group: str,
    code: str,
    settings: str,
    expected: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    lab(group, code, settings)
    assert check(["lab"]) == 1
    failed = [line for line in capsys.readouterr().out.splitlines()[:-1] if not line.endswith(": passes")]
    assert failed
    assert mentions(failed[0], f"{group}/mine ... {expected}"), failed


@pytest.mark.parametrize(
    ("group", "code", "settings"),
    [
        ("encoder", ENCODER.format(masked=MASKED, lengths="lengths + 1"), "name: mine\ndim: 8"),
        ("augment", AUGMENT.format(result="waveform * torch.rand(1)"), "# @package augment.mine\n{}"),
        ("decode", DECODER.format(best=9), "name: mine"),
    ],
)
def test_a_component_without_a_fault_passes(
    lab: Callable[..., None], group: str, code: str, settings: str, capsys: pytest.CaptureFixture[str]
) -> None:
    lab(group, code, settings)
    assert check(["lab"]) == 0, capsys.readouterr().out
    lines = capsys.readouterr().out.splitlines()
    assert all(line.startswith(f"{group}/mine: ") and line.endswith(": passes") for line in lines[:-1])


@pytest.mark.parametrize("head", ["transducer", "tdt"])
def test_a_head_whose_decoder_writes_a_masked_token_fails(head: str, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = overridden(default_settings("head", head), SMALL)
    encoder = overridden(default_settings("encoder", "transformer"), SMALL)
    check_restriction(settings, model_of(encoder, settings).eval())
    monkeypatch.setattr(Transducer, "restrict", lambda head, allowed: head.ctc and head.ctc.restrict(allowed))
    with refused(InputError, "allowed tokens ... TransducerGreedy"):
        check_restriction(settings, model_of(encoder, settings).eval())


def test_settings_of_encoders_that_a_part_lacks_are_named_by_the_check_and_by_the_training(
    lab: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    code = """
        from torch import nn

        class Mine(nn.Module):
            def __init__(self, dim, norm, activation):
                super().__init__()
                self.linear = nn.Linear(dim, dim)

            def forward(self, x, padding_mask):
                return self.linear(x)
        """
    lab("encoder/block/convolution", code)
    assert check(["lab"]) == 0
    notes = [line for line in capsys.readouterr().out.splitlines() if line.startswith("note: ")]
    assert any(
        mentions(line, "kernel_size ... encoder=conformer_xs ... ~encoder.block.convolution.kernel_size")
        for line in notes
    )
    with refused(
        InputError, "encoder.block.convolution ... kernel_size", cure="~encoder.block.convolution.kernel_size"
    ):
        component("encoder/block/convolution", {"name": "mine", "kernel_size": 15})


@pytest.mark.slow
def test_the_components_of_asr_pass_the_checks_of_a_plugin(capsys: pytest.CaptureFixture[str]) -> None:
    assert check(["asr.components"]) == 0, capsys.readouterr().out


def test_a_component_without_a_yaml_file_is_named(
    lab: Callable[..., None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lab("head", HEAD.format(body="pass"))
    (tmp_path / "lab" / "conf" / "head" / "mine.yaml").unlink()
    assert check(["lab"]) == 1
    assert "conf/head/mine.yaml" in capsys.readouterr().out


def test_a_folder_that_is_no_group_is_named(lab: Callable[..., None], capsys: pytest.CaptureFixture[str]) -> None:
    lab("haed", HEAD.format(body="pass"))
    assert check(["lab"]) == 1
    assert mentions(capsys.readouterr().out, "conf/haed/mine.yaml ... head")


def test_a_name_that_asr_has_is_refused(lab: Callable[..., None]) -> None:
    lab("head", HEAD.format(body="pass"), "name: ctc\n", name="ctc")
    with refused(InputError, "PACKAGE ... lab ... asr ... conf/head/ctc.yaml"):
        check(["lab"])


def test_a_package_without_components_fails(lab: Callable[..., None], tmp_path: Path) -> None:
    (tmp_path / "lab").mkdir()
    (tmp_path / "lab" / "__init__.py").touch()
    assert check(["lab"]) == 1

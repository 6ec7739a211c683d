"""Each head names decoders that exist, that it can serve, and that its YAML file also selects."""

import argparse
import sys
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from asr.apps.check.heads import check_decoders
from asr.base.settings import plugins
from asr.base.settings.conf import default_settings, names
from asr.core.build import check_needs, component, decoders_of, find_class
from asr.core.decoder_choice import greedy_decoder, of_options, with_beam, with_decoder
from asr.errors import InputError
from asr.interfaces import Decoders
from tests.conftest import block_dims, resolved
from tests.refusals import refused

HEADS = names("head")


SEARCHES = [("tdt", "transducer_greedy", "transducer_beam"), ("ctc", "greedy", "beam")]


def decode(name: str) -> dict[str, Any]:
    return {"decode": default_settings("decode", name), "head": {"name": "the head"}}


@pytest.mark.parametrize("name", HEADS)
def test_a_head_serves_the_decoders_that_it_names(name: str) -> None:
    config = default_settings("head", name)
    decoders = decoders_of(config)
    check_decoders(config, component("head", config)(16, block_dims(16), 8))
    for decoder in (*decoders.greedy, *decoders.beam):
        settings = default_settings("decode", decoder)
        assert ("fusion" in settings) == (decoder in decoders.beam)


@pytest.mark.parametrize(("name", "greedy", "beam"), SEARCHES)
def test_a_decoder_that_lacks_a_part_of_the_head_is_refused_with_those_that_do_not(
    name: str, greedy: str, beam: str
) -> None:
    """Neither head has the part, because the transducer's weight of CTC is 0."""
    config = default_settings("head", name)
    head = component("head", config | ({"ctc_weight": 0.0} if "ctc_weight" in config else {}))(16, block_dims(16), 8)
    settings = decode("joint_beam")
    with refused(InputError, f"decode=joint_beam ... decode={greedy} ... {beam}"):
        check_needs(component("decode", settings["decode"]), head, settings)


def test_a_head_that_can_serve_none_of_its_decoders_is_refused_by_name() -> None:
    config = default_settings("head", "ctc")
    head = component("head", config)(16, block_dims(16), 8)
    head.decoders = Decoders(greedy=("transducer_greedy",), beam=())
    settings = decode("transducer_greedy")
    with refused(InputError, "decode=transducer_greedy ... decoders"):
        check_needs(component("decode", settings["decode"]), head, settings)


@pytest.mark.parametrize(
    ("decoders", "expected"), [(Decoders(("mine",), ()), "mine"), (Decoders(("mine",), ("b",)), "b")]
)
def test_a_greedy_decoder_without_a_beam_search_stays(decoders: Decoders, expected: str) -> None:
    assert with_beam(decoders, "mine") == expected


@pytest.mark.parametrize("name", HEADS)
def test_training_selects_the_preferred_greedy_decoder(name: str) -> None:
    config = resolved(f"head={name}")
    assert config["decode"]["name"] == greedy_decoder(decoders_of(config["head"]))


@pytest.mark.parametrize("name", HEADS)
def test_a_beam_that_replaces_a_greedy_decoder_searches_the_same_part_of_the_head(name: str) -> None:
    decoders = decoders_of(default_settings("head", name))
    for greedy in decoders.greedy:
        beam = with_beam(decoders, greedy)
        assert find_class("decode", beam).needs == find_class("decode", greedy).needs  # type: ignore[attr-defined]
        assert beam not in decoders.greedy
        assert with_beam(decoders, beam) == beam


@pytest.mark.parametrize(
    ("head", "own", "expected"),
    [*SEARCHES, ("tdt", "greedy", "beam"), ("ctc", "beam", "beam")],
)
def test_options_of_beam_search_replace_the_models_greedy_decoder(head: str, own: str, expected: str) -> None:
    config = {"head": default_settings("head", head), "decode": default_settings("decode", own)}
    settings = with_decoder(config, {"beam_size": 3})["decode"]
    assert (settings["name"], settings["beam_size"]) == (expected, 3)


@pytest.mark.parametrize(
    ("head", "given", "message"),
    [
        ("ctc", {"beam_size": 0}, "decode.beam_size ... --beam; got 0"),
        ("tdt", {"beam_size": 0}, "decode.beam_size ... --beam; got 0"),
        ("ctc", {"fusion": {"lm_weight": -1.0}}, "decode.fusion.lm_weight ... --lm-weight; got -1.0"),
        ("ctc", {"name": "greedy", "beam_size": 4, "fusion": {"lm": "x"}}, "--decode greedy ... --beam ... --lm"),
        ("ctc", {"beam_width": 4}, "decode=beam ... decode.beam_width"),
        ("ctc", {"name": "nowhere"}, "decode.name; got 'nowhere'"),
        ("ctc", 3, "decode; got 3"),
    ],
)
def test_settings_that_the_decoder_does_not_have_or_that_break_a_rule_are_refused(
    head: str, given: Any, message: str
) -> None:
    config = {"head": default_settings("head", head), "decode": default_settings("decode", "greedy")}
    with refused(InputError, message):
        with_decoder(config, given)


STRANGER = {
    "head/sums.py": """
        from asr.interfaces import Decoders

        class Sums:
            decoders = Decoders(greedy=("first",), beam=("wide",))
    """,
    "decode/wide.py": """
        from typing import Annotated
        from asr.base.settings.rule import whole

        class Wide:
            def __init__(self, head, tokenizer, normalize, *, beam_size: Annotated[int, whole(1, 9)]):
                pass
    """,
    "conf/decode/wide.yaml": "name: wide\nbeam_size: 2",
}


def test_a_decoder_of_a_package_that_replaces_our_components_has_its_own_rules(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "stranger"
    for name, text in STRANGER.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(dedent(text))
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setitem(sys.modules, "asr.components", None)  # its modules cannot be imported
    for name in [name for name in sys.modules if name.startswith("asr.components.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(plugins, "OURS", plugins.Home("stranger", folder, folder / "conf"))
    config = {"head": {"name": "sums"}, "decode": {"name": "first"}}
    beam_4 = of_options(argparse.Namespace(beam=4, lm=None))
    assert with_decoder(config, beam_4) == config | {"decode": {"name": "wide", "beam_size": 4}}
    with refused(InputError, "decode.beam_size ... --beam; got 10"):
        with_decoder(config, {"beam_size": 10})
    with refused(InputError, "--decode wide ... --lm"):
        with_decoder(config, {"fusion": {"lm": "x"}})

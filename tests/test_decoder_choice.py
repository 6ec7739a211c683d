"""Each head names decoders that exist, that it can serve, and that its YAML file also selects."""

from typing import Any

import pytest

from asr.apps.check.heads import check_decoders
from asr.base.settings.conf import default_settings, names
from asr.core.build import check_needs, component, decoders_of, find_class
from asr.core.checkpoint.bundle import Bundle
from asr.core.checkpoint.load import decoder_settings
from asr.core.recognition.decoder_choice import greedy_decoder, is_greedy, with_beam
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
        assert not is_greedy(decoders, beam)
        assert with_beam(decoders, beam) == beam


@pytest.mark.parametrize(
    ("head", "own", "expected"),
    [*SEARCHES, ("tdt", "greedy", "beam"), ("ctc", "beam", "beam")],
)
def test_options_of_beam_search_replace_the_models_greedy_decoder(head: str, own: str, expected: str) -> None:
    config = {"head": default_settings("head", head), "decode": default_settings("decode", own)}
    settings = decoder_settings(Bundle(config, {}, {}, ""), {"beam_size": 3})
    assert (settings["name"], settings["beam_size"]) == (expected, 3)

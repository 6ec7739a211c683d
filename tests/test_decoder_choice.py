"""Each head names decoders that exist, that it can serve, and that its YAML file also selects."""

from typing import Any

import pytest

from asr.build import check_needs, component, decoders_of, find_class
from asr.checkpoint.bundle import Bundle
from asr.checkpoint.load import decoder_settings
from asr.decode.choice import greedy_decoder, is_greedy, with_beam
from asr.settings.conf import default_settings, names
from tests.conftest import resolved

HEADS = names("head")


def decode(name: str) -> dict[str, Any]:
    return {"decode": default_settings("decode", name), "head": {"name": "the head"}}


@pytest.mark.parametrize("name", HEADS)
def test_a_head_serves_the_decoders_that_it_names(name: str) -> None:
    config = default_settings("head", name)
    head, decoders = component("head", config)(16, 4, 8), decoders_of(config)
    for decoder in (*decoders.greedy, *decoders.beam):
        settings = decode(decoder)
        check_needs(component("decode", settings["decode"]), head, settings)
        assert ("fusion" in settings["decode"] or "first" in settings["decode"]) == (decoder in decoders.beam)


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
    ("head", "own", "expected"), [("tdt", "tdt_greedy", "tdt_beam"), ("tdt", "greedy", "beam"), ("ctc", "beam", "beam")]
)
def test_options_of_beam_search_replace_the_models_greedy_decoder(head: str, own: str, expected: str) -> None:
    config = {"head": default_settings("head", head), "decode": default_settings("decode", own)}
    settings = decoder_settings(Bundle(config, {}, {}, ""), {"beam_size": 3})
    assert (settings["name"], settings["beam_size"]) == (expected, 3)

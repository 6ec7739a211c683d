"""End of a language model's run: write the bundle, and measure its perplexity per word."""

import json
import logging
from dataclasses import asdict
from typing import Any

from asr.build import load_token_model
from asr.checkpoint.language_model import write_language_model
from asr.checkpoint.load import BUNDLE, CHECKPOINTS
from asr.checkpoint.saved import intact_checkpoints, select
from asr.evaluation.text_perplexity import TextPerplexity, measure
from asr.run.language_model import PreparedText
from asr.run.language_model_settings import LanguageModelSettings
from asr.run.names import RESULTS
from asr.run.provenance import provenance
from asr.system.files import write_whole_text
from asr.text.printable import printable

_CARD = """# {name}

A neural language model over the tokens of a recogniser, trained by `python -m asr.train_lm`.

| | |
|---|---|
| network | {net} |
| recogniser | {recognizer} |
| trained on | {words:,} words |
| weights | {select} of the run: {checkpoints} |
{origin}
"""

logger = logging.getLogger(__name__)


def finish_language_model(
    settings: LanguageModelSettings, prepared: PreparedText, device: Any
) -> dict[str, TextPerplexity]:
    """Write the bundle and measure its perplexity on validation and test texts.

    Args:
        settings: settings of the run.
        prepared: the run's folder, texts and tokenizer.
        device: device on which the perplexity is computed.
    """
    run_dir = prepared.state.run_dir
    checkpoints = intact_checkpoints(run_dir / CHECKPOINTS)
    chosen = select(settings.checkpoint.select, checkpoints, settings.checkpoint.keep)
    origin = {name: line for name, line in asdict(provenance()).items() if name != "command"}
    card = _CARD.format(
        name=run_dir.name,
        net=settings.components["token_model"]["name"],
        recognizer=printable(settings.recognizer),
        words=int(prepared.train.sentences.num_words.sum()),
        select=settings.checkpoint.select,
        checkpoints=", ".join(checkpoint.path.stem for checkpoint in chosen),
        origin="".join(f"| {name} | {printable(line)} |\n" for name, line in origin.items()),
    )
    write_language_model(run_dir / BUNDLE, [checkpoint.path for checkpoint in chosen], card)
    logger.info("bundle written to %s", run_dir / BUNDLE)
    model: Any = load_token_model(str(run_dir / BUNDLE), prepared.tokenizer, "run_dir")
    texts = {"valid": prepared.valid, **prepared.tests}
    results = {}
    for name, text in texts.items():
        logger.info("measuring the bundle on %s", name)
        results[name] = measure(model.to(device), text, settings.text.bounds, device)
        logger.info("%s: %s", name, results[name].summary())
    content = {name: result.as_dict() for name, result in results.items()}
    write_whole_text(run_dir / RESULTS, json.dumps(content, indent=2) + "\n")
    return results

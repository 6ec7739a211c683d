"""python -m recipes.equal_time.trial [overrides]: time optimizer steps of the processor, as asr.train would take them.

Prints, as JSON, the seconds of the processor and the seconds of audio of a step, and the number of parameters.
"""

import json
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn

from asr import build
from asr.data.batch import collate
from asr.data.corpus import prepare_if_absent, read_corpus
from asr.data.dataset import SpeechDataset
from asr.data.epoch_plan import EpochSampler, PlanSettings, TrainingSet
from asr.data.position import start_of_epoch
from asr.run.folder import fitted_front_end
from asr.run.initialization import Initialization
from asr.text.normalize import get_normalizer
from asr.training.hydra_command import experiment_command

EPOCH = 1  # the one before may be sorted: its first batches are the shortest
WARM_UP_STEPS = 3
MIN_STEPS = 10
MIN_SECONDS = 12.0


def trial(config: dict[str, Any]) -> None:
    """Take steps on the batches of an epoch, from the resolved config of a training."""
    torch.set_num_threads(config["num_threads"])
    torch.manual_seed(config["seed"])
    prepare_if_absent(config["corpus"])
    corpus = read_corpus(config["corpus"], get_normalizer(config["normalizer"]))
    start = Initialization.of(config)
    tokenizer, features = fitted_front_end(config, corpus, Path(config["run_dir"]), False, start)
    model = build.build_model(config, tokenizer, features).train()
    augmentation = build.build_augmentation(config, features.sample_rate)
    settings = PlanSettings.of(config["data"])
    speed, added = augmentation.speed, augmentation.max_added_seconds
    data = TrainingSet(corpus.train, features, model.reference, speed, config["seed"], settings, added)
    dataset = SpeechDataset(data.utterances, data.features, data.reference, augmentation, data.seed)
    optimizer = build.build_optimizer(config, model.named_parameters())
    seconds, audio, steps = 0.0, 0.0, 0
    for number, items in enumerate(EpochSampler(data.epoch(start_of_epoch(EPOCH, 1)), rank=0)):
        begun = time.process_time()
        batch = collate([dataset[item] for item in items])
        encoded = model(batch.features, batch.feature_lengths)
        model.head.losses(encoded, batch.tokens, batch.token_lengths)["loss"].mean().backward()
        nn.utils.clip_grad_norm_(model.parameters(), config["trainer"]["gradient_clip_val"])
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if number >= WARM_UP_STEPS:
            seconds, steps = seconds + time.process_time() - begun, steps + 1
            audio += sum(data.utterances[item.position].duration for item in items)
        if steps >= MIN_STEPS and seconds >= MIN_SECONDS:
            break
    parameters = sum(parameter.numel() for parameter in model.parameters())
    print(json.dumps({"seconds": seconds / steps, "audio": audio / steps, "parameters": parameters}))


main = experiment_command(trial)

if __name__ == "__main__":
    main()

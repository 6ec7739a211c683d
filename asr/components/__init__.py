"""What a YAML file chooses: `conf/<group>/*.yaml` configure the class in `asr/components/<group>/<name>.py`.

A component may import the contract, base, and the folder of its own group; token_model and program also import encoder
and head. Core finds components by group and name, here or in a plugin, which has the same folders. Without this floor
every component that a model needs must come from a plugin.

    augment/      changes of a training utterance: speed, waveform (S,), features (T, F)
    features/     waveform (S,) to features (T, F); normalize/ is their last step, batched/ computes a whole batch
    tokenizer/    text to tokens, and back
    encoder/      features to encoder_out (B, T', D); subsampling/ has front-ends, block/ the blocks of Conformers and
                  Transformers with the parts of blocks in folders, cell/ recurrent layers
    prompt/       encoder_out and a label of the utterance, such as its language, to encoder_out
    head/         encoder_out to losses and log_probs; predictor/ has the prediction networks of transducers,
                  residual/ the connections of the attention decoder
    decode/       encoder_out to hypotheses: greedy and beam searches; fusion/ has language models, the lexicon and
                  hotwords in a beam search, greedy_guides.py hotwords in a greedy one
    adapter/      small trained weights beside frozen ones (LoRA)
    optimizer/    parameters to an optimizer
    schedule/     the learning rate as a function of the step
    logger/       services that receive the metrics of a run
    token_model/  neural language models over tokens, built from the encoder's layers
    program/      encoders and heads that ONNX Runtime computes: an exported model
"""

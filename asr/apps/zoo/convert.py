"""The readers and writers of the zoo, for asr.convert and `asr.export --to`."""

from asr.apps.convert.huggingface.files import of_transformers
from asr.apps.convert.packages import Reader, Writer
from asr.apps.zoo import granite_speech5, icefall, lasr, wav2vec2, wav2vec2_bert

MODELS = (wav2vec2_bert, granite_speech5, lasr)
READERS = [
    *(of_transformers(model.MODEL, model.read) for model in MODELS),
    of_transformers(wav2vec2.MODEL, wav2vec2.read_wav2vec2),
    of_transformers(wav2vec2.HUBERT, wav2vec2.read_hubert),
    Reader(icefall.MODEL, icefall.is_checkpoint, icefall.read, uses=("tokenizer", "average")),
]
WRITERS = [
    *(Writer(model.MODEL, model.fits, model.write) for model in (*MODELS, wav2vec2)),
    Writer(icefall.MODEL, icefall.fits, icefall.write, form="icefall"),
]

"""Published facts about LibriSpeech, and the folders of its subsets."""

from dataclasses import dataclass
from pathlib import Path

from asr.errors import InputError


@dataclass(frozen=True, slots=True)
class Subset:
    """Published facts about a subset, which a copy of the corpus is checked against.

    Args:
        num_utterances: number of utterances of the whole subset.
        hours: hours of speech, accurate to HOURS_TOLERANCE.
        archive_bytes: size of the archive `<subset>.tar.gz`.
        md5: checksum of the archive, as in OpenSLR's md5sum.txt.
        resource: number of the corpus at OpenSLR.
    """

    num_utterances: int
    hours: float
    archive_bytes: int
    md5: str
    resource: int = 12


MINI = 31  # OpenSLR's number of Mini LibriSpeech; dev-clean-2 and train-clean-5 share no speakers

# The hours are those of table 1 of the paper. The archives have 5.39, 5.12, 5.40, 5.34, 100.59, 363.61 and 496.86 h.
SUBSETS = {
    "dev-clean": Subset(2703, 5.4, 337926286, "42e2234ba48799c1f50f24a7926300a1"),
    "dev-other": Subset(2864, 5.3, 314305928, "c8d0bcc9cca99d4f8b62fcc847357931"),
    "test-clean": Subset(2620, 5.4, 346663984, "32fa31d27d2e1cad72775fee3f4849a9"),
    "test-other": Subset(2939, 5.1, 328757843, "fb5a50374b501bb3bac4815ee91d3135"),
    "train-clean-100": Subset(28539, 100.6, 6387309499, "2a93770f6d5c6c964bc36631d331a522"),
    "train-clean-360": Subset(104014, 363.6, 23049477885, "c0e676e450a7ff2f54aeade5171606fa"),
    "train-other-500": Subset(148688, 496.7, 30593501606, "d1a0fd59409feb2c614ce4d30c387708"),
    # Hours estimated from bytes, at 63 MB per hour. Utterances and bytes: kaldi, egs/mini_librispeech.
    "train-clean-5": Subset(1519, 5.3, 332954390, "5df7d4e78065366204ca6845bb08f490", MINI),
    "dev-clean-2": Subset(1089, 2.0, 126046265, "6d7ab67ac6a1d2c993d050e16d61080d", MINI),
}
HOURS_TOLERANCE = 0.3  # for test-other, the paper has 5.1 h and the archive 5.34 h


def corpus_root(corpus_dir: Path) -> Path:
    """Return the folder of the subsets: `corpus_dir/LibriSpeech` if it exists, otherwise `corpus_dir` itself."""
    nested = corpus_dir / "LibriSpeech"
    return nested if nested.is_dir() else corpus_dir


def check_subset_names(names: list[str]) -> list[str]:
    """Return the names without repetition.

    Raises:
        InputError: a name is a path or a hidden folder. Manifests are named after subsets, so a name must be a plain
            file name.
    """
    for name in names:
        if not name or name.startswith(".") or Path(name).name != name:
            raise InputError(f"--subsets takes names of folders in --corpus-dir, not paths; got {name!r}.")
    return list(dict.fromkeys(names))


def find_subsets(corpus_dir: Path, names: list[str]) -> list[Path]:
    """Return the folders of the named subsets in the given order; without names, the folders of all subsets.

    A folder is a subset if it has a published name, or contains a folder speaker/chapter/ with audio or a transcript.

    Raises:
        InputError: the corpus, a named subset, or any subset is missing.
    """
    if not corpus_dir.is_dir():
        raise InputError(
            f"--corpus-dir must be a folder that holds LibriSpeech; {corpus_dir} is not a folder. "
            "Give another folder, or download the corpus with --download."
        )
    root = corpus_root(corpus_dir)
    if not names:
        folders = [folder for folder in sorted(root.iterdir()) if _is_subset(folder)]
        if not folders:
            raise InputError(
                f"{root}: must hold subset folders (SUBSET/speaker/chapter/*.flac); there are none. "
                "Give another --corpus-dir, or fetch subsets with --download --subsets."
            )
        return folders
    missing = [name for name in names if not (root / name).is_dir()]
    if missing:
        raise InputError(
            f"{root}: must hold the folders named by --subsets; missing {', '.join(missing)}. "
            f"Fetch them with --download, or leave them out."
        )
    return [root / name for name in names]


def count_audio_files(folder: Path) -> int:
    """Return the number of FLAC files in the chapters of a subset."""
    return sum(1 for _ in folder.glob("*/*/*.flac"))


def _is_subset(folder: Path) -> bool:
    if folder.name.startswith(".") or not folder.is_dir():
        return False
    patterns = ("*/*/*.flac", "*/*/*.trans.txt")
    return folder.name in SUBSETS or any(next(folder.glob(pattern), None) is not None for pattern in patterns)

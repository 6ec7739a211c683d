"""Settings reference: one table per section and component.

A table lists the permitted values, the default and the meaning of each setting. The meanings are taken from docstrings
and from the comments in conf/.
"""

import inspect
import re
from collections import Counter
from collections.abc import Mapping
from typing import Any

import yaml

from asr.apps.language_models.objective.language_model import LanguageModelSettings
from asr.base.settings.conf import CONF, default_settings, files, names
from asr.base.settings.plugins import OURS, homes
from asr.base.settings.read import Entry, Kind, entries
from asr.base.settings.rule import MAX_NUMBER, one_of
from asr.base.text.normalize import NORMALIZERS
from asr.core import build
from asr.core.run.settings import RunSettings
from docs.pages.markdown import table

FOLDER = "reference/settings"
PLAIN_GROUPS = {  # groups of overrides, and a description of each; all other groups in conf/ contain components
    "corpus": "Manifests of a corpus: audio and text. Keys and rules: [asr.train](index.md#corpus).",
    "experiment": "Overrides of all settings, for a corpus or a purpose: `experiment=finetune`.",
    "trainer": "Devices, precision and length of a training. Keys and rules: [asr.train](index.md#trainer).",
    "debug": "Overrides that find faults in minutes: `debug=overfit`.",
    "sweep": "How `--multirun` chooses its jobs, and where they run: `sweep=[optuna]`.",
}
END_OF_DOCUMENT = "...\n"  # YAML writes this after a value that is not a collection
HEADER = ["setting", "must be", "default", "meaning"]


def settings_pages() -> dict[str, str]:
    """Return the text of each page, keyed by its path in the site."""
    groups = sorted(folder.name for folder in CONF.iterdir() if folder.is_dir())
    pages = {
        "index": _run_page("train", RunSettings),
        "train_lm": _run_page("train_lm", LanguageModelSettings),
        **{group: _plain_page(group) if group in PLAIN_GROUPS else _component_page(group) for group in groups},
    }
    return {f"{FOLDER}/{name}.md": text for name, text in pages.items()}


def argument_docs(documented: object) -> dict[str, str]:
    """Return the description of each argument in the section `Args:` of a docstring."""
    _, _, listed = (inspect.getdoc(documented) or "").partition("Args:\n")
    found = re.findall(r"^ {4}(\w+): (.*(?:\n {8}.*)*)", listed.partition("\n\n")[0], re.MULTILINE)
    return {name: " ".join(text.split()) for name, text in found}


def comments(text: str) -> dict[str, str]:
    """Return the comment at the end of each setting's line in a YAML file, keyed by the dotted name of the setting.

    Keys of a mapping on one line, such as `ema: {decay: null}`, have the comment of that line.
    """
    lines, found = text.splitlines(), {}

    def collect(node: yaml.Node, prefix: str) -> None:
        if isinstance(node, yaml.MappingNode):
            for key, value in node.value:
                name, end = f"{prefix}{key.value}", value.end_mark
                collect(value, f"{name}.")
                is_on_line = end.column > 0  # a block ends at the start of the next line
                if is_on_line and (comment := re.search(r"\s# (.*)$", lines[end.line][end.column :])):
                    found[name] = comment[1]

    collect(yaml.compose(text), "")
    return found


def shown(value: object) -> str:
    """Return a value in YAML, formatted as code in Markdown."""
    text = yaml.safe_dump(value, default_flow_style=True, width=10_000, allow_unicode=True)
    return f"`{text.removesuffix(END_OF_DOCUMENT).strip()}`"


def _row(name: str, rule: str, default: str, meaning: str, comment: str) -> list[str]:
    """Return a row of a table; the comment of the YAML file follows the docstring on a line of its own."""
    rule = rule.replace(f" to {MAX_NUMBER:,}", "").replace(f", and at most {MAX_NUMBER:,}", "")
    meaning = re.sub(r"\bNone\b", "null", meaning)
    return [f"`{name}`", rule, default, "<br>".join(filter(None, [meaning, comment and f"*{comment}*"]))]


def _run_page(root: str, settings: type) -> str:
    """Return the page of conf/<root>.yaml: the choices of components, and the settings outside of components."""
    text = (CONF / f"{root}.yaml").read_text(encoding="utf-8")
    chosen = re.findall(r"^  - (\w+): (.*?)\s*(?:# (.*))?$", text, re.MULTILINE)
    pages = {group: f"{group}.md" if (CONF / group).is_dir() else "../../guide/extend.md" for group, _, _ in chosen}
    rows = [[f"[`{group}`]({pages[group]})", f"`{name}`", comment] for group, name, comment in chosen]
    values = yaml.safe_load(text)
    values["trainer"] = default_settings("trainer", "default") | values.get("trainer", {})
    notes = comments(text)
    trainer = comments((CONF / "trainer" / "default.yaml").read_text(encoding="utf-8"))
    notes |= {f"trainer.{key}": comment for key, comment in trainer.items()}
    if root == "train":
        values["corpus"] = default_settings("corpus", "mini")
        corpus = comments((CONF / "corpus" / "mini.yaml").read_text(encoding="utf-8"))
        notes |= {f"corpus.{key}": comment for key, comment in corpus.items()}
    sections = {"": list(_rows(settings, values, notes))}
    if "normalizer" in values:
        words = one_of(*NORMALIZERS).words
        sections[""].append(_row("normalizer", words, shown(values["normalizer"]), "", notes["normalizer"]))
    for entry in entries(settings):
        if entry.kind is Kind.SECTION:
            sections[entry.key] = list(_rows(entry.type, values[entry.key], notes, f"{entry.key}."))
    tables = [f"## {name or 'The run'}\n\n{table(HEADER, section)}" for name, section in sections.items()]
    return "\n".join(
        [
            f"# Settings of asr.{root}\n",
            f"`conf/{root}.yaml` has these defaults. Each can be changed on the command line: `trainer.max_epochs=10`, "
            "`'init.frozen=[encoder.*]'`; `null` is no value.\n",
            "## Components and groups\n",
            "An override chooses a file of the group: `encoder=transformer`.\n",
            table(["group", "default", "comment in the file"], rows),
            *tables,
        ]
    )


def _rows(settings: type, values: Mapping[str, Any], notes: Mapping[str, str], prefix: str = "") -> list[list[str]]:
    """Return a row for each setting of a dataclass and of the dataclasses inlined in it.

    Fields that are sections are left out, because each section has a table of its own.
    """
    documented = [argument_docs(cls) for cls in reversed(settings.__mro__)]  # the docstring of a base has its fields
    meanings = {name: text for each in documented for name, text in each.items()}
    rows: list[list[str]] = []
    for entry in entries(settings):
        if entry.kind is Kind.INLINE:
            rows += _rows(entry.type, values, notes, prefix)
        elif entry.rule is not None:
            name, meaning = f"{prefix}{entry.key}", meanings.get(entry.field, "")
            rows.append(_row(name, entry.rule.words, _default(entry, values), meaning, notes.get(name, "")))
    return rows


def _default(entry: Entry, values: Mapping[str, Any]) -> str:
    if entry.key not in values:
        return "not set"
    return "must be given" if values[entry.key] == "MUST_BE_GIVEN" else shown(values[entry.key])


def _plain_page(group: str) -> str:
    """Return the page of a group of overrides, which shows the contents of each of its files."""
    parts = [f"# {group}\n\n{PLAIN_GROUPS[group]}\n"]
    for path in sorted((CONF / group).glob("*.yaml")):
        parts.append(f"## {path.stem}\n\n```yaml\n{path.read_text(encoding='utf-8')}```\n")
    return "\n".join(parts)


def _component_page(group: str) -> str:
    """Return the page of a group of components: a section for each class, followed by the sections of its parts."""
    example = "augment=[noise,spec_augment]" if group == "augment" else f"{group}={names(group)[0]}"
    package = f"{OURS.of(group).package}.{group}".replace(".", "/")
    intro = f"A file of `conf/{group}/` configures a class in `{package}/`: `{example}`."
    parts = [f"# {group}\n\n{intro}\n"]
    parts_of = {path.relative_to(home.conf) for home in homes() for path in (home.conf / group).rglob("*/")}
    for mine in [group, *sorted(folder.as_posix() for folder in parts_of if folder.as_posix() != group)]:
        if mine != group:
            parts.append(f"## {mine}\n\nFiles of this part are chosen by an override: `{mine}={names(mine)[0]}`.\n")
        classes: dict[str, list[str]] = {}
        for name in names(mine):
            classes.setdefault(default_settings(mine, name).get("name", name), []).append(name)
        level = "##" if mine == group else "###"
        parts += [f"{level} {name}\n\n{_class_section(mine, name, files)}" for name, files in classes.items()]
    return "\n".join(parts)


def _class_section(group: str, name: str, chosen: list[str]) -> str:
    """Return the description of a class and the table of its settings.

    The table has the defaults in each YAML file that configures the class.
    """
    settings = {file: {"name": name, **default_settings(group, file)} for file in chosen}
    paths = {path.stem: path for path in files(group)}
    cls = build.find_class(group, name)
    rules, meanings = build.rules(cls), argument_docs(cls)
    description = re.split(r"\n *\n(?=Args:|Shapes:|Raises:|Attributes:)", inspect.getdoc(cls) or "")[0]
    notes = {file: comments(paths[file].read_text(encoding="utf-8")) for file in chosen}
    rows = []
    for key in (key for key in settings[chosen[0]] if key != "name"):
        rule = rules[key].words if key in rules else f"a component of `{group}/{key}`"
        default = _defaults({file: _part_or_value(settings[file][key]) for file in chosen})
        rows.append(_row(key, rule, default, meanings.get(key, ""), _comment(key, notes)))
    listed = "Files: " if len(chosen) > 1 else "File: "
    listed += ", ".join(f"`{paths[file].relative_to(CONF.parent).as_posix()}`" for file in chosen)
    listed += f". Class: `{cls.__module__}.{cls.__name__}`."
    return f"{description}\n\n{listed}\n\n{table(HEADER, rows) if rows else 'It has no settings.'}\n"


def _defaults(values: Mapping[str, str]) -> str:
    """Return a setting's most frequent default among several files, followed by each file with another default."""
    usual = Counter(values.values()).most_common(1)[0][0]
    others = [f"{file}: {value}" for file, value in values.items() if value != usual]
    return "<br>".join([usual, *others])


def _comment(key: str, notes: Mapping[str, Mapping[str, str]]) -> str:
    """Return the comments of several files on a setting.

    Unless all files have the same comment, each comment follows the names of its files.
    """
    files: dict[str, list[str]] = {}
    for file, by_key in notes.items():
        if key in by_key:
            files.setdefault(by_key[key], []).append(file)
    if len(files) == 1 and len(next(iter(files.values()))) == len(notes):
        return next(iter(files))
    return "; ".join(f"{', '.join(names)}: {comment}" for comment, names in files.items())


def _part_or_value(value: object) -> str:
    return f"`{value['name']}`" if isinstance(value, Mapping) and "name" in value else shown(value)

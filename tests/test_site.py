"""The page of asr.export --web in a real browser gives asr's texts and contacts no other host."""

import io
import json
import re
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

from tests.refusals import mentions, refused

pytest.importorskip("onnx", reason="the extra onnx is not installed")
pytest.importorskip("onnxscript", reason="the extra onnx is not installed")
pytest.importorskip("onnxruntime", reason="the extra onnx is not installed")

from asr.apps.export import browser_runtime as runtimes
from asr.apps.export.browser_runtime import Runtime, browser_runtime, registry
from asr.apps.export.program_weights import write
from asr.apps.export.programs import written_down
from asr.apps.export.site import ALWAYS, LARGE, prepare_site, write_site
from asr.base.onnx.names import FRONT_END, PROGRAM, WAVEFORM
from asr.convert import main as convert
from asr.core.checkpoint.bundle import Bundle
from asr.core.checkpoint.load import load_recognizer
from asr.core.recognition.recognizer import Recognizer
from asr.errors import InputError
from asr.export import main as export
from tests.browser import SIMULATED_MICROPHONE, Visit, launched, overflow, poor_contrasts, visit
from tests.conftest import SHARED
from tests.files import serving_files
from tests.listener import listener
from tests.nemo import AUDIO, MODEL, needs_model
from tests.tones import SAMPLE_RATE, speak

CONFIG = {"decode": {"name": "greedy"}, "normalizer": "basic"}
SAID = "abc ba deaf cab"
FAKE = Runtime(b"script", b"wasm", b"license")
PATIENCE = 120_000  # milliseconds, for operations that should take a few seconds


def bundle(card: str = "") -> Bundle:
    return Bundle(CONFIG, {}, {}, card)


def written(folder: Path, name: str = "tones", program: bytes = b"program", **others: Any) -> Path:
    """Write a page whose model need not work; return its folder."""
    given = {"runtime": FAKE, "examples": [], "card": ""} | others
    path = folder.with_name(f"{folder.name}.onnx")
    path.write_bytes(program)
    write_site(folder, name, bundle(given["card"]), listener(), {WAVEFORM: path}, given["runtime"], given["examples"])
    path.unlink()
    return folder


# ---- the folder


def test_the_folder_has_exactly_the_files_of_the_page_and_the_page_states_the_download_size(tmp_path: Path) -> None:
    (tmp_path / "a.flac").write_bytes(b"audio")
    program, runtime = bytes(5_000_000), Runtime(b"script", bytes(2_000_000), b"license")
    site = written(tmp_path / "site", program=program, runtime=runtime, examples=[tmp_path / "a.flac"], card="# A\n")
    assert {file.name for file in site.iterdir()} == {*ALWAYS, "model-card.txt", "example-0.flac"}
    page = (site / "index.html").read_text(encoding="utf-8")
    assert "starts a download of 7 MB; afterwards" in page
    assert "http://" not in page.replace("http://www.w3.org", "")
    assert "https://" not in page
    assert "Record</button>" in page
    assert "Captions" not in page  # captions need a server


def test_malicious_names_are_displayed_as_text(tmp_path: Path) -> None:
    hostile = "</script><script>alert(1)<script>\"'"
    (tmp_path / "<b>.wav").write_bytes(b"audio")
    page = (written(tmp_path / "site", hostile, examples=[tmp_path / "<b>.wav"]) / "index.html").read_text()
    assert "<script>alert" not in page
    assert "<b>" not in page
    assert page.count("<script") == page.count("</script>")


def test_the_version_changes_if_and_only_if_the_content_changes(tmp_path: Path) -> None:
    def version(folder: str, **others: Any) -> str:
        [version_hash] = re.findall(
            r'VERSION = "(\w+)"', (written(tmp_path / folder, **others) / "service-worker.js").read_text()
        )
        assert f'"version":"{version_hash}"' in (tmp_path / folder / "index.html").read_text()
        return version_hash

    first = version("a")
    assert version("b") == first
    assert len({first, version("c", program=b"another"), version("d", name="another"), version("e", card="c")}) == 4


def test_an_older_page_is_replaced_as_a_whole_and_other_files_are_not_changed(tmp_path: Path) -> None:
    (tmp_path / "a.wav").write_bytes(b"audio")
    site = written(tmp_path / "site", examples=[tmp_path / "a.wav"] * 2, card="card")
    assert (site / "example-1.wav").is_file()
    written(site)
    assert {file.name for file in site.iterdir()} == {*ALWAYS}
    (site / "thesis.txt").touch()
    with refused(InputError, "contains ... thesis.txt"):
        prepare_site(site, listener(), CONFIG, [], print)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"decode": {"name": "beam"}}, "greedy ... decode=beam ... --decode greedy"),
        (
            {"normalizer": "whisper_english"},
            "as_written ... basic",
        ),
    ],
)
def test_features_that_the_pages_script_does_not_support_are_refused(
    tmp_path: Path, config: dict[str, Any], message: str
) -> None:
    with refused(InputError, message):
        prepare_site(tmp_path / "site", listener(), CONFIG | config, [], print)


def test_the_decoder_of_the_ctc_head_is_not_advised_for_a_model_without_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recognizer = listener()
    monkeypatch.setattr(type(recognizer.model.head), "frame_head", None)
    with refused(InputError, "greedy ... decode=transducer_greedy", cure="CTC head"):
        prepare_site(tmp_path / "site", recognizer, CONFIG | {"decode": {"name": "transducer_greedy"}}, [], print)


def test_a_model_exported_as_several_onnx_files_is_refused_for_the_web_page(tmp_path: Path) -> None:
    names = ("encoder.onnx", "joiner.onnx")
    with refused(InputError, "encoder.onnx ... joiner.onnx"):
        write_site(tmp_path / "x", "x", bundle(), listener(), dict.fromkeys(names, tmp_path), FAKE, [])
    assert not (tmp_path / "x").exists()


def test_an_unreadable_example_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "notes.wav").write_text("not audio")
    with refused(InputError, "notes.wav ... libsndfile reads"):
        prepare_site(tmp_path / "site", listener(), CONFIG, [tmp_path / "notes.wav"], print)


# ---- the runtime of a page


@pytest.fixture
def published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that serves as the registry, with a tarball that has the expected hash; the cache is empty."""
    folder = tmp_path / "registry" / "onnxruntime-web" / "-"
    folder.mkdir(parents=True)
    with tarfile.open(folder / "onnxruntime-web-1.30.0.tgz", "w:gz") as archive:
        for name, content in ((runtimes.SCRIPT, b"script"), (runtimes.WASM, b"wasm"), ("package/other.js", b"no")):
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    tarball = folder / "onnxruntime-web-1.30.0.tgz"
    digest = runtimes.base64.b64encode(runtimes.hashlib.sha512(tarball.read_bytes()).digest()).decode()
    monkeypatch.setattr(runtimes, "SHA512", digest)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tarball


def use_registry(monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    monkeypatch.setenv("npm_config_registry", address)


def cached_names(tmp_path: Path) -> list[str]:
    return [file.name for file in (tmp_path / "cache").rglob("*") if file.is_file()]


def test_the_runtime_is_downloaded_once_and_includes_its_licence(
    published: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving_files(tmp_path / "registry") as address:
        use_registry(monkeypatch, address)
        runtime = browser_runtime(lambda step: None)
    assert (runtime.script, runtime.wasm) == (b"script", b"wasm")
    assert b"MIT License" in runtime.license
    assert b"Copyright (c) Microsoft Corporation" in runtime.license
    assert cached_names(tmp_path) == [published.name]
    assert browser_runtime(lambda step: None) == runtime, "no more requests: the registry no longer exists"


def test_damaged_files_in_the_cache_are_downloaded_again(
    published: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cache" / "asr").mkdir(parents=True)
    (tmp_path / "cache" / "asr" / published.name).write_bytes(published.read_bytes()[:-1])
    with serving_files(tmp_path / "registry") as address:
        use_registry(monkeypatch, address)
        assert browser_runtime(lambda step: None).wasm == b"wasm"
    assert (tmp_path / "cache" / "asr" / published.name).read_bytes() == published.read_bytes()


def test_a_file_that_differs_from_the_published_one_is_refused_and_deleted(
    published: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    published.write_bytes(b"something else")
    with serving_files(tmp_path / "registry") as address:
        use_registry(monkeypatch, address)
        with refused(InputError, "--web ... 14 ... sha512"):
            browser_runtime(lambda step: None)
    assert cached_names(tmp_path) == []


@pytest.mark.parametrize(
    ("served", "message"),
    [
        (
            True,
            "onnxruntime-web-1.30.0.tgz; status 404 ... NPM_CONFIG_REGISTRY",
        ),
        (False, "--web ... onnxruntime-web 1.30.0"),
    ],
)
def test_without_network_or_package_the_error_says_what_is_missing_and_how_to_get_it(
    published: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, served: bool, message: str
) -> None:
    published.unlink()
    with serving_files(tmp_path / "registry") as address:
        use_registry(monkeypatch, address)
        if served:
            with refused(InputError, message, cure="onnxruntime-web-1.30.0.tgz"):
                browser_runtime(lambda step: None)
    if not served:
        with refused(InputError, message, cure="onnxruntime-web-1.30.0.tgz"):
            browser_runtime(lambda step: None)
    assert cached_names(tmp_path) == []


def test_the_registry_is_taken_from_the_environment_npm_or_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in runtimes.REGISTRY_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(runtimes, "_of_npm", lambda: None)
    assert registry() == runtimes.NPM
    monkeypatch.setattr(runtimes, "_of_npm", lambda: "https://npm.example/a")
    assert registry() == "https://npm.example/a/"
    monkeypatch.setenv("NPM_CONFIG_REGISTRY", "https://other.example/")
    assert registry() == "https://other.example/"
    monkeypatch.setenv("npm_config_registry", "file:///etc")
    with refused(InputError, "https:// ... http://", got="file:///etc"):
        registry()


# ---- the page


@pytest.fixture(scope="module", params=[pytest.param("", marks=pytest.mark.slow)])
def runtime() -> Runtime:
    try:
        return browser_runtime(lambda step: None)
    except InputError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def recordings(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Recordings of tones; the name of each states the property that it tests."""
    folder = tmp_path_factory.mktemp("recordings")
    noise = np.random.default_rng(0)
    sounds = {
        "plain": (speak(SAID), SAMPLE_RATE),
        "long": (speak(" ".join([SAID, "fed", "  a   "] * 24)), SAMPLE_RATE),
        "silent": (np.zeros(SAMPLE_RATE // 5, dtype=np.float32), SAMPLE_RATE),
        "stereo": (np.stack([speak(SAID), 0.5 * speak(SAID)], axis=1), SAMPLE_RATE),
        "of another rate": (np.repeat(speak(SAID), 3), 3 * SAMPLE_RATE),
    }
    for name, (waveform, rate) in sounds.items():
        waveform = waveform + 0.001 * noise.standard_normal(waveform.shape).astype(np.float32)
        soundfile.write(folder / f"{name}.flac", waveform, rate)
    return {name: folder / f"{name}.flac" for name in sounds}


@pytest.fixture(scope="module")
def recognizer() -> Recognizer:
    return listener()


@pytest.fixture(scope="module")
def site(
    runtime: Runtime, recognizer: Recognizer, recordings: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """The page of a net that recognises tones."""
    from asr.apps.export.program import joined

    programs = tmp_path_factory.mktemp("programs")
    parts = written_down(recognizer, programs, lambda step: None)
    files = write({WAVEFORM: joined(parts[FRONT_END], parts[PROGRAM])}, programs)
    folder = tmp_path_factory.mktemp("site") / "site"
    write_site(folder, "tones", bundle("# Tones\n"), recognizer, files, runtime, [recordings["plain"]])
    return folder


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    """A browser whose microphone beeps."""
    yield from launched(*SIMULATED_MICROPHONE)


@pytest.fixture(scope="module")
def address(site: Path) -> Iterator[str]:
    with serving_files(site) as address:
        yield address + "/"


@pytest.fixture(scope="module")
def opened(chromium: Any, address: str) -> Iterator[Visit]:
    """The opened page; at the end the console must have no errors, and no other host may have been requested."""
    seen = visit(chromium, address)
    yield seen
    seen.page.context.close()
    assert seen.complaints == []
    assert [request for request in seen.requests if not request.startswith((address, "blob:", "data:"))] == []


def outcome(page: Any) -> str:
    """Wait until a transcript or an error is displayed, and return it."""
    page.wait_for_selector("#result:not([hidden]), #error:not([hidden])", timeout=PATIENCE)
    shown = page.locator("#error") if page.locator("#error").is_visible() else page.locator("#text")
    return " ".join(shown.inner_text().split())


def answer(page: Any) -> dict[str, Any]:
    """Return the JSON that the page offers for download."""
    with page.expect_download() as download:
        page.get_by_role("link", name="Download JSON").click()
    content: dict[str, Any] = json.loads(Path(download.value.path()).read_text())
    return content


def assert_same(actual: dict[str, Any], wanted: dict[str, Any]) -> None:
    """Compare texts and times exactly, and confidences with a tolerance, because two runtimes differ slightly."""
    assert actual["text"] == wanted["text"]
    assert actual["duration"] == wanted["duration"]
    assert [(word["text"], word["start"], word["end"]) for word in actual["words"]] == [
        (word["text"], word["start"], word["end"]) for word in wanted["words"]
    ]
    for word, other in zip(actual["words"], wanted["words"], strict=True):
        assert word["confidence"] == pytest.approx(other["confidence"], abs=2e-3)


@pytest.mark.parametrize("name", ["plain", "long", "silent", "stereo", "of another rate"])
def test_a_file_gives_the_words_that_asr_recognises(
    opened: Visit, recognizer: Recognizer, recordings: dict[str, Path], name: str
) -> None:
    opened.page.set_input_files("#file", recordings[name])
    text = outcome(opened.page)
    [wanted] = recognizer.transcribe([recordings[name]], sample_rate=SAMPLE_RATE)
    if name == "silent":
        assert (text, wanted.text) == ("No words were recognised.", "")
        return
    assert text == wanted.text
    assert len(text.split()) >= 4
    assert len(opened.page.workers) == 1, "the net runs in another thread than the page"
    actual = answer(opened.page)
    assert actual.pop("id") == recordings[name].name
    assert actual.keys() == wanted.as_dict().keys()
    if name == "long":
        assert wanted.duration > 60
    if name != "of another rate":
        assert_same(actual, wanted.as_dict())


def test_after_the_first_visit_the_page_needs_no_network(chromium: Any, site: Path) -> None:
    with serving_files(site) as address:
        seen = visit(chromium, address + "/")
        seen.page.get_by_role("button", name="Download it now").click()
        seen.page.get_by_text("The model is stored in this browser: no network is needed.").wait_for(timeout=PATIENCE)
        assert seen.page.get_by_role("button", name="Download it now").is_hidden()
        seen.page.evaluate("navigator.serviceWorker.ready.then(() => true)")
    seen.page.reload()
    seen.page.get_by_role("button", name="Example").click()
    assert outcome(seen.page) == SAID
    seen.page.context.close()


def test_the_microphone_is_transcribed(opened: Visit) -> None:
    opened.page.get_by_role("button", name="Record").click()
    opened.page.get_by_role("button", name=re.compile(r"Stop \([1-9]")).click()
    outcome(opened.page)
    assert re.match(r"microphone\.wav: \d+\.\d s", opened.page.locator("#summary").inner_text())


def test_a_failure_to_recognise_a_file_is_explained_and_the_next_file_is_accepted(
    opened: Visit, recordings: dict[str, Path], tmp_path: Path
) -> None:
    (tmp_path / "notes.wav").write_text("not audio")
    opened.page.set_input_files("#file", tmp_path / "notes.wav")
    assert re.match(r"notes\.wav: .*browser", outcome(opened.page))
    soundfile.write(tmp_path / "lecture.wav", np.zeros(1900 * 8000, dtype=np.float32), 8000, subtype="PCM_U8")
    opened.page.set_input_files("#file", tmp_path / "lecture.wav")
    assert re.match(r"lecture\.wav: .*\b30 minutes", outcome(opened.page))
    opened.page.set_input_files("#file", recordings["plain"])
    assert outcome(opened.page) == SAID


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("onnxruntime.wasm", "onnxruntime.wasm ... folder ... 404"),
        (WAVEFORM, "model-waveform.onnx ... folder ... 404"),
        ("onnxruntime.js", "onnxruntime.js ... intact"),
        ("recognizer.js", "recognizer.js ... intact"),
    ],
)
def test_a_file_missing_on_the_server_is_named(
    chromium: Any, site: Path, tmp_path: Path, name: str, message: str
) -> None:
    for file in site.iterdir():
        if file.name != name:
            (tmp_path / file.name).symlink_to(file)
    with serving_files(tmp_path) as address:
        seen = visit(chromium, address + "/")
        seen.page.get_by_role("button", name="Download it now").click()
        assert mentions(outcome(seen.page), message)
        seen.page.context.close()


def test_an_incomplete_file_on_the_server_is_named(chromium: Any, site: Path, tmp_path: Path) -> None:
    for file in site.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes()[: 1000 if file.name == WAVEFORM else None])
    with serving_files(tmp_path) as address:
        seen = visit(chromium, address + "/")
        seen.page.get_by_role("button", name="Example").click()
        size = (site / WAVEFORM).stat().st_size
        assert mentions(outcome(seen.page), f"model-waveform.onnx ... {size} bytes ... 1000")
        seen.page.context.close()


def test_the_download_can_be_cancelled_and_restarted(chromium: Any, address: str) -> None:
    context = chromium.new_context(service_workers="block")
    page = context.new_page()
    page.route("**/model-waveform.onnx*", lambda route: None)  # the answer never arrives
    page.goto(address)
    page.get_by_role("button", name="Example").click()
    page.get_by_text("Downloading the model (").wait_for()
    page.get_by_role("button", name="Cancel").click()
    assert outcome(page) == "plain.flac: cancelled."
    page.unroute("**/model-waveform.onnx*")
    page.get_by_role("button", name="Example").click()
    page.wait_for_selector("#result:not([hidden])", timeout=PATIENCE)
    assert outcome(page) == SAID
    context.close()


def test_the_page_opened_as_a_file_explains_how_to_serve_it(chromium: Any, site: Path) -> None:
    seen = visit(chromium, site / "index.html")
    assert "Run python -m http.server in its folder, and open localhost:8000" in outcome(seen.page)
    assert seen.page.get_by_role("button", name="Record").is_hidden()
    seen.page.context.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
def test_the_page_is_readable_on_phone_and_desktop(chromium: Any, address: str, width: int, scheme: str) -> None:
    seen = visit(chromium, address, width, 800, scheme)
    seen.page.emulate_media(reduced_motion="reduce")  # colours cannot be measured during a transition
    assert poor_contrasts(seen.page) == []
    assert overflow(seen.page) <= 0
    seen.page.get_by_role("button", name="Example").click()
    assert outcome(seen.page) == SAID
    seen.page.locator("#words summary").click()
    assert poor_contrasts(seen.page) == []
    assert overflow(seen.page) <= 0
    seen.page.context.close()


# ---- the command


@needs_model
@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_real_speech_gives_the_same_words_in_the_browser(
    runtime: Runtime, chromium: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert convert([str(MODEL), "-o", str(tmp_path / "english" / "bundle")]) == 0
    files = [SHARED / "LibriSpeech" / folder / f"{name}.flac" for name, folder in AUDIO.items()]
    site = tmp_path / "a site"
    command = [str(tmp_path / "english" / "bundle"), "--web", "-o", str(site), "--example", str(files[0])]
    assert export(command) == 0
    printed = capsys.readouterr().out
    size = round(sum((site / name).stat().st_size for name in LARGE) / 1e6)
    assert f"{site}: a page; a browser downloads {size} MB before the first recognition." in printed
    assert f"python -m http.server --directory '{site}'" in printed
    together = np.concatenate([soundfile.read(file, dtype="float32")[0] for file in files])
    soundfile.write(tmp_path / "long.flac", np.tile(together, 3), SAMPLE_RATE)
    recognizer = load_recognizer(tmp_path / "english" / "bundle")
    with serving_files(site) as address:
        seen = visit(chromium, address + "/")
        assert "runs the model english" in seen.page.locator("header").inner_text()
        for file in [*files, tmp_path / "long.flac"]:
            seen.page.set_input_files("#file", file)
            outcome(seen.page)
            [wanted] = recognizer.transcribe([file])
            assert len(wanted.words) >= 5
            assert_same({**answer(seen.page)}, wanted.as_dict())
        assert seen.complaints == []
        seen.page.context.close()


def test_examples_are_only_accepted_for_a_page(tmp_path: Path) -> None:
    with refused(InputError, "--example ... --web"):
        export(["a model", "-o", str(tmp_path / "x"), "--example", "a.wav"])

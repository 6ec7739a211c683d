"""The form of POST /v1/audio/transcriptions: OpenAI's fields, and the values that this server supports.

*Source*: OpenAI's API reference, "Create transcription". A value that would have no effect is refused, so that clients
notice that it is not supported.
"""

from collections.abc import Callable, Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from asr.apps.serve.hotwords import LISTS as HOTWORD_LISTS
from asr.apps.serve.hotwords import NAMES, HotwordRequest, ServedHotwords, phrases_of_prompt, read_hotwords
from asr.apps.serve.problems import INVALID, UNSUPPORTED, UnusableError, shown_text
from asr.apps.serve.schema import UPLOADED
from asr.apps.serve.upload import FIELD, Fields, by_name

Granularity = Literal["word", "segment"]
# Maps pydantic's error types to OpenAI's error codes.
CODES = {"missing": "missing_required_parameter", "extra_forbidden": "unknown_parameter"}
PROMPT_MUST = (
    "prompt must be empty, since this model takes no text beside the audio; got {}. "
    "To favour words, send them as hotwords, or start the server with --prompt-hotwords."
)


class TranscriptionForm(BaseModel):
    """The fields besides the recording; other fields are refused, so that misspelt options are noticed."""

    model_config = ConfigDict(extra="forbid")
    model: str = Field(description="name of the model, from GET /v1/models")
    response_format: Literal["json", "text", "srt", "verbose_json", "vtt"] = Field(
        default="json", description="must be json with stream=true"
    )
    language: str | None = Field(
        default=None, description="one of the languages of the model's prompt, or else the server's --language"
    )
    prompt: str = Field(
        default="", description="must be empty, unless the server takes hotwords from it (--prompt-hotwords)"
    )
    temperature: float = Field(
        default=0.0, description="must be 0: the search is deterministic", json_schema_extra={"enum": [0]}
    )
    stream: bool = Field(default=False, description="answer with server-sent events")
    timestamp_granularities: Annotated[list[Granularity], Field(alias="timestamp_granularities[]")] = Field(
        default=["segment"], description="only for verbose_json"
    )
    include: Annotated[list[Literal["logprobs"]], Field(alias="include[]")] = Field(
        default=[], description="only for json: the logarithm of each word's confidence"
    )


LISTS = {field.alias for field in TranscriptionForm.model_fields.values() if field.alias}
Forms = tuple[TranscriptionForm, HotwordRequest]


def form_reader(model: str, languages: Sequence[str], prompt_hotwords: bool) -> Callable[[Fields], Forms]:
    """Return a function that reads the fields of a form.

    Args:
        model: name of the served model.
        languages: languages that a form may name.
        prompt_hotwords: whether the field `prompt` contains hotwords.
    """

    def read(fields: Fields) -> Forms:
        values = by_name(fields, LISTS | HOTWORD_LISTS)
        hotwords = read_hotwords(values)
        try:
            form = TranscriptionForm.model_validate({name: values[name] for name in values if name not in NAMES})
        except ValidationError as error:
            raise _unusable(error) from None
        check_model(form.model, model)
        _check_language(form.language, languages)
        if prompt_hotwords:
            own = [*hotwords.hotwords, *phrases_of_prompt(form.prompt)]
            hotwords, form = hotwords.model_copy(update={"hotwords": own}), form.model_copy(update={"prompt": ""})
        _check_values(form, {name for name, _ in fields})
        return form, hotwords

    return read


def form_body(model: str, languages: Sequence[str], hotwords: ServedHotwords) -> dict[str, Any]:
    """Describe the body for OpenAPI; FastAPI would read a declared body before the limits are checked."""
    schema = TranscriptionForm.model_json_schema(by_alias=True)
    properties = schema["properties"]
    properties["model"]["enum"] = [model]
    if not languages:
        del properties["language"]
    else:
        properties["language"] = {"type": "string", "enum": [*languages], "description": "language of the recording"}
    if not hotwords.in_prompt:
        properties["prompt"]["maxLength"] = 0
    schema["properties"] = {FIELD: UPLOADED, **properties, **hotwords.properties()}
    schema["required"] = [FIELD, *schema["required"]]
    return {"required": True, "content": {"multipart/form-data": {"schema": schema}}}


def _unusable(error: ValidationError) -> UnusableError:
    """Describe the first invalid field."""
    first = error.errors()[0]
    name = str(first["loc"][0])
    code = CODES.get(first["type"], INVALID)
    if first["type"] == "missing":
        line = f"{name} must be given; GET /v1/models returns the name of the model."
    elif first["type"] == "extra_forbidden":
        known = ", ".join([*(field.alias or key for key, field in TranscriptionForm.model_fields.items()), *NAMES])
        line = f"the form may hold {FIELD}, {known}; got {shown_text(name)}."
    else:
        message = first["msg"].removeprefix("Input should be ")
        line = f"{name} must be {message}; got {shown_text(str(first['input']))}."
    return UnusableError(422, line, param=name, code=code)


def check_model(name: str, served: str) -> None:
    """Check the name of a model.

    Raises:
        UnusableError: the name is not the name of the served model.
    """
    if name != served:
        must = f"model must be {shown_text(served)}, the name of this server's model; got {shown_text(name)}"
        line = f"{must}. Send this name, or start the server with --model-name."
        raise UnusableError(404, line, param="model", code="model_not_found")


def _check_language(language: str | None, languages: Sequence[str]) -> None:
    if language is None or language in languages:
        return
    if not languages:
        line = "language must be left out, since this server was not started with --language"
    else:
        line = f"language must be {' or '.join(languages)}, as this model has it"
    raise UnusableError(422, f"{line}; got {shown_text(language)}.", param="language", code=UNSUPPORTED)


def _check_values(form: TranscriptionForm, given: set[str]) -> None:
    """Check values that depend on the server's options or on other fields."""
    kind = form.response_format
    if form.prompt.strip():
        raise UnusableError(422, PROMPT_MUST.format(shown_text(form.prompt)), param="prompt", code=UNSUPPORTED)
    if form.temperature != 0:
        line = f"temperature must be 0, since the search is deterministic; got {form.temperature:g}."
        raise UnusableError(422, line, param="temperature", code=UNSUPPORTED)
    if form.stream and kind != "json":
        line = f"response_format must be json with stream; got {kind}."
        raise UnusableError(422, line, param="response_format", code=UNSUPPORTED)
    for name, needed in (("timestamp_granularities[]", "verbose_json"), ("include[]", "json")):
        if name in given and kind != needed:
            line = f"{name} must go with response_format={needed}; got {kind}."
            raise UnusableError(422, line, param=name, code=INVALID)

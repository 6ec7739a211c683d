"""The server: a web page, HTTP endpoints (asr's own and OpenAI's), a WebSocket for live speech, metrics.

Beside it, live captions in a terminal.

It may import base, components, core and apps/web, but no other app. asr.serve and `asr.transcribe --stream` need
it. Without it, Python programs recognise files by `asr.load_recognizer` and live speech by `asr.Stream`.
"""

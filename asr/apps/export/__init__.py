"""Export of models for other programs: ONNX files, a page that recognises speech in the browser, a folder with a card.

It may import base, components, core and apps/web, but no other app. Only asr.export needs it. Other commands read
exported models without it, by asr/components/program.
"""

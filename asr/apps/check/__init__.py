"""What every component must do: padding rule, gradients, losses, transcripts, draws, settings that match the YAML file.

It may import base, components, core and apps/web, but no other app. asr.check examines the package of a plugin with
these functions, and the tests examine asr's own components. No other command needs it.
"""

"""From YAML specs to DVC pipelines and comparison tables. Nothing here computes a gradient or imports torch."""

from pflcore.sources import note

note(__name__)

"""From YAML specs to DVC pipelines and comparison tables. Nothing here computes a gradient or imports torch."""

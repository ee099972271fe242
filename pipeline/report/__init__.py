"""Reports: a resolved table and the artifacts of its runs become Markdown, LaTeX, HTML, CSV, Parquet and SVG.

The only entry point is :func:`pipeline.report.pages.build.build_report`. What is made depends on nothing but its
inputs, so that the same inputs give the same bytes.
"""

"""Reports: a resolved table and the artifacts of its runs become Markdown, LaTeX, HTML, CSV, Parquet, SVG and PNG."""

"""What tests share: small projects, miniature files of datasets, hand-made artifacts, processes that are killed."""

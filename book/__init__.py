"""The site of the documentation: what `mkdocs.yml` calls to make its pages. Not part of the package."""

"""Generated tables of the pages in docs/; `tools.render_docs` lists and writes them."""

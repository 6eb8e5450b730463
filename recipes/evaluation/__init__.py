"""Signal probing, base against trained, and the reports: what `scripts/eval.py` calls.

A response on its way to its row in the report: `vllm_engine` or `openai_server` generates it, `cache` keeps it,
`evaluate` reads it, `scoring` scores it once with the reward file (`recipes.data.rewards`), `metrics` adds it up,
`probe` or `comparison` judges the sums, and `samples`, `figures`, `report` and its template show it.
"""

"""Signal probing, base against trained, and the reports: what `scripts/eval.py` calls.

`vllm_engine` or `openai_server` generates the responses, and `cache` stores them. `evaluate` runs the rest: `scoring`
scores each response with the reward file, `recipes.responses.measures` averages the scores, `verdicts` judges the
averages, and `report` shows them.
"""

"""The command line of the comparison."""


def test_the_table_is_written_as_markdown_and_check_fails_where_a_reason_is_missing(script, tmp_path):
    call, page, recipe = script("compare_configs"), tmp_path / "deep" / "page.md", tmp_path / "toy.yaml"
    done = call("countdown", "--against", "verl:8b", "--output", page, "--check")
    assert done.exit_code == 0, done.output
    assert "| `data.rollout_batch_size` | `64` | `1024` | task |" in page.read_text(encoding="utf-8")
    recipe.write_text(
        "data: {train_files: artifacts/a.parquet, val_files: artifacts/b.parquet, rollout_batch_size: 256}\n"
        "worker: {actor: {model: {model_path: org/model}}}\n",
        encoding="utf-8",
    )
    assert call(recipe, "--check").exit_code == 2

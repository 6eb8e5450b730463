"""The comparison with TRL: what is timed, and what is printed where TRL is missing."""

import pytest

from recipes.benchmarks import against_trl


def test_times_from_the_command_to_the_first_step_and_of_later_steps():
    assert against_trl.timing(20.0, [5.0, 2.0, 3.0, 9.0]) == against_trl.Timing(15.0, 20.0, 3.0)
    recipe = against_trl.workload()
    assert recipe.data.rollout_batch_size * recipe.worker.rollout.n == 64
    assert recipe.data.max_response_length == 64


def test_a_missing_trl_is_an_error_with_the_command_that_installs_it(tmp_path, capsys):
    with pytest.raises(SystemExit):
        against_trl.command(trl_folder=tmp_path)
    assert f"pip install --no-deps --target {tmp_path} trl" in capsys.readouterr().err

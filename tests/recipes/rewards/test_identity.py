"""The identity of a reward: its files and those that it names, wherever it lies."""

import pytest

from recipes.config.rewards import WEIGHTED
from recipes.rewards.identity import reward_digest, reward_files

OPENED = [
    ("my words.txt", "open('my words.txt')"),
    ("words.txt", "open('./words.txt')"),
    ("words.txt", "open('{folder}/words.txt')"),
    ("words.txt", "open(os.path.dirname(__file__) + '/words.txt')"),
    ("words.txt", "open(f'{{Path(__file__).parent}}/words.txt')"),
    ("vocab", "open('vocab')"),
    ("sub/words.txt", "open(Path(__file__).parent / 'sub' / 'words.txt')"),
    ("../words.txt", "open('../words.txt')"),
    ("{outside}", "open('{outside}')"),
]


@pytest.mark.parametrize(("name", "source"), OPENED)
def test_a_file_that_a_reward_names_belongs_to_it(tmp_path, name, source):
    path, outside = tmp_path / "rewards" / "mine.py", tmp_path / "outside" / "words.txt"
    name, source = (text.format(folder=path.parent, outside=outside) for text in (name, source))
    for file in (path, outside, path.parent / name):
        file.parent.mkdir(exist_ok=True)
        file.write_text("one")
    path.write_text(source)
    first = reward_files(str(path), {}, "verl")
    assert first.keys() == {"mine.py", name}
    (path.parent / name).write_text("two")
    assert reward_files(str(path), {}, "verl")[name] != first[name]


def test_other_texts_of_a_reward_name_no_files(tmp_path):
    texts = ["", ".", "..", "../", "\0", "\ud83d", "long " * 999, "/etc/passwd", "score", "../rewards/mine.py"]
    path = tmp_path / "rewards" / "mine.py"
    path.parent.mkdir()
    path.write_text(f"TEXTS = {texts!r}")
    for other in ("__init__.py", "other.py"):
        path.with_name(other).write_text("")
    assert reward_files(str(path), {}, "verl").keys() == {"mine.py"}


def test_a_reward_that_lies_elsewhere_is_the_same_and_its_function_and_weights_count(tmp_path):
    digests = []
    for folder in (tmp_path / "here", tmp_path / "there"):
        folder.mkdir()
        (folder / "mine.py").write_text("def compute_score(): ...")
        path = str(folder / "mine.py")
        calls = [(path, {}), (f"{path}:compute_score", {}), (f"{path}:other", {}), (path, {"scale": 2})]
        calls += [(str(WEIGHTED), {"rewards": [path, f"{path}:other"], "weights": weights}) for weights in ([1], [2])]
        digests.append([reward_digest(*call, "verl") for call in calls])
    assert digests[0] == digests[1]
    assert digests[0][0] == digests[0][1], "the same function, named or not"
    assert len(set(digests[0])) == len(digests[0]) - 1

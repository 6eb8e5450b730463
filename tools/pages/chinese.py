"""The comparison with official examples in Chinese: values from the code, reasons in both languages."""

from __future__ import annotations

from recipes.drawing import markdown
from recipes.errors import RecipeError
from recipes.official import Row, Table, aligned, compare, examples, origins, row_cells

KINDS = {"task": "任务", "hardware": "硬件"}
REASONS = {
    "1,152 screenshots of our own page, 9 steps": "自己页面的 1,152 张截图，一轮 9 步",
    "288 screenshots, no deal shared with training": "288 张截图，与训练没有共同的发牌",
    "a row has one column for each engine": "每个引擎在数据行里各有一列",
    "screenshots are drawn as 560 x 1008 or the like and take 448 to 748 tokens "
    "(720 x 1280 would take 1,196 and never fit)": (
        "截图画成 560 x 1008 左右，占 448 到 748 个 token（720 x 1280 要 1,196 个，一定放不下）"
    ),
    "a short thought, and a digit: short limits save memory and the wait for the longest answer": (
        "一小段思考加一个数字：上限短，省显存，也不必等最长的回答"
    ),
    "a quarter of EasyR1's on 2 GPUs, so 640 responses and a step's metrics sooner": (
        "2 张 GPU，取 EasyR1 的四分之一：每步 640 个回答，更早看到一步的指标"
    ),
    "two batches for 288 screenshots, whose pixels stand in memory meanwhile": (
        "288 张截图分两批，像素在此期间占着内存"
    ),
    "rows for verl hold the finished chat messages; wrap the prompt where the data is made": (
        "给 verl 的行里已是完整的对话消息；要包装提示词，在制作数据时做"
    ),
    "two updates a step where EasyR1 makes four, so responses stay nearly the policy's own": (
        "每步更新两次，EasyR1 是四次，所以回答仍接近当前策略自己的"
    ),
    "the smaller of the official two, which 2 GPUs hold; MODEL_PATH takes the 7B model": (
        "官方两个里较小的，2 张 GPU 放得下；7B 用 MODEL_PATH 指定"
    ),
    "one screenshot a prompt": "每个提示词一张截图",
    "exactly one of 0, 1 and 2, not the first digit anywhere": "恰好是 0、1、2 之一，而不是随便哪里的第一个数字",
    "this repository": "本仓库",
    "stable, so that a run can be resumed": "固定不变，运行才能续训",
    "wandb only if you are logged in or ask for it by LOGGER": "登录了，或用 LOGGER 要求，才用 wandb",
    "null: what fits (recipes/memory/fit.py)": "null：放得下多少就多少（recipes/memory/fit.py）",
    "null: where 4 bytes a weight for Adam's copy do not fit": "null：放不下 Adam 那份每个权重 4 字节的副本时",
    "null: only where a GPU's memory asks for it (recipes/memory/fit.py)": (
        "null：显存不够时才用（recipes/memory/fit.py）"
    ),
    "as the parameters": "与参数相同",
    "null: 0.6, or what fits beside the trainer's weights": "null：0.6，或训练器的权重之外放得下的",
    "459 TFLOP/s without it, 382 with it": "不重算激活 459 TFLOP/s，重算 382",
    "403 TFLOP/s with its kernels, 284 without, both with recomputation": (
        "用它的内核 403 TFLOP/s，不用 284，两者都重算激活"
    ),
    "478 TFLOP/s at 32,768 tokens, 483 at 65,536": "32,768 个 token 时 478 TFLOP/s，65,536 个时 483",
    "log-probabilities without 10 GB of logits for 32,768 tokens": "算对数概率时省去 32,768 个 token 的 10 GB logits",
    "with one update a step it saves a pass: 3.9 of 32 s": "每步只更新一次时省去一遍计算：32 s 中的 3.9 s",
    "vLLM's present engine prefills in chunks": "vLLM 现在的引擎分块预填充",
    "one engine a GPU, 3 B parameters fit": "每张 GPU 一个引擎，30 亿参数放得下",
    "prompts of 8,192 tokens at once delay decoding more often": "一次 8,192 个 token 的预填充更常拖慢解码",
    "no torch.compile: a start on cold caches is 39 s shorter, and generation takes as long (vLLM 0.24.0)": (
        "不用 torch.compile：冷缓存时启动缩短 39 s，生成用时相同（vLLM 0.24.0）"
    ),
    "null: all of a step's responses at once, 256 to 1,024 an engine": (
        "null：一步的回答同时生成，每个引擎 256 到 1,024 个"
    ),
    "null: some up to max_num_seqs, fewer than vLLM's own 67, which take 10 s": (
        "null：到 max_num_seqs 为止取若干个，少于 vLLM 自己的 67 个（要 10 s）"
    ),
    "as EasyR1's examples for the 3B model": "与 EasyR1 的 3B 示例相同",
}
"""Reason of a recipe, as its YAML has it -> the same in Chinese."""


def block(task: str = "", *against: str) -> str:
    """Return the generated block `comparison-zh TASK EXAMPLE...`: the keys that differ, with reasons, then the others.

    Raises RecipeError for a reason that has no Chinese.
    """
    table = compare(task, examples(against))
    table.require_reasons()
    differing = [row for row in table.rows if row.status != "aligned"]
    rows = [_cells(row, task) for row in sorted(differing, key=lambda row: row.status == "hardware")]
    heads = ("键", "我们", *(each.title for each in table.official), "因何不同", "原因")
    return "\n\n".join((_summary(table), markdown(heads, rows), f"相同的键：{aligned(table)}。", origins(table)))


def _cells(row: Row, task: str) -> list[str]:
    if row.reason not in REASONS:
        raise RecipeError(
            f"the reason of {row.key} has no Chinese: {row.reason!r}",
            where=f"configs/{task}.yaml, or a layer below it",
            fix="add the sentence to REASONS in tools/pages/chinese.py",
        )
    values = [cell.replace(" (default)", "（默认）") for cell in row_cells(row)]
    return [*values, KINDS[row.status], REASONS[row.reason]]


def _summary(table: Table) -> str:
    counts = {kind: sum(row.status == kind for row in table.rows) for kind in ("aligned", *KINDS)}
    return (
        f"{counts['aligned']} 个键与示例相同，{counts['task']} 个因任务而不同，{counts['hardware']} 个因硬件而不同；"
        f"另有 {table.same} 个键各方都没有设，处处相同。"
        "`val_freq` 和 `save_freq` 以步为单位，批大小以提示词为单位，各方一样。横线表示那一方没有这个键；"
        "“默认”表示示例没有写，由它的引擎决定。"
    )

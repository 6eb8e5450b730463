"""Keys under `data`."""

from __future__ import annotations

from recipes.config.schema.conversions import FILE_TEXT, FILES, NULL_IF_NEGATIVE, PROMPT_KEY
from recipes.config.schema.field import Section, key, only_easyr1, only_verl

CONVERTED = "the data is in finished rows; this acts where JSON, JSONL, CSV or plain parquet is converted to rows"


class Data(Section):
    """What is read, how long it may be, and how many prompts make a step."""

    train_files: str | list[str] = key(
        "",
        "training rows: a parquet file, or JSON, JSONL, CSV to be converted (or a hub set for EasyR1)",
        verl="data.train_files",
        convert=FILES,
        path="data",
    )
    val_files: str | list[str] = key(
        "",
        "validation rows, as train_files; empty: a share of what is converted",
        verl="data.val_files",
        convert=FILES,
        path="data",
    )
    val_share: float = key(
        0.05,
        "share of each data source's prompts that validates, where a file is converted and val_files is empty",
        not_on=dict.fromkeys(("verl", "easyr1"), CONVERTED),
        gt=0,
        lt=1,
    )
    data_source: str | None = key(
        None,
        "data source of rows that name none, where a file is converted",
        not_on=dict.fromkeys(("verl", "easyr1"), CONVERTED),
    )
    system_prompt: str | None = key(
        None,
        "text file with the system message, where a file is converted",
        not_on=dict.fromkeys(("verl", "easyr1"), CONVERTED),
        path="input",
    )
    prompt_key: str | None = key(
        None,
        "column of the prompt; null: `prompt` (chat messages) on verl, `problem` (text) on EasyR1",
        verl="data.prompt_key",
        convert=PROMPT_KEY,
    )
    answer_key: str = key(
        "answer",
        "column of the gold answer",
        not_on=only_easyr1("verl always reads reward_model.ground_truth of the row"),
    )
    image_key: str = key("images", "column of the images", verl="data.image_key")
    video_key: str = key("videos", "column of the videos", verl="data.video_key")
    image_dir: str | None = key(
        None,
        "folder that image paths in the rows are relative to",
        not_on=only_easyr1("verl reads images from the row or by absolute path"),
        path="input",
    )
    video_fps: float = key(
        2.0,
        "frames a second taken from a video",
        gt=0,
        not_on=only_easyr1("verl takes the rate from the row's video entry"),
    )
    max_prompt_length: int = key(
        512, "longest prompt, in tokens, image tokens included", verl="data.max_prompt_length", gt=0
    )
    max_response_length: int = key(512, "longest response, in tokens", verl="data.max_response_length", gt=0)
    rollout_batch_size: int = key(512, "prompts a step (not responses)", verl="data.train_batch_size", gt=0)
    mini_rollout_batch_size: int | None = key(
        None, "prompts sent to generation at a time; null: all of a step's", verl="data.gen_batch_size", gt=0
    )
    val_batch_size: int = key(
        -1,
        "validation prompts generated at a time; -1: all at once",
        verl="data.val_batch_size",
        convert=NULL_IF_NEGATIVE,
    )
    format_prompt: str | None = key(
        None,
        "Jinja file that wraps the prompt, where a file is converted (EasyR1: also when finished rows are read)",
        not_on=only_easyr1("rows for verl hold the finished chat messages; wrap the prompt where the data is made"),
        path="input",
    )
    override_chat_template: str | None = key(
        None,
        "Jinja file that replaces the model's chat template",
        verl="actor_rollout_ref.model.custom_chat_template",
        convert=FILE_TEXT,
        path="input",
    )
    shuffle: bool = key(True, "shuffle the training rows every epoch", verl="data.shuffle")
    seed: int = key(1, "seed of the shuffling", verl="data.seed")
    min_pixels: int | None = key(
        262144,
        "smallest image, in pixels; smaller ones are enlarged",
        verl="data.mm_processor_kwargs",
        computed=True,
        gt=0,
    )
    max_pixels: int | None = key(
        4194304,
        "largest image, in pixels; larger ones are reduced",
        verl="data.mm_processor_kwargs",
        computed=True,
        gt=0,
    )
    filter_overlong_prompts: bool = key(True, "drop rows whose prompt is too long", verl="data.filter_overlong_prompts")
    filter_overlong_prompts_workers: int = key(
        16, "processes that measure the prompts", verl="data.filter_overlong_prompts_workers", gt=0
    )
    train_max_samples: int = key(
        -1, "train on so many rows at most; -1: all", verl="data.train_max_samples", not_on=only_verl()
    )
    val_max_samples: int = key(
        -1, "validate on so many rows at most; -1: all", verl="data.val_max_samples", not_on=only_verl()
    )
    dataloader_num_workers: int = key(
        8,
        "processes that read rows",
        verl="data.dataloader_num_workers",
        ge=0,
        not_on=only_verl("EasyR1 always uses 8"),
    )

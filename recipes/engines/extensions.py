"""What verl imports before it builds a model on GPUs: losses, columns, schedules, reference, sockets, answers, head.

And adapters, models that are saved, and attention where flash-attn is not installed. verl imports the module in each
process that holds a model, and calls nothing in it.
"""

from __future__ import annotations

import importlib.util

from recipes.engines import (
    fsdp2,
    fused_head,
    linear_schedule,
    log_probs,
    on_policy,
    packed_attention,
    pass_columns,
    reference_memory,
    resumed_optimizer,
    saved_models,
    transfer_sockets,
    whole_responses,
)

fsdp2.register()
fused_head.register()
on_policy.register()
pass_columns.register()
linear_schedule.register()
log_probs.register()
resumed_optimizer.register()
saved_models.register()
reference_memory.register()
transfer_sockets.register()
whole_responses.register()
if importlib.util.find_spec("flash_attn") is None:
    packed_attention.register()

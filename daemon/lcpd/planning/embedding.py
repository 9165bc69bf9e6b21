"""What the context that texts are embedded in takes, while there are texts: it is no part of what a load takes.

Sources: `_embedder` in lcpd.engine.worker for its size; beside its KV cache and state, libllama has logits of a whole
batch twice, where they are computed and where they could be read (`llama_context::output_reserve`).
"""

from __future__ import annotations

from dataclasses import replace

from lcpd.planning.compute import output_bytes
from lcpd.planning.context import padded
from lcpd.planning.kv import caches
from lcpd.planning.plan import MemoryPlan, Part
from lcpd.planning.recurrent import state

_BATCH = 256
"""As lcpd.engine.embedder has it, which needs libllama to be imported."""


def embedding(plan: MemoryPlan, longest: int) -> Part:
    """What texts of at most `longest` tokens (`model.embeddings_ctx`) take beside the plan.

    Activations are left out, which are small beside logits.
    """
    shape = plan.shape
    ctx = min(longest, shape.n_ctx_train)
    batch = min(plan.wanted.ubatch, ctx, _BATCH)
    cells = padded(ctx)
    window = max((layer.window for layer in shape.window_layers), default=0)
    context = replace(
        plan.context,
        ctx=ctx,
        cells=cells,
        window_cells=padded(min(cells, window + batch)) if window else 0,
        sequences=1,
        ubatch=batch,
        snapshots=0,
        drafts=0,
    )
    kept = sum(cache.nbytes for cache in caches(shape, context)) + state(shape, context).nbytes
    logits = batch * output_bytes(shape, context)
    there, here = (kept + logits, logits) if plan.machine.gpu else (kept + 2 * logits, 0)
    return Part("embedding", there, here, f"texts of {ctx} tokens", estimated=True)

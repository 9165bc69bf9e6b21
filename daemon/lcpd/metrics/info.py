"""What runs here: build, model and configuration, as labels."""

from __future__ import annotations

from prometheus_client import CollectorRegistry

from lcpd.metrics.definition import Topic


class InfoFigures(Topic):
    """See the module."""

    title = "Build, model and configuration"

    def __init__(self, registry: CollectorRegistry) -> None:
        super().__init__(registry)
        self.build = self.info("lcpd_build_info", "Which lcpd and llama.cpp are these?", ["version", "llama_cpp"])
        self.model = self.info(
            "lcpd_model_info",
            "Which model is loaded, of which kind (attention, swa, hybrid, recurrent), on which devices, with which"
            " context?",
            ["model", "description", "kind", "devices", "n_ctx", "n_params", "size_bytes", "flash_attn"],
        )
        self.config = self.info(
            "lcpd_config_info",
            "With which settings, of those that matter for speed?",
            ["slots", "kv", "batch", "ubatch", "checkpoints", "cache_ram", "cache_disk", "anticipate", "prewarm"],
        )

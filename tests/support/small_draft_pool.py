"""Makes a draft's own KV pool half as large as the target's, as in SGLang issue 17630."""

from dataclasses import replace


def halve() -> None:
    from sglang.srt.model_executor.model_runner import ModelRunner

    original = ModelRunner.init_memory_pool

    def init_memory_pool(self, *args):
        config = self.memory_pool_config
        if self.is_draft_worker and config.full_max_total_num_tokens:
            self.memory_pool_config = replace(
                config,
                max_total_num_tokens=config.max_total_num_tokens // 2,
                full_max_total_num_tokens=config.full_max_total_num_tokens // 2,
            )
        original(self, *args)

    ModelRunner.init_memory_pool = init_memory_pool

"""Spoils how the layers of a frozen draft are bound to the target's, as in a defect of SGLang's binding."""

from sglang import __version__

from gemma4_runtime.targets import dotted_path

_SOUND_DRAFTS = 20


def another() -> None:
    """Bind the draft's first sliding layer to the target's sliding layer before the right one."""
    _after_binding(lambda attention: setattr(attention, "layer_id", attention.layer_id - 1))


def wider() -> None:
    """Show the draft's first sliding layer one key more than all others."""
    _after_binding(lambda attention: setattr(attention, "sliding_window_size", attention.sliding_window_size + 1))


def _after_binding(spoil) -> None:
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    def after(result, worker, *args, **kwargs) -> None:
        spoil(worker.draft_model_runner.model.model.layers[0].self_attn.attn)

    HookRegistry.register(dotted_path(__version__, "mtp.bind_context"), after, HookType.AFTER)


def later() -> None:
    """Bind the draft's sliding layers to the target's first one in the middle of the load, as a stray write would."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    forwards = 0

    def before(worker, *args, **kwargs) -> None:
        nonlocal forwards
        forwards += 1
        for layer in worker.draft_model_runner.model.model.layers if forwards == _SOUND_DRAFTS else ():
            attention = layer.self_attn.attn
            attention.layer_id = 0 if attention.sliding_window_size > 0 else attention.layer_id

    HookRegistry.register(dotted_path(__version__, "mtp.draft"), before, HookType.BEFORE)

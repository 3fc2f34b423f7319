"""What the contracts of sessions share: one that is started and stopped, and leaves nothing behind."""

import json

import pytest


@pytest.fixture
def nothing_left_behind():
    """Hold SGLang's hooks after the test against those before it."""
    from sglang.srt.plugins.hook_registry import HookRegistry

    from gemma4_runtime import current

    hooks = dict(HookRegistry._hooks)
    yield
    assert dict(HookRegistry._hooks) == hooks
    assert current.in_force is None


@pytest.fixture
def start_session(monkeypatch, tmp_path, nothing_left_behind):
    """Return what starts and stops a session that traps, and returns its guard manifest."""
    from sglang.srt.plugins.hook_registry import HookRegistry

    from gemma4_runtime.session import Session
    from gemma4_runtime.settings import read_settings

    def start(patches, **settings):
        monkeypatch.setenv("SGLANG_TRTLLM_MHA_DEBUG", "trap")
        monkeypatch.setenv("SGLANG_TRTLLM_MHA_DEBUG_DIR", str(tmp_path))
        for name, value in settings.items():
            monkeypatch.setenv(name, value)
        session = Session(read_settings(), patches)
        try:
            session.start()
            HookRegistry.apply_hooks()
        finally:
            session.stop()
        (path,) = (tmp_path / "guards").glob("*.json")
        return json.loads(path.read_text())

    return start

import logging

import megengine as mge


def test_messages_reach_the_file_at_the_level_set(tmp_path):
    log = mge.get_logger("megengine.part")
    root = mge.get_logger()
    before, handlers = mge.set_log_level("WARNING"), list(root.handlers)
    try:
        mge.set_log_file(tmp_path / "log.txt")
        log.info("hidden")
        log.warning("shown")
    finally:
        for handler in set(root.handlers) - set(handlers):
            handler.close()
            root.removeHandler(handler)
        assert mge.set_log_level(before) == logging.WARNING
    text = (tmp_path / "log.txt").read_text()
    assert "shown" in text
    assert "hidden" not in text

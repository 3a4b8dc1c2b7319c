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


def test_loggers_of_scripts_have_their_names_and_the_level_of_the_package(tmp_path):
    log = mge.get_logger("my_script")
    assert log is mge.get_logger("my_script") is logging.getLogger("my_script")
    assert len(log.handlers) == len(mge.get_logger().handlers) > 0
    before, handlers = mge.set_log_level("ERROR"), list(log.handlers)
    try:
        mge.set_log_file(tmp_path / "log.txt")
        log.warning("hidden")
        log.error("shown")
        mge.set_log_level("DEBUG", update_existing=False)
        assert log.level == logging.ERROR
    finally:
        for handler in set(log.handlers) - set(handlers):
            handler.close()
            log.removeHandler(handler)
            mge.get_logger().removeHandler(handler)
        mge.set_log_level(before)
    assert (tmp_path / "log.txt").read_text().splitlines()[0].endswith("ERROR shown")
    assert "hidden" not in (tmp_path / "log.txt").read_text()

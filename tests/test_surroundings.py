"""The tests do not depend on where they run."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DEAD = "http://127.0.0.1:9"


def test_the_tests_pass_behind_a_dead_proxy_and_without_a_cache_that_can_be_written():
    names = ["http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "all_proxy"]
    left = {name: value for name, value in os.environ.items() if name.lower() != "no_proxy"}
    one = "tests/test_images.py::test_a_download_is_checked_and_kept"
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-o", f"cache_dir={os.devnull}/cache", one],
        cwd=ROOT,
        env={**left, **dict.fromkeys(names, DEAD)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed" in done.stdout

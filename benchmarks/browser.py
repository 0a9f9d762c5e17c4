"""Chromium without a window, driven through a pipe by its DevTools protocol: nothing to install.

Used by the tests and the benchmark of the playground, and to look at it:
`python -m benchmarks.browser PAGE FOLDER` writes pictures, wide and narrow, light and dark.
"""

import base64
import fcntl
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
WAIT = 60.0  # seconds for one answer


def find() -> str | None:
    """The path of a Chromium, if there is one."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class BrowserError(RuntimeError):
    """What the browser or a script in it complained of."""


class Browser:
    """One page in one Chromium, which ends with the `with` block."""

    def __init__(self, program: str | None = None):
        self.program = program or find()
        if self.program is None:
            raise BrowserError(f"none of {', '.join(NAMES)} is installed")
        self.events: list[dict[str, Any]] = []
        self._buffer, self._number = b"", 0

    def __enter__(self) -> "Browser":
        self._profile = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        child_in, self._out = os.pipe()
        self._in, child_out = os.pipe()
        # The protocol wants descriptors 3 and 4: ours are moved out of their way first.
        given = [fcntl.fcntl(fd, fcntl.F_DUPFD, 10) for fd in (child_in, child_out)]

        def place() -> None:
            for at, fd in enumerate(given, 3):
                os.dup2(fd, at)

        command = [
            *(str(self.program), "--headless=new"),
            *("--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"),
            *("--no-first-run", "--disable-extensions", "--disable-background-networking"),
            *("--remote-debugging-pipe", f"--user-data-dir={self._profile.name}", "about:blank"),
        ]
        self._process = subprocess.Popen(
            command,
            pass_fds=(3, 4),
            preexec_fn=place,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for fd in (child_in, child_out, *given):
            os.close(fd)
        self._session: str | None = None
        try:
            targets = self.call("Target.getTargets")["targetInfos"]
            target = next(t["targetId"] for t in targets if t["type"] == "page")
            found = self.call("Target.attachToTarget", targetId=target, flatten=True)
            self._session = found["sessionId"]
            for domain in ("Page", "Runtime", "Log"):
                self.call(f"{domain}.enable")
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._out)
        os.close(self._in)
        self._profile.cleanup()

    def call(self, method: str, *, of_page: bool = True, **params: Any) -> dict[str, Any]:
        """One command of the protocol, to the page or to the browser, and its answer."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": params}
        if of_page and self._session is not None:
            message["sessionId"] = self._session
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self._out, data) :]
        until = time.monotonic() + WAIT
        while True:
            answer = self._read(until)
            if answer.get("id") == self._number:
                break
            self.events.append(answer)
        if "error" in answer:
            raise BrowserError(f"{method}: {answer['error']['message']}")
        result: dict[str, Any] = answer["result"]
        return result

    def _read(self, until: float) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._in], [], [], max(0.0, until - time.monotonic()))
            part = os.read(self._in, 1 << 20) if ready else b""
            if not part:
                raise BrowserError("the browser gave no answer")
            self._buffer += part
        line, self._buffer = self._buffer.split(b"\0", 1)
        answer: dict[str, Any] = json.loads(line)
        return answer

    def open(self, page: str | Path) -> None:
        """A file or an address; returns when it has loaded."""
        address = page.resolve().as_uri() if isinstance(page, Path) else page
        self.events.clear()
        self.call("Page.navigate", url=address)
        until = time.monotonic() + WAIT
        while not any(event["method"] == "Page.loadEventFired" for event in self.events):
            self.events.append(self._read(until))

    def run(self, script: str) -> Any:
        """The value of an expression in the page; promises are waited for."""
        found = self.call(
            "Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True
        )
        if "exceptionDetails" in found:
            details = found["exceptionDetails"]
            thrown = details.get("exception", {}).get("description", details["text"])
            raise BrowserError(str(thrown))
        return found["result"].get("value")

    def wait(self, condition: str, seconds: float = WAIT) -> None:
        """Until an expression is true in the page."""
        until = time.monotonic() + seconds
        while not self.run(f"Boolean({condition})"):
            if time.monotonic() > until:
                raise BrowserError(f"still not: {condition}")
            time.sleep(0.05)

    def complaints(self) -> list[str]:
        """Errors and warnings of the page so far."""
        self.run("0")  # what was said before has come by then
        found = []
        for event in self.events:
            params = event.get("params", {})
            if event.get("method") == "Runtime.exceptionThrown":
                found.append(str(params["exceptionDetails"].get("exception", params)))
            elif event.get("method") == "Log.entryAdded" and params["entry"]["level"] != "verbose":
                found.append(params["entry"]["text"])
            elif event.get("method") == "Runtime.consoleAPICalled":
                found.append(str([arg.get("value") for arg in params["args"]]))
        return found

    def key(self, key: str, code: str = "", text: str = "") -> None:
        """Press a key and let it go."""
        virtual = {"Enter": 13, " ": 32, "Tab": 9, "Escape": 27, "ArrowLeft": 37, "ArrowUp": 38}
        virtual |= {"ArrowRight": 39, "ArrowDown": 40, "Home": 36, "End": 35}
        given = {"key": key, "code": code or key}
        given["windowsVirtualKeyCode"] = virtual.get(key, ord(key[0].upper()))
        text = text or {"Enter": "\r"}.get(key, key if len(key) == 1 else "")
        press = {"type": "keyDown", "text": text} if text else {"type": "rawKeyDown"}
        self.call("Input.dispatchKeyEvent", **press, **given)
        self.call("Input.dispatchKeyEvent", type="keyUp", **given)

    def look(self, width: int, height: int, *, dark: bool = False, still: bool = False) -> None:
        """The size of the window, the colours that its user likes, and whether without motion."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )
        features = [
            {"name": "prefers-color-scheme", "value": "dark" if dark else "light"},
            {"name": "prefers-reduced-motion", "value": "reduce" if still else "no-preference"},
        ]
        self.call("Emulation.setEmulatedMedia", features=features)

    def picture(self, path: Path, clip: dict[str, float] | None = None) -> None:
        """The page as PNG, whole or a part of it: x, y, width, height and scale."""
        options: dict[str, Any] = {"format": "png", "captureBeyondViewport": True}
        options |= {} if clip is None else {"clip": clip}
        found = self.call("Page.captureScreenshot", **options)
        path.write_bytes(base64.b64decode(found["data"]))


def main() -> int:
    """Pictures of a page, before and, where it has a button `play`, after that was on a while."""
    page, folder = Path(sys.argv[1]), Path(sys.argv[2])
    folder.mkdir(parents=True, exist_ok=True)
    with Browser() as browser:
        for width, height in ((1280, 900), (400, 900)):
            for dark in (False, True):
                browser.look(width, height, dark=dark)
                browser.open(page)
                has_button = browser.run("document.getElementById('play') !== null")
                for when in ("before", "after") if has_button else ("before",):
                    if when == "after":
                        browser.run("document.getElementById('play').click()")
                        time.sleep(6)
                        browser.run("document.getElementById('play').click()")
                    time.sleep(0.5)
                    name = f"{width}-{'dark' if dark else 'light'}-{when}.png"
                    browser.picture(folder / name)
        for complaint in browser.complaints():
            print(complaint)
    return 0


if __name__ == "__main__":
    sys.exit(main())

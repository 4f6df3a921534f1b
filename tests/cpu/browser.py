"""A headless Chromium driven over its DevTools protocol, for tests of pages."""

import json
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from websockets.sync.client import ClientConnection, connect

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
CHROMIUM = next((path for name in NAMES if (path := shutil.which(name))), None)
TIMEOUT_S = 120.0


class Tab:
    """One page; collects what it writes to the console and what it throws."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket, self._number, self._session = socket, 0, None
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self._loaded = False
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        found = self.send("Target.attachToTarget", targetId=target, flatten=True)
        self._session = found["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{domain}.enable")

    def send(self, method: str, **params: Any) -> dict[str, Any]:
        """Call a method of the protocol and wait for its answer."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        if self._session is not None:
            message["sessionId"] = self._session
        self._socket.send(json.dumps(message))
        while True:
            answer = json.loads(self._socket.recv(timeout=TIMEOUT_S))
            if answer.get("id") == self._number:
                assert "error" not in answer, (method, answer)
                return answer["result"]
            self._take(answer)

    def _take(self, event: dict[str, Any]) -> None:
        method, params = event.get("method"), event.get("params", {})
        if method == "Page.loadEventFired":
            self._loaded = True
        elif method == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])
        elif method in ("Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded"):
            self.complaints.append(json.dumps(params)[:2000])

    def open(self, url: str, *, width: int = 1280, height: int = 900) -> None:
        """Load a page and wait until it has loaded."""
        self.send(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 600,
        )
        self._loaded = False
        self.send("Page.navigate", url=url)
        while not self._loaded:
            self._take(json.loads(self._socket.recv(timeout=TIMEOUT_S)))

    def value(self, expression: str) -> Any:
        """Evaluate an expression in the page; a promise is waited for."""
        answer = self.send(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def press(self, key: str) -> None:
        """Press and release a key."""
        text = {"text": key} if len(key) == 1 else {}
        self.send("Input.dispatchKeyEvent", type="keyDown", key=key, **text)
        self.send("Input.dispatchKeyEvent", type="keyUp", key=key)

    def mouse(self, kind: str, x: float, y: float, *, button: str = "none") -> None:
        """Move, press or release the mouse; coordinates as in the window."""
        self.send(
            "Input.dispatchMouseEvent",
            type=f"mouse{kind}",
            x=x,
            y=y,
            button=button,
            buttons=int(button == "left"),
            clickCount=int(kind != "Moved"),
        )


@contextmanager
def open_browser(profile: Path) -> Iterator[Tab]:
    """A browser of its own with one tab.

    Args:
        profile: an empty folder for its files.
    """
    assert CHROMIUM is not None
    command = [
        *(CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"),
        *("--remote-debugging-port=0", f"--user-data-dir={profile}", "about:blank"),
    ]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        address = next(
            line.rpartition(" ")[2].strip()
            for line in process.stderr
            if line.startswith("DevTools listening on ")
        )
        with connect(address, max_size=None, proxy=None, open_timeout=TIMEOUT_S) as socket:
            yield Tab(socket)
    finally:
        process.terminate()
        process.communicate()

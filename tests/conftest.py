"""Shared fixtures: a real headless Chromium, and a real JupyterLab on a free port."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

if (
    "PYTEST_XDIST_WORKER" in os.environ
):  # one process per core: a second thread of torch would wait for the other's core
    os.environ.setdefault("OMP_NUM_THREADS", "1")

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
CHROMIUM_FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@pytest.fixture(scope="module")
def chromium() -> Iterator:
    """A Playwright browser; skipped with a reason where no Chromium is installed."""
    if CHROMIUM is None:
        pytest.skip("no Chromium: apt-get install chromium")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=CHROMIUM_FLAGS)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def jupyterlab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[], tuple[str, Path]]]:
    """Gives the URL and the folder of a JupyterLab that is up."""
    folder = tmp_path_factory.mktemp("lab")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    settings = folder / ".settings" / "@jupyterlab" / "apputils-extension"
    settings.mkdir(parents=True)
    (settings / "notification.jupyterlab-settings").write_text(
        '{"fetchNews": "false", "checkForUpdates": false, "doNotDisturbMode": true}'
    )
    log = (folder / ".log").open("w")
    options = ["--no-browser", "--allow-root", "--ip=127.0.0.1", f"--port={port}", "--IdentityProvider.token="]
    server = subprocess.Popen(
        [sys.executable, "-m", "jupyter", "lab", str(folder), *options],
        env={**os.environ, "JUPYTERLAB_SETTINGS_DIR": str(folder / ".settings")},
        stdout=log,
        stderr=log,
    )
    url = f"http://127.0.0.1:{port}"
    try:
        _wait_until_up(url, server, Path(log.name))
        yield lambda: (url, folder)
    finally:
        server.terminate()
        server.wait(30)
        log.close()


def _wait_until_up(url: str, server: subprocess.Popen, log: Path) -> None:
    for _ in range(240):
        if server.poll() is not None:
            break
        try:
            urllib.request.urlopen(f"{url}/api/status", timeout=2)
        except OSError:
            time.sleep(0.25)
        else:
            return
    raise RuntimeError(f"JupyterLab did not start:\n{log.read_text()[-3000:]}")

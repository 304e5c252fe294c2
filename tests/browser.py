"""A real Chromium without a window, for tests of pages; Debian's packages `chromium` and `chromium-driver`.

`make setup-system` installs them if it is permitted. Tests use the fixture `browser`:

    def test_a_page(browser: Browser) -> None:
        page = browser.open("http://127.0.0.1:8080/", width=390, height=844, dark=True)
        assert page.find_element(By.TAG_NAME, "h1").text == "Messages"
        assert browser.errors() == []
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import pytest
from selenium.webdriver import Chrome, ChromeOptions
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.remote.command import Command

PHONE: Final = (390, 844)
"""Width and height of a typical phone in CSS pixels."""

_PROGRAMS: Final = ("chromium", "chromedriver")
_PAGE_LIMIT_S: Final = 120

_ARGUMENTS: Final = (
    "--headless=new",
    "--no-sandbox",  # the sandbox does not start as root
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--force-device-scale-factor=1",
    "--hide-scrollbars",
    # No requests except to the pages under test.
    "--disable-quic",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-default-apps",
    "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1 , EXCLUDE localhost",
)


class Browser:
    """One Chromium with an empty profile; `with` starts and ends it."""

    def __init__(self) -> None:
        self._profile = tempfile.mkdtemp(prefix="tidegate-browser-")
        self._driver: Chrome | None = None

    def __enter__(self) -> Self:
        options = ChromeOptions()
        for argument in (*_ARGUMENTS, f"--user-data-dir={self._profile}"):
            options.add_argument(argument)
        options.binary_location = str(shutil.which(_PROGRAMS[0]))
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        # With both paths given, Selenium does not search for a driver.
        self._driver = Chrome(options, Service(shutil.which(_PROGRAMS[1])))
        self._driver.set_page_load_timeout(_PAGE_LIMIT_S)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._driver is not None:
            self._driver.quit()
        shutil.rmtree(self._profile, ignore_errors=True)

    @property
    def page(self) -> Chrome:
        """The driver, for all that Selenium can do."""
        assert self._driver is not None
        return self._driver

    def open(
        self, address: str | Path, *, width: int = 1280, height: int = 900, dark: bool = False
    ) -> Chrome:
        """Open a page, a file or an address, at a size in CSS pixels, with the light or dark theme.

        Cookies and messages of earlier pages are dropped.
        """
        page = self.page
        page.get("about:blank")
        page.execute_cdp_cmd("Network.clearBrowserCookies", {})
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        page.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        theme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [theme]})
        self.errors()
        page.get(address.resolve().as_uri() if isinstance(address, Path) else address)
        return page

    def errors(self) -> list[str]:
        """Return the errors on the page's console since the last call: failed loads, exceptions."""
        entries = self.page.execute(Command.GET_LOG, {"type": "browser"})["value"]
        return [str(entry["message"]) for entry in entries if entry["level"] == "SEVERE"]

    def overflow(self) -> int:
        """Return by how many CSS pixels the page is wider than its window; 0 when no sideways scrolling is needed."""
        script = (
            "return document.documentElement.scrollWidth - document.documentElement.clientWidth"
        )
        return int(self.page.execute_script(script))

    def picture(self, file: Path) -> None:
        """Save the whole page, including the part below the window, as a PNG file."""
        script = "return document.documentElement.scrollHeight"
        size = self.page.execute_cdp_cmd("Page.getLayoutMetrics", {})["cssLayoutViewport"]
        metrics = {
            "width": size["clientWidth"],
            "height": int(self.page.execute_script(script)),
            "deviceScaleFactor": 1,
            "mobile": False,
        }
        self.page.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        file.write_bytes(self.page.get_screenshot_as_png())


def skip_without_browser() -> None:
    """Skip the test if there is no Chromium, and say how to install it."""
    missing = [name for name in _PROGRAMS if shutil.which(name) is None]
    if missing:
        pytest.skip(f"no {' and no '.join(missing)}: 'make setup-system' as root installs them")

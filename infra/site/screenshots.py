"""Makes the pictures of the control plane's page in the documentation, with a Chromium of this machine.

The cluster behind them is the one of the page's tests: nothing has to run.
"""

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
TESTS = ROOT / "packages/slackwater/tests/cli/control"
IMAGES = ROOT / "docs/images"
PICTURES: Mapping[str, tuple[str, int, int, str]] = {
    "control-plane": ("#/", 1280, 760, "light"),
    "control-plane-pipeline": ("#/pipelines/orders", 1280, 1080, "light"),
    "control-plane-narrow": ("#/", 390, 1330, "dark"),
}
"""By name: the place on the page, the size of the window, the colours."""


def main(folder: Path) -> None:
    """Takes all pictures."""
    sys.path.insert(0, str(TESTS))
    tests = import_module("test_page")
    picture = tests.troubled()
    with tests.serving(picture) as address, _browser(tests) as browser:
        for name, (place, width, height, scheme) in PICTURES.items():
            size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 700}
            browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
            features = [{"name": "prefers-color-scheme", "value": scheme}]
            browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
            page = tests.Page(browser, address)
            page.open(place)
            page.sees(lambda found=page: found.find("main section h1, main section h2"))
            path = folder / f"{name}.png"
            browser.save_screenshot(str(path))
            sys.stdout.write(f"written: {path}\n")


@contextmanager
def _browser(tests: Any) -> Iterator[Any]:
    from selenium.webdriver import Chrome, ChromeOptions, ChromeService

    options = ChromeOptions()
    options.binary_location = str(tests.CHROMIUM)
    for argument in ("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"):
        options.add_argument(argument)
    browser = Chrome(options, ChromeService(str(tests.DRIVER)))
    try:
        yield browser
    finally:
        browser.quit()


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else IMAGES)

"""What the tests of all tabs assert, and requests to compare the page with."""

from __future__ import annotations

import base64
import json
import urllib.request
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from playwright.sync_api import Page


def assert_fits(tab: Page) -> None:
    """Assert that the page is not wider than the window."""
    assert tab.evaluate("document.documentElement.scrollWidth <= innerWidth"), "the page scrolls sideways"


def post_json(address: str, path: str, **body: Any) -> dict[str, Any]:
    """Send a request to the API and return its answer."""
    request = urllib.request.Request(
        address + path, json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request) as response:
        result: dict[str, Any] = json.load(response)
    return result


def read_weights(address: str, **selection: Any) -> np.ndarray:
    """Return the weights (queries, keys) that `/api/attention` answers with."""
    matrix = post_json(address, "/api/attention", **selection)["weights"]
    return np.frombuffer(base64.b64decode(matrix["data"]), "<f4").reshape(matrix["rows"], matrix["columns"])

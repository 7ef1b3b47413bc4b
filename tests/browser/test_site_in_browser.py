"""Pages of the documentation site in a browser: nothing is wider than the window."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from support.paths import ROOT

RunScript = Callable[..., str]

# Loads each page into a frame, and returns the problems found in it.
MEASURE = """
const problems = [];
for (const page of PAGES) {
  for (const width of [1280, 390]) {
    const frame = document.createElement("iframe");
    frame.style = `border:0;width:${width}px;height:900px`;
    frame.sandbox = "allow-same-origin";  // layout needs no scripts
    frame.src = page;
    const loaded = new Promise(done => { frame.onload = done });
    document.body.appendChild(frame);
    await loaded;
    const root = frame.contentDocument.scrollingElement;
    if (root.scrollWidth > width) problems.push(`${page} at ${width}: the page is ${root.scrollWidth} wide`);
    for (const code of frame.contentDocument.querySelectorAll("pre > code"))
      if (width === 1280 && code.scrollWidth > code.clientWidth + 1)
        problems.push(`${page}: ${code.textContent.slice(0, 60)}`);
    frame.remove();
  }
}
return JSON.stringify(problems);
"""


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """The documentation, built as a site."""
    folder = tmp_path / "site"
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.timeout(300)
def test_site_pages_fit_the_width_of_a_laptop_and_a_phone(site: Path, run_script: RunScript) -> None:
    pages = sorted(str(path.relative_to(site)) for path in site.rglob("*.html") if path.name != "404.html")
    assert len(pages) > 40
    script = MEASURE.replace("PAGES", json.dumps(pages))
    assert json.loads(run_script("<!doctype html><body></body>", script, folder=site)) == []

"""Build the documentation site from the pages in docs/, without a network, and check what was built.

    python docs/site/build.py                  # into site/; `make docs` runs this
    python docs/site/build.py --out FOLDER

The pages are copied next to the settings, together with CHANGELOG.md and CONTRIBUTING.md, whose links are adapted.
A page is made from each notebook.
Zensical builds them; a warning of it fails the build, and so does what check.py finds.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

from check import check_site
from notebook_pages import write_page

HERE = Path(__file__).parent
DOCS = HERE.parent
ROOT = DOCS.parent
# Pages that GitHub expects at the top of the repository, and their names on the site.
TOP_PAGES = {"CHANGELOG.md": "changelog.md", "CONTRIBUTING.md": "contributing.md"}
NO_PAGES = shutil.ignore_patterns("site", "*.py", "*.toml", "__pycache__", ".ipynb_checkpoints")


def copy_pages(folder: Path) -> None:
    """Write the pages of the site, and the files that they show, to a folder."""
    shutil.copytree(DOCS, folder, ignore=NO_PAGES)
    shutil.copytree(HERE / "assets", folder / "assets")
    for notebook in folder.rglob("*.ipynb"):
        write_page(notebook, notebook.with_suffix(".md"))
    for name, page in TOP_PAGES.items():
        text = (ROOT / name).read_text(encoding="utf-8")
        (folder / page).write_text(re.sub(r"\]\((?:docs/)?(?=[\w./#-]+\))", "](", text), encoding="utf-8")
    for page in folder.rglob("*.md"):
        text = page.read_text(encoding="utf-8")
        for name, target in TOP_PAGES.items():
            text = re.sub(
                rf"\]\((?:\.\./)*{re.escape(name)}(#[\w-]+)?\)", rf"]({up(page, folder)}{target}\1)", text
            )
        # Pages link to notebooks, which GitHub shows; only the link that downloads one has attributes.
        page.write_text(re.sub(r"\.ipynb\)(?!\{)", ".md)", text), encoding="utf-8")


def up(page: Path, folder: Path) -> str:
    """Return the way from a page to the top of the pages."""
    return "../" * (len(page.relative_to(folder).parts) - 1)


def build(out: Path, work: Path) -> list[str]:
    """Build the site into `out` with `work` for intermediate files; return what is wrong with it."""
    pages = work / "docs"
    for folder in (pages, work / ".cache"):  # with the cache, Zensical keeps pages whose docstrings have changed
        shutil.rmtree(folder, ignore_errors=True)
    copy_pages(pages)
    shutil.copy(HERE / "zensical.toml", work / "zensical.toml")
    # mathml.py is beside this file; the docstrings are those of this checkout.
    search_path = os.pathsep.join((str(HERE), str(ROOT / "src")))
    command = [sys.executable, "-m", "zensical", "build", "--strict", "--config-file", str(work / "zensical.toml")]
    result = subprocess.run(
        command,
        env={**os.environ, "PYTHONPATH": search_path, "NO_COLOR": "1", "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
    )
    if result.returncode:
        return [result.stdout + result.stderr]
    shutil.rmtree(out, ignore_errors=True)
    shutil.copytree(work / "site", out)
    return check_site(out)


def main() -> int:
    """Build the site; return 1 if something is wrong with it."""
    parser = argparse.ArgumentParser(description="Build the documentation site.")
    parser.add_argument("--out", type=Path, default=ROOT / "site")
    parser.add_argument("--work", type=Path, default=ROOT / "build" / "site", help="folder for intermediate files")
    options = parser.parse_args()
    options.work.mkdir(parents=True, exist_ok=True)
    started = time.monotonic()
    problems = build(options.out, options.work)
    for problem in problems:
        print(problem, file=sys.stderr)
    if not problems:
        pages = len(list(options.out.rglob("*.html")))
        print(f"{pages} pages in {time.monotonic() - started:.1f} s: {options.out / 'index.html'}")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())

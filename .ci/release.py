"""Build a release in `dist` and check it: `make dist FILES=https://example.org/lango-store/blob/v0.1.0`.

A package index shows the README without the files that relative links lead to, so the links in the release begin with
FILES, the address of the repository's files at the tag. Nothing is uploaded and no file of the checkout is changed.
"""

import re
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import venv
from collections.abc import Iterator
from pathlib import Path

import readme_renderer.markdown

ROOT = Path(__file__).parents[1]
_LINK = re.compile(r"(?<=\]\()(?!https?:|#)(?P<path>[^)\s]+)")


def with_links(text: str, files: str) -> str:
    """Return Markdown whose relative links begin with the address of the repository's files."""
    return _LINK.sub(lambda link: f"{files.rstrip('/')}/{link['path']}", text)


def faults(readme: str, changelog: str, version: str) -> Iterator[str]:
    """Yield what has to be changed before a release.

    Args:
        readme: The README with absolute links.
        changelog: The changelog.
        version: The version of the release.
    """
    if not re.search(rf"^## \[{re.escape(version)}\] - \d{{4}}-\d\d-\d\d$", changelog, re.M):
        yield f"CHANGELOG.md has no heading `## [{version}] - ` with the date of the release"
    rendered = readme_renderer.markdown.render(readme)
    if rendered is None:
        yield "README.md cannot be rendered"
    for link in re.findall(r'(?:href|src)="([^"]*)"', rendered or ""):
        if not link.startswith(("https://", "http://", "#")):
            yield f"README.md has the relative link {link}"


def main(files: str) -> None:
    """Build and check a release of the last commit."""
    dist = ROOT / "dist"
    if dist.exists():
        sys.exit(f"{dist} exists: move it away")
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder, "tree")
        archive = Path(folder, "tree.tar")
        subprocess.run(["git", "archive", f"--output={archive}", "HEAD"], cwd=ROOT, check=True)
        with tarfile.open(archive) as tar:
            tar.extractall(tree, filter="data")
        project = tomllib.loads(Path(tree, "pyproject.toml").read_text("utf-8"))["project"]
        readme = with_links(Path(tree, "README.md").read_text("utf-8"), files)
        if found := list(faults(readme, Path(tree, "CHANGELOG.md").read_text("utf-8"), project["version"])):
            sys.exit("\n".join(found))
        Path(tree, "README.md").write_text(readme, "utf-8")
        with Path(tree, "pyproject.toml").open("a") as file:
            file.write(
                f'\n[project.urls]\nDocumentation = "{files}/docs/index.md"\nChangelog = "{files}/CHANGELOG.md"\n'
            )
        subprocess.run([sys.executable, "-m", "build", f"--outdir={dist}", str(tree)], check=True)
        (wheel,) = dist.glob("*.whl")
        subprocess.run([sys.executable, "-m", "twine", "check", "--strict", *map(str, dist.iterdir())], check=True)
        environment = Path(folder, "environment")
        venv.create(environment, with_pip=True)
        subprocess.run([environment / "bin/pip", "install", "--quiet", f"{wheel}[postgresql]"], check=True)
        subprocess.run([environment / "bin/lango-store", "demo"], check=True, cwd=folder, stdout=subprocess.DEVNULL)
    print("\n".join(str(path.relative_to(ROOT)) for path in sorted(dist.iterdir())))


if __name__ == "__main__":
    if len(sys.argv) != 2 or not re.fullmatch(r"https://\S+", sys.argv[1]):
        sys.exit("give the address of the repository's files at the tag, which begins with https://")
    main(sys.argv[1].rstrip("/"))

"""The source archive and the wheel: their content, and a wheel that works outside the source folder."""

from __future__ import annotations

import email
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest
from packaging.metadata import Metadata

import triform

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
CHANGELOG = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
INSTALL_PAGE = (ROOT / "docs" / "install.md").read_text(encoding="utf-8")
MAX_WHEEL_BYTES = 2_000_000
TINY_DEMO = """
import sys
from triform.cli import demo
from triform.cli.main import main
from triform.data import builtin_sets

load_pairs, load_text = builtin_sets.load_pairs, builtin_sets.load_text
builtin_sets.load_pairs = lambda path: load_pairs(path)[:200]
builtin_sets.load_text = lambda path: load_text(path)[:20_000]
tiny = {"d_model": 16, "n_heads": 2, "n_layers": 1}
quick = {"train": {"max_steps": 2, "batch_size": 4, "eval_every": 2}, "model": tiny}
demo.SETTINGS = dict.fromkeys(demo.SETTINGS, quick)
sys.argv = ["triform", "demo", "--out", "demo", "--device", "cpu", "--json"]
main()
"""


def run_process(arguments: list[str | Path], folder: Path, *, code: int = 0) -> str:
    """Run a program that does not see the source folder, and return its standard output."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment |= {"OMP_NUM_THREADS": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    completed = subprocess.run(arguments, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert completed.returncode == code, completed.stdout + completed.stderr
    return completed.stdout


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sdist")
    run_process([sys.executable, "-m", "hatchling", "build", "--target", "sdist", "--directory", folder], ROOT)
    return folder / f"triform-{triform.__version__}.tar.gz"


@pytest.fixture(scope="module")
def wheel(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel from the source archive, as pip does for a user who downloads the archive."""
    folder = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    run_process([*pip, "--wheel-dir", folder, sdist], folder)
    return folder / f"triform-{triform.__version__}-py3-none-any.whl"


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A new virtual environment that holds the wheel.

    A .pth file adds the packages of the running environment, because installing torch takes minutes. Python does
    not follow the .pth file of an editable Triform there, so `import triform` finds only the wheel.
    """
    folder = tmp_path_factory.mktemp("environment")
    run_process([sys.executable, "-m", "venv", "--without-pip", folder], folder)
    pip = [sys.executable, "-m", "pip", "--python", folder / "bin" / "python"]
    run_process([*pip, "install", "--quiet", "--no-deps", "--no-index", wheel], folder)
    site_packages = folder / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
    package_folders = [path for path in sys.path if path.endswith("-packages")]
    (site_packages / "dependencies.pth").write_text("\n".join(package_folders), encoding="utf-8")
    return folder


def test_the_source_archive_holds_every_file_that_the_tests_need(sdist: Path) -> None:
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        pytest.skip("needs a git checkout to know which files belong to the project")
    tracked = run_process(["git", "ls-files", "-z"], ROOT).split("\0")
    expected = {name for name in tracked if name and not name.startswith(".") and (ROOT / name).is_file()}
    with tarfile.open(sdist) as archive:
        content = {name.partition("/")[2] for name in archive.getnames()}
    assert not expected - content
    assert not [name for name in content if "__pycache__" in name]


def test_the_wheel_holds_the_package_and_its_data_and_is_small(wheel: Path) -> None:
    assert wheel.stat().st_size < MAX_WHEEL_BYTES
    with zipfile.ZipFile(wheel) as archive:
        content = {name for name in archive.namelist() if ".dist-info/" not in name}
    source = ROOT / "src"
    assert content == {
        path.relative_to(source).as_posix()
        for path in source.rglob("*")
        if path.is_file() and path.suffix != ".pyc"
    }
    assert "triform/py.typed" in content
    assert "triform/data/builtin/__init__.py" in content


def test_the_metadata_of_the_wheel_is_valid_and_complete(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        [name] = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        text = archive.read(name).decode()
    metadata = Metadata.from_email(text, validate=True)
    assert str(metadata.version) == triform.__version__
    assert metadata.description_content_type == "text/markdown"
    assert email.message_from_string(text).get_payload() == (ROOT / "README.md").read_text(encoding="utf-8")
    assert metadata.license_expression == "Apache-2.0"
    assert metadata.license_files == ["LICENSE"]
    assert metadata.project_urls


def test_the_wheel_runs_the_demo_in_a_new_environment_outside_the_source_folder(
    environment: Path, tmp_path: Path
) -> None:
    executables = environment / "bin"
    python = executables / "python"
    package_folder = Path(run_process([python, "-c", "import triform; print(triform.__file__)"], tmp_path).strip())
    assert package_folder.is_relative_to(environment)
    assert run_process([executables / "triform", "--version"], tmp_path) == f"triform {triform.__version__}\n"
    assert "classify" in run_process([executables / "triform", "train", "--help"], tmp_path)
    summary = json.loads(run_process([python, "-c", TINY_DEMO], tmp_path, code=1))  # two steps reach no target
    assert [task["task"] for task in summary["tasks"]] == ["classify", "generate", "translate"]
    assert (tmp_path / "demo" / "index.html").is_file()


def test_the_extra_all_installs_every_other_extra() -> None:
    extras = PROJECT["optional-dependencies"]
    others = sorted(set(extras) - {"all"})
    assert extras["all"] == [f"triform[{','.join(others)}]"]
    assert re.findall(r"^\| `(\w+)` \|", INSTALL_PAGE, re.MULTILINE) == ["all", *others]


def test_the_installation_page_names_the_ranges_of_torch() -> None:
    [accepted] = [requirement for requirement in PROJECT["dependencies"] if requirement.startswith("torch")]
    assert f"| `pyproject.toml` | `{accepted}` |" in INSTALL_PAGE
    installed = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()[-1]
    assert f"| `constraints.txt` | `{installed}` |" in INSTALL_PAGE


def test_the_newest_version_of_the_changelog_is_the_version_of_the_package() -> None:
    assert re.findall(r"^## \[(\d.*?)\]", CHANGELOG, re.MULTILINE)[0] == triform.__version__

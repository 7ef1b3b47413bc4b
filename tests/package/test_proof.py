"""`python -m benchmarks.proof`: lango_store has the properties under faults, and each planted fault is found."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.paths import ROOT

from benchmarks.proof.mutants import MUTANTS
from benchmarks.proof.stores import STORES

OURS = ["lango_store", "lango_store-async"]
QUICKLY_FOUND = ["text-altered", "tail-skips", "id-not-unique"]
PLANTED = MUTANTS if os.environ.get("LANGO_STORE_PLANTED_FAULTS") == "all" else QUICKLY_FOUND


def proof(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "benchmarks.proof", *words]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=180)


@pytest.mark.slow
@pytest.mark.parametrize("database", ["sqlite", pytest.param("postgresql", marks=pytest.mark.postgresql)])
@pytest.mark.parametrize("store", OURS)
def test_lango_store_has_the_properties_under_faults(store: str, database: str) -> None:
    run = proof("--store", store, "--on", database, "--seconds", "5")
    assert (run.returncode, run.stderr) == (0, ""), run.stdout
    assert run.stdout.count("| none") == 9


@pytest.mark.slow
@pytest.mark.timeout(200)
@pytest.mark.parametrize("mutant", PLANTED)
def test_planted_fault_is_found(mutant: str) -> None:
    database = "postgresql" if mutant == "resend-without-id" else "sqlite"  # only a cut connection shows it
    run = proof("--store", "lango_store", "--on", database, "--seconds", "120", "--mutant", mutant)
    assert (run.returncode, run.stderr) == (1, ""), run.stdout
    assert f"python -m benchmarks.proof --store lango_store --on {database} --trial " in run.stdout


@pytest.mark.slow
def test_each_planted_fault_replaces_code_that_exists() -> None:
    code = "from benchmarks.proof.mutants import MUTANTS\nfor plant in MUTANTS.values(): plant()"
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert (run.returncode, run.stderr) == (0, "")


def test_each_store_has_an_adapter_on_the_page() -> None:
    page = (ROOT / "docs" / "why" / "proof.md").read_text()
    assert [name for name in STORES if f"`{name}`" not in page] == []
    for named in STORES.values():
        assert Path(ROOT, *named.module.split(".")).with_suffix(".py").exists()

"""The pages for users: what they show works, and what they list is what there is."""

from __future__ import annotations

import importlib
import json
import re
from pathlib import Path

import pytest

import zephon
from zephon import Pipeline
from zephon.launch import preflight
from zephon.launch.config.compose import compose
from zephon.run.directory import RunDir

DOCS = Path(__file__).resolve().parents[1] / "docs"


def page(name: str) -> str:
    return (DOCS / name).read_text("utf-8")


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


def test_the_experiment_of_the_quick_start_can_begin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (data,), (experiment,) = blocks(page("quickstart.md"), "json"), blocks(page("quickstart.md"), "yaml")
    Path("notes").mkdir()
    Path("notes/a.jsonl").write_text(data)
    assert [set(json.loads(line)) for line in data.splitlines()] == [{"text", "source"}, {"text"}]
    Path("exp.yaml").write_text(experiment)
    assert all("#" in line for line in experiment.splitlines() if re.search(r": [^/]*\w", line))
    spec = compose(["conf=./exp.yaml"]).spec
    assert (spec.name, spec.tokenizer.id, spec.trainer.steps) == ("notes", "bytes", 100)
    preflight.check(spec, RunDir("runs/notes"))


def test_the_reference_lists_every_public_name_and_every_method_and_nothing_else() -> None:
    text = page("reference.md")
    head, methods, launcher = re.split(r"\n## ", text)
    listed = [name for row in re.findall(r"^\| (`.*?`) \|", head, re.MULTILINE) for name in re.findall(r"\w+", row)]
    assert sorted(listed) == sorted(zephon.__all__)
    shown = {name for row in re.findall(r"^\| (`.*?`) \|", methods, re.MULTILINE) for name in re.findall(r"\w+", row)}
    public = {name for name in dir(Pipeline) if not name.startswith("_")}
    assert shown - public == set()
    assert public - shown <= {"follow", "text", "head"}, "what only other rooms of the package call"
    for names, module in re.findall(r"((?:`\w+\([^`]*`(?:,? and |, )?)+)\s*of\s+`(zephon[\w.]+)`", launcher):
        for name in re.findall(r"`(\w+)\(", names):
            assert hasattr(importlib.import_module(module), name), (module, name)


@pytest.mark.parametrize("name", sorted(path.name for path in DOCS.glob("*.md")))
def test_links_between_pages_lead_somewhere(name: str) -> None:
    links = [link.partition("#")[0] for link in re.findall(r"\]\(([^)\s]+)\)", page(name)) if "://" not in link]
    assert [link for link in links if link and not (DOCS / link).exists()] == []


def test_every_recipe_is_named_on_the_page_about_own_loops() -> None:
    recipes = {path.stem for path in (DOCS.parent / "examples" / "recipes").glob("*.py")} - {"__init__", "common"}
    assert set(re.findall(r"examples\.recipes\.(\w+)", page("own_loop.md"))) == recipes

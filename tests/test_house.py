"""House rules as tests: who may import whom, what is exported, which options there are, what is never called."""

from __future__ import annotations

import ast
import dataclasses
import functools
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import zephon
from zephon.pipeline.options import Options

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "zephon"

GROUND = ["exits", "errors", "types", "seeds", "fastjson", "world", "cursor", "batch", "handover"]
LOADER = ["io", "work", "ops", "engine", "pipeline"]
# Each room may import itself and the rooms in its line.
ALLOWED = {
    **dict.fromkeys(GROUND, GROUND),
    "batch": [*GROUND, "spec"],  # its options are declared fields
    "spec": ["exits", "errors"],
    "run": [*GROUND, "spec"],
    "io": [*GROUND, "spec", "run"],
    "work": [*GROUND, "spec", "run", "io"],
    "ops": [*GROUND, "spec", "run", "io"],
    "engine": [*GROUND, "spec", "run", "io", "work", "ops"],
    "pipeline": [*GROUND, "spec", "run", "io", "work", "ops", "engine"],
    "__init__": [*GROUND, *LOADER],
    "train": [*GROUND, "spec", "run", *LOADER, "__init__"],
    "integrations": [*GROUND, "spec", "run", *LOADER, "__init__", "launch", "train"],
    "report": [*GROUND, "spec", "run"],
    "stages": [*GROUND, "spec", "run", "io"],
    "agent": [*GROUND, "spec", "run", "stages"],
    "launch": [*GROUND, "spec", "run", *LOADER, "report", "stages", "agent", "__init__"],
}
OUTSIDE = [*GROUND, "spec", "run", "report", "stages"]
FREE_OF = {  # what may not be imported, not even late, in these rooms
    "torch": [*set(GROUND) - {"batch"}, "spec", "run", "io", "work", "report", "stages", "launch"],
    "hydra": [*OUTSIDE, *LOADER, "train", "agent", "integrations"],
    "kubernetes": [*OUTSIDE, *LOADER, "train", "agent", "integrations"],
    "torchx": [*OUTSIDE, *LOADER, "train", "agent", "integrations"],
}


PRIVATE_OF_OTHERS = [  # the end of a forked interpreter, and Hydra's tree for --info: no public name does this
    "atexit._run_exitfuncs",
    "node._get_node",
    "threading._shutdown",
]


@functools.cache
def modules() -> list[tuple[str, Path, ast.Module]]:
    """(room, file, its syntax tree) of all modules of the package."""
    paths = sorted(PACKAGE.rglob("*.py"))
    rooms = [path.relative_to(PACKAGE).parts[0].removesuffix(".py") for path in paths]
    return [(room, path, ast.parse(path.read_text("utf-8"))) for room, path in zip(rooms, paths, strict=True)]


def imports(tree: ast.Module) -> Iterator[tuple[str, int]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            yield node.module, node.lineno
            if node.module == "zephon":
                yield from ((f"zephon.{alias.name}", node.lineno) for alias in node.names)


def test_imports_point_one_way() -> None:
    wrong = []
    for room, path, tree in modules():
        for name, line in imports(tree):
            if name.startswith("zephon."):
                target = name.split(".")[1]
                known = (PACKAGE / target).exists() or (PACKAGE / f"{target}.py").exists()
                if known and target != room and target not in ALLOWED[room]:
                    wrong.append(f"{path.relative_to(ROOT)}:{line} imports {name}")
    assert not wrong, "\n".join(wrong)


def test_the_architecture_page_says_the_same_arrows() -> None:
    """One line a room: what it may import, in the page's order; ``ground`` stands for the modules that all rooms use."""
    page = (ROOT / "docs" / "architecture.md").read_text("utf-8")
    said = dict(re.findall(r"^\| `(\w+)` \| (.*?) \|", page, re.M))
    expected = {}
    for room, below in ALLOWED.items():
        if room not in GROUND:
            words = [f"`{name}`" for name in below if name not in GROUND]
            ground = "ground" if set(GROUND) <= set(below) else " ".join(f"`{name}`" for name in below if name in GROUND)
            expected[room] = " ".join([ground, *words]).strip()
    assert {room: said.get(room) for room in expected} == expected
    assert re.search(r"^ground: (.*)$", page, re.M)[1] == " ".join(f"`{name}`" for name in GROUND)  # type: ignore[index]


def test_no_import_goes_in_a_circle() -> None:
    """Module by module, late imports and imports for types included."""
    names = {}
    for _, path, tree in modules():
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        names[name] = tree
    arrows: dict[str, set[str]] = {}
    for name, tree in names.items():
        arrows[name] = set()
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                arrows[name] |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                arrows[name] |= {
                    full if (full := f"{node.module}.{alias.name}") in names else node.module for alias in node.names
                }
        arrows[name] = (arrows[name] & set(names)) - {name}
    left = dict(arrows)
    while True:
        imported = {target for targets in left.values() for target in targets}
        free = [name for name, targets in left.items() if not targets & set(left) or name not in imported]
        if not free:
            break
        for name in free:
            del left[name]
    assert not left, f"these import each other: {sorted(left)}"


def test_no_module_reaches_for_another_ones_private_names() -> None:
    public = {"_replace", "_asdict", "_fields", "_exit", "_make"}  # documented names of the standard library
    wrong = []
    for _, path, tree in modules():
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and node.attr.startswith("_") and not node.attr.startswith("__"):
                own = isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")
                inherited = isinstance(node.value, ast.Call) and ast.unparse(node.value) == "super()"
                if not own and not inherited and node.attr not in public:
                    wrong.append(ast.unparse(node))
            elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("zephon"):
                wrong += [
                    f"{path.relative_to(ROOT)}:{node.lineno} {alias.name}"
                    for alias in node.names
                    if alias.name.startswith("_") and not alias.name.startswith("__")
                ]
    assert sorted(wrong) == PRIVATE_OF_OTHERS


def test_only_backends_know_which_backend_it_is() -> None:
    """Everybody else asks the backend's object what it can do."""
    wrong = []
    for _, path, tree in modules():
        if "backends" in path.parts:
            continue
        for node in ast.walk(tree):
            if isinstance(node, (ast.Compare, ast.match_case)):
                words = {n.value for n in ast.walk(node) if isinstance(n, ast.Constant) and isinstance(n.value, str)}
                if words & {"local", "kubernetes", "volcano"}:
                    wrong.append(f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', node)} {ast.unparse(node)}")
    assert not wrong, "\n".join(wrong)


ONLY_IN = [  # (what may be imported, below which path, in which modules alone)
    ("hydra._internal", "", ()),
    ("torchx.runner", "", ("launch/backends/submission.py",)),
    ("asyncio", "agent", ("coordinator.py", "door.py", "server.py", "stage_runner.py", "training.py")),
    ("zephon.run.directory", "agent", ("coordinator.py", "entry.py", "stage_runner.py", "training.py")),
    ("json", "agent", ("entry.py", "fork_messages.py", "messages.py")),
    ("numpy", "run", ("ledger.py",)),
]


@pytest.mark.parametrize(("library", "below", "where"), ONLY_IN)
def test_some_imports_belong_to_a_few_modules(library: str, below: str, where: tuple[str, ...]) -> None:
    """State machines have no I/O, each protocol is read and written in one module, and the run room stays light."""
    allowed = {PACKAGE / below / name for name in where}
    wrong = [
        f"{path.relative_to(ROOT)}:{line} imports {name}"
        for _, path, tree in modules()
        if path.is_relative_to(PACKAGE / below) and path not in allowed
        for name, line in imports(tree)
        if f"{name}.".startswith(f"{library}.")
    ]
    assert not wrong, "\n".join(wrong)
    assert all(path.exists() for path in allowed)


def test_types_are_said() -> None:
    """`Any` is for the edges of untyped libraries; a new one has to find its place among these."""
    count = sum(len(re.findall(r"\bAny\b", path.read_text("utf-8"))) for path in sorted(PACKAGE.rglob("*.py")))
    assert count < 250, count


@pytest.mark.parametrize("library", sorted(FREE_OF))
def test_heavy_libraries_stay_in_their_rooms(library: str) -> None:
    wrong = [
        f"{path.relative_to(ROOT)}:{line}"
        for room, path, tree in modules()
        if room in FREE_OF[library]
        for name, line in imports(tree)
        if name.split(".")[0] == library
    ]
    assert not wrong, "\n".join(wrong)


def test_importing_zephon_imports_no_heavy_library_and_starts_nothing() -> None:
    code = (
        "import sys, threading, os; before = set(os.environ.items()); import zephon;"
        "print(sorted({'torch', 'torchx', 'kubernetes', 'hydra', 'tokenizers', 'fastokens'} & set(sys.modules)),"
        "threading.active_count(), set(os.environ.items()) == before)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.strip() == "[] 1 True"


def test_the_public_names_are_these() -> None:
    assert sorted(zephon.__all__) == [
        "Address",
        "Dataset",
        "InMemoryShard",
        "MixtureSpec",
        "Phase",
        "PhasedMixtureWorkSource",
        "Pipeline",
        "SampleBatch",
        "SampleMeta",
        "SampleRecord",
        "StaticMixtureWorkSource",
        "TokenEstimation",
        "WorkSource",
        "ZephonError",
        "__version__",
        "load_tokenizer",
        "merge_states",
        "trace",
    ]
    for name in zephon.__all__:
        assert hasattr(zephon, name)


def test_the_options_of_a_pipeline_are_these() -> None:
    """A new option edits this list and says in its commit why no existing one would do."""
    assert [field.name for field in dataclasses.fields(Options)] == [
        "runner",
        "max_workers",
        "deterministic",
        "isolated",
        "prefetch_batches",
        "prefetch_bytes",
        "flush_every_k_chunks",
        "io_options",
        "dp_degree",
        "dp_group_id",
        "world_size",
        "global_rank",
        "canonical_replicas",
        "global_batch_size",
        "lanes_allow",
        "mapping_strategy",
        "run_id",
        "auto_validation",
        "on_error",
        "quarantine_budget",
        "last_step",
    ]


BANNED_IN_PURE_ROOMS = {"hash", "random", "time", "datetime", "uuid", "secrets"}


def test_order_never_comes_from_hash_clock_or_global_randomness() -> None:
    wrong = []
    for room, path, tree in modules():
        if room not in ("work", "ops", "seeds", "world", "cursor"):
            continue
        for node in ast.walk(tree):
            called = isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "hash"
            imported = isinstance(node, (ast.Import, ast.ImportFrom)) and any(
                name.split(".")[0] in BANNED_IN_PURE_ROOMS for name, _ in imports(ast.Module([node], []))
            )
            global_random = (
                isinstance(node, ast.Attribute)
                and node.attr in ("seed", "rand", "randint", "shuffle", "default_rng", "permutation")
                and isinstance(node.value, ast.Attribute)
                and node.value.attr == "random"
            )
            if called or imported or global_random:
                wrong.append(f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 0)}")
    assert not wrong, "\n".join(wrong)


def test_tests_on_clusters_sleep_only_in_the_helper_that_waits_for_a_condition() -> None:
    sleeps = []
    for path in sorted((ROOT / "tests" / "kubernetes").glob("*.py")):
        tree = ast.parse(path.read_text())
        helper = {id(node) for function in tree.body if getattr(function, "name", "") == "until" for node in ast.walk(function)}
        for node in ast.walk(tree):
            name = getattr(node, "attr", "") or getattr(node, "id", "")
            if name == "sleep" and not (path.name == "conftest.py" and id(node) in helper):
                sleeps.append(f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 0)}")
    assert not sleeps, "\n".join(sleeps)


def test_listings_are_sorted_where_they_are_made() -> None:
    """Only the listing module lists files for datasets, and it returns them sorted; the cache lists its own, by age.

    A file system that forwards to another one (``self.inner()``) only passes the listing on to it.
    """
    wrong = []
    for room, path, tree in modules():
        if room not in ("work", "ops", "io") or path.name in ("listing.py", "builtin.py", "cache.py"):
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and node.attr in ("listdir", "scandir", "glob", "iterdir", "walk", "find", "ls"):
                text = ast.unparse(node)
                if not text.startswith(("data.", "content.", "more.", "line.", "raw.", "text.", "ast.", "self.inner().")):
                    wrong.append(f"{path.relative_to(ROOT)}:{node.lineno} {text}")
    assert not wrong, "\n".join(wrong)


def test_files_stay_readable_in_one_sitting() -> None:
    lengths = {path: len(path.read_text("utf-8").splitlines()) for _, path, _ in modules()}
    long = {str(path.relative_to(ROOT)): lines for path, lines in lengths.items() if lines > 400}
    assert not long, long
    assert sorted(lengths.values())[len(lengths) // 2] <= 200


GONE = {  # words of a private language, and the field's word for each
    "regroup": "re-rendezvous",
    "drought": "no-progress guard",
    "harvest": "no-progress guard",
    "shelf": "bounded queue",
    "shelves": "bounded queue",
    "slab": "row buffer",
    "inflow": "tokens_in",
    "lift_tokens": "extract_token_columns",
    "warm server": "fork server",
    "ticket": "handle",
    "seat": "process info",
    "endings": "process helpers",
    "want_nodes": "target",
    "left_out": "dropped",
    "left out": "dropped, skipped",
    "leaves out": "drops, skips",
    "left behind": "excluded, remains",
    "last words": "message",
    "has spoken": "has reported",
    "jump": "skipped steps",
    "pass_over": "skip",
    "tail_chunks": "carried_chunks",
    "one behind the other": "concatenated, one after the other",
    "given out": "emitted",
    "taken up": "consumed",
    "whoever": "the caller, or the part's name",
    "without a word": "silently",
    "alike": "consistent, the same",
    "dealt": "assigned",
    "made anew": "rebuilt",
    "lost silently": "dropped silently",
    "behind your back": "silently",
}
VAGUE = {"found", "one", "made", "each", "mine", "said", "told", "alike"}  # a variable has the thing's name
WITH_NAMES = [*GROUND, *LOADER, "__init__", "spec", "train", "integrations", "report"]


def test_words_that_are_gone_stay_away() -> None:
    """In names and prose; names of tests that a page lists do not count."""
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    wrong = []
    for path in [*(path for _, path, _ in modules()), *sorted((ROOT / "conf").rglob("*.yaml")), *pages]:
        text = re.sub(r"`[^`\n]*::[^`\n]*`|[`\"]endings[`\"]", "", path.read_text("utf-8").lower())  # HellaSwag's field
        for word, better in GONE.items():
            for match in re.finditer(rf"(?<![a-z]){word}(s|ed|ing)?(?![a-z])", text) if word in text else ():
                number = text.count("\n", 0, match.start()) + 1
                wrong.append(f"{path.relative_to(ROOT)}:{number} says {match.group()!r}: say {better!r}")
    assert not wrong, "\n".join(wrong)


def test_variables_have_the_name_of_the_thing() -> None:
    wrong = []
    for room, path, tree in modules():
        for node in ast.walk(tree) if room in WITH_NAMES else ():
            name = node.arg if isinstance(node, ast.arg) else node.id if isinstance(node, ast.Name) else ""
            if name in VAGUE:
                wrong.append(f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 0)} {name}")
    assert not wrong, "\n".join(wrong)


def test_pages_name_files_that_exist() -> None:
    """By their path, or by the end of it from a folder on: ``ops/pack.py``."""
    listed = subprocess.run(["git", "ls-files"], capture_output=True, text=True, cwd=ROOT, check=False).stdout.split("\n")
    ends = {"/".join(parts[i:]) for name in listed for parts in [name.split("/")] for i in range(len(parts))}
    wrong = []
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]:
        names = re.findall(r"(?<![\w./{},-])([\w.-]+/[\w./-]*\.py)\b", page.read_text("utf-8"))
        wrong += [f"{page.relative_to(ROOT)}: {name}" for name in names if name.removeprefix("../") not in ends]
    assert not wrong, "\n".join(wrong)


def test_every_module_says_what_it_is() -> None:
    silent = [
        str(path.relative_to(ROOT)) for _, path, tree in modules() if not ast.get_docstring(tree) and path.stat().st_size > 0
    ]
    assert not silent


def test_nothing_in_the_repository_names_this_machine_or_a_registry() -> None:
    patterns = [
        "/wo" + "rk/",
        "/ro" + "ot/",
        "py" + "pi.org",
        "files.python" + "hosted",
        "registry." + "npmjs",
        "/opt/wh" + "eels",
    ]
    listed = subprocess.run(["git", "ls-files"], capture_output=True, text=True, cwd=ROOT, check=False).stdout.split("\n")
    found = []
    for name in filter(None, listed):
        path = ROOT / name
        if path.is_file() and path.stat().st_size < 1 << 20:
            text = path.read_text("utf-8", errors="ignore")
            found += [f"{name}: {pattern}" for pattern in patterns if pattern in text]
    assert not found, "\n".join(found)

"""The objects of a job, whole and readable, and accepted by the schemas of every supported version."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from tests.kubernetes.samples import RUNS_VOLUME, assert_golden, sample_app, sample_options, sample_spec
from zephon.errors import ConfigError
from zephon.launch.appdef import app_def
from zephon.launch.backends.kubernetes.manifest import Request, build, owned_by, with_value
from zephon.launch.job import Job
from zephon.spec.experiment import RunSpec

VERSIONS = [f"1.{minor}" for minor in range(29, 38)]

RICH = {
    "image_pull_secrets": ["registry"],
    "service_account": "zephon-job",
    "node_selector": {"pool": "gpu"},
    "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}],
    "affinity": {"podAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}},
    "priority_class": "training",
    "topology_spread": "require",
    "watch": True,
    "volumes": {
        **RUNS_VOLUME,
        "cache": {"mount": "/cache", "empty_dir": "50Gi"},
        "data": {"mount": "/data", "claim": "corpus", "read_only": True, "sub_path": "v2"},
    },
    "env": {"NCCL_DEBUG": "WARN"},
    "env_from_secrets": {"AWS_SECRET_ACCESS_KEY": {"secret": "s3", "key": "secret"}},
    "shm_size": "16Gi",
    "queue": "team",
    "queue_priority": "high",
    "overlay": {
        "nodes": {"spec": {"containers": [{"name": "main", "resources": {"limits": {"rdma/hca": 1}}}]}},
        "pods": {"metadata": {"annotations": {"team": "nlp"}}},
        "job": {"metadata": {"annotations": {"cost-centre": "42"}}, "spec": {"activeDeadlineSeconds": 86400}},
    },
}


def built(**options: object) -> Request:
    return build(sample_app(), sample_options(**options), submission="0123")


def test_stages_need_no_object_and_no_right_beyond_those_of_training() -> None:
    plain = {
        "name": "exp1",
        "runs": "/runs",
        "global_batch_size": 16,
        "data": {"datasets": {"docs": {"path": "stdlib://docs"}}},
        "pipeline": {"context_length": 32},
        "trainer": {"steps": 9},
    }
    staged = {**plain, "stages": {"order": ["doctor", "calibrate", "train"]}}

    def text(spec: dict[str, object]) -> tuple[str, str]:
        resolved = RunSpec.from_dict(spec)
        app = app_def(Job(spec=resolved, run="/runs/exp1", attempt=1))
        *documents, config = sorted(build(app, sample_options(), submission="0").documents, key=lambda one: "data" in one)
        return yaml.safe_dump_all(documents).replace(resolved.sha256()[:16], "SHA"), config["data"]["spec.json"]

    (before, without), (after, given) = text(plain), text(staged)
    unlike = [pair for pair in zip(before.splitlines(), after.splitlines(), strict=True) if pair[0] != pair[1]]
    assert all("zephon/spec-sha256: SHA" in line for pair in unlike for line in pair), unlike
    assert ("stages" in without, "stages" in given) == (False, True)


def without_spec(text: str, spec: RunSpec) -> str:
    """The document without the experiment's own text and digest, which grow with every field of a RunSpec."""
    return text.replace(spec.canonical_json(), "SPEC").replace(spec.sha256(), "SHA256").replace(spec.sha256()[:16], "SHA")


def test_a_plain_job_is_this_document() -> None:
    assert_golden("plain.yaml", without_spec(built().to_yaml(), sample_spec()))


def test_every_option_and_the_overlay_give_this_document() -> None:
    assert_golden("rich.yaml", without_spec(built(**RICH).to_yaml(), sample_spec()))


@pytest.mark.parametrize("version", VERSIONS)
def test_every_supported_version_knows_every_field(version: str) -> None:
    job, _, _, _, coordinator = built(**RICH).documents
    for document in (job, owned_by(coordinator, [{**job, "metadata": {"name": "j", "uid": "u"}}])):
        kubernetes_validate.validate(document, version, strict=True)


@pytest.mark.parametrize("version", [VERSIONS[0], VERSIONS[-1]])
def test_the_oldest_and_the_newest_version_accept_the_plain_job_too(version: str) -> None:
    for document in built().documents:
        kubernetes_validate.validate(document, version, strict=True)


def test_the_schema_check_can_fail() -> None:
    job = copy.deepcopy(built().documents[0])
    job["spec"]["paralelism"] = 4
    with pytest.raises(kubernetes_validate.ValidationError, match="paralelism"):
        kubernetes_validate.validate(job, "1.37", strict=True)


def test_a_dry_run_prints_what_is_sent() -> None:
    request = built()
    assert tuple(yaml.safe_load_all(request.to_yaml())) == request.documents


def test_the_secret_has_no_value_before_it_is_sent_and_every_pod_mounts_it_for_its_group_alone() -> None:
    job, _, secret, _, coordinator = built().documents
    name = secret["metadata"]["name"]
    assert not {"data", "stringData"} & set(secret)
    for template in (job["spec"]["template"], coordinator["spec"]["template"]):
        (volume,) = [volume for volume in template["spec"]["volumes"] if volume["name"] == "attempt-secret"]
        assert volume["secret"] == {"secretName": name, "defaultMode": 0o440}
        (container,) = template["spec"]["containers"]
        assert {"name": "ZEPHON_SECRET_FILE", "value": "/etc/zephon-secret/secret"} in container["env"]
    first, second = with_value(secret)["stringData"], with_value(secret)["stringData"]
    assert len(first["secret"]) == 64
    assert first != second
    assert not {"data", "stringData"} & set(secret), "the plan's own document stays without"


def test_nothing_of_the_users_environment_is_in_a_manifest(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HF_TOKEN", "WANDB_API_KEY", "AWS_SECRET_ACCESS_KEY", "KUBECONFIG"):
        monkeypatch.setenv(name, "marker-of-a-secret")
    assert "marker-of" not in built(**RICH).to_yaml()


def test_each_submit_has_a_secret_of_its_own_name() -> None:
    names = {build(sample_app(), sample_options(), submission=hex * 16).documents[2]["metadata"]["name"] for hex in "ab"}
    assert names == {"exp1-1-aaaaaaaaaaaa", "exp1-1-bbbbbbbbbbbb"}


def test_building_twice_gives_the_same_and_changes_nothing() -> None:
    app, options = sample_app(), sample_options(**RICH)
    before = copy.deepcopy((app.roles, app.metadata, options.to_dict()))
    assert build(app, options, submission="s") == build(app, options, submission="s")
    assert (app.roles, app.metadata, options.to_dict()) == before


def test_the_components_own_app_builds() -> None:
    spec = RunSpec.from_dict(
        {
            "name": "exp1",
            "nodes": 2,
            "global_batch_size": 8,
            "data": {"datasets": {"docs": {"path": "stdlib://docs"}}},
            "pipeline": {"context_length": 32},
            "trainer": {"steps": 3},
        }
    )
    request = build(app_def(Job(spec=spec, run="/runs/exp1", attempt=3)), sample_options(), submission="s")
    job, config_map, _ = request.documents[:3]
    assert request.name == "exp1-3"
    assert config_map["data"]["spec.json"] == spec.canonical_json()
    assert job["metadata"]["annotations"]["zephon/spec-sha256"] == spec.sha256()
    assert job["spec"]["parallelism"] == job["spec"]["completions"] == 2


def test_the_node_count_is_nowhere_in_the_nodes_pods() -> None:
    def documents(nodes: int) -> list[dict[str, Any]]:
        text = build(sample_app(nodes=nodes), sample_options(), submission="s").to_yaml()
        return list(yaml.safe_load_all(without_spec(text, sample_spec(nodes=nodes))))

    few, many = documents(2), documents(8)
    assert few[0]["spec"]["template"] == many[0]["spec"]["template"]
    assert few[1:4] == many[1:4]


def test_the_grace_period_outlasts_the_drain() -> None:
    app = sample_app(elastic={"drain_s": 240.5})
    assert (
        build(app, sample_options(), submission="s").documents[0]["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]
        == 271
    )
    with pytest.raises(ConfigError, match="drain budget"):
        build(app, sample_options(grace_s=240), submission="s")


@pytest.mark.parametrize("run", ["runs/exp1", "/elsewhere/exp1", "file:///elsewhere/exp1", "/runsx/exp1"])
def test_a_run_directory_that_dies_with_its_pod_is_refused(run: str) -> None:
    with pytest.raises(ConfigError, match="on no volume"):
        build(sample_app(run=run), sample_options(), submission="s")


@pytest.mark.parametrize("run", ["/runs/exp1", "file:///runs/exp1", "s3://bucket/exp1"])
def test_a_run_directory_on_a_volume_or_in_a_store_is_accepted(run: str) -> None:
    assert build(sample_app(run=run), sample_options(), submission="s").name == "exp1-1"


def test_without_a_queue_there_is_no_trace_of_kueue() -> None:
    assert "kueue" not in built().to_yaml()


def test_an_image_that_may_change_under_the_run_is_remarked() -> None:
    app = sample_app()
    app.roles[0].image = "repo/zephon:1"
    text = build(app, sample_options(), submission="s").to_yaml()
    assert text.startswith("# note: image repo/zephon:1 is a tag: later pods may run other code\n")
    assert "# note" not in built().to_yaml()


def test_no_value_of_a_secret_can_be_given() -> None:
    with pytest.raises(ConfigError, match=r"env_from_secrets\.TOKEN\.value is not a known field"):
        built(env_from_secrets={"TOKEN": {"value": "hunter2"}})


def test_only_the_watchers_container_has_a_token_and_it_has_no_secret_of_the_attempt(tmp_path: Path) -> None:
    (tmp_path / "mine.py").touch()
    options = sample_options(watch=True, service_account="zephon-job", workspace=str(tmp_path))
    *_, deployment = build(sample_app(), options, submission="x").documents
    main, watcher = deployment["spec"]["template"]["spec"]["containers"]
    mounts = [{mount["name"] for mount in container["volumeMounts"]} for container in (main, watcher)]
    assert mounts[0] - mounts[1] == {"attempt-secret", "workspace"}
    assert mounts[1] - mounts[0] == {"watcher-token"}
    assert "ZEPHON_SECRET_FILE" not in {entry["name"] for entry in watcher["env"]}
    with pytest.raises(ConfigError, match="watch=true is set without service_account"):
        sample_options(watch=True)

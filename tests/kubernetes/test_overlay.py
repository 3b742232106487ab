"""An overlay is applied completely or refused."""

from __future__ import annotations

import re

import pytest

from tests.kubernetes.samples import sample_app, sample_options
from zephon.errors import ConfigError
from zephon.launch.backends.kubernetes.manifest import Request, build
from zephon.launch.backends.kubernetes.overlay import apply_overlay, changes


def overlaid(overlay: dict[str, object]) -> Request:
    return build(sample_app(), sample_options(overlay=overlay), submission="s")


def test_metadata_and_spec_of_one_object_are_both_applied() -> None:
    job = overlaid({"job": {"metadata": {"labels": {"a": "b"}}, "spec": {"activeDeadlineSeconds": 5}}}).documents[0]
    assert job["metadata"]["labels"]["a"] == "b"
    assert job["spec"]["activeDeadlineSeconds"] == 5
    assert job["metadata"]["labels"]["zephon/run"] == "exp1"


def test_pods_reach_both_templates_and_nodes_only_one() -> None:
    request = overlaid({"pods": {"spec": {"hostNetwork": True}}, "nodes": {"spec": {"hostIPC": True}}})
    node, coordinator = (request.documents[i]["spec"]["template"]["spec"] for i in (0, 4))
    assert node["hostNetwork"] is coordinator["hostNetwork"] is True
    assert "hostIPC" in node
    assert "hostIPC" not in coordinator


def test_named_lists_merge_and_plain_lists_replace() -> None:
    container = {"name": "main", "env": [{"name": "HOME", "value": "/x"}, {"name": "NEW", "value": "1"}], "command": ["sh"]}
    mount = {"name": "spec", "mountPath": "/also"}
    patch = {"spec": {"containers": [container | {"volumeMounts": [mount]}, {"name": "sidecar", "image": "i"}]}}
    main, sidecar = overlaid({"nodes": patch}).documents[0]["spec"]["template"]["spec"]["containers"]
    env = {item["name"]: item.get("value") for item in main["env"]}
    assert (env["HOME"], env["NEW"], env["PYTHONUNBUFFERED"]) == ("/x", "1", "1")
    assert main["command"] == ["sh"]
    assert [item["mountPath"] for item in main["volumeMounts"] if item["name"] == "spec"] == ["/etc/zephon", "/also"]
    assert sidecar == {"name": "sidecar", "image": "i"}


def test_null_removes_and_removing_nothing_is_an_error() -> None:
    assert "ttlSecondsAfterFinished" not in overlaid({"job": {"spec": {"ttlSecondsAfterFinished": None}}}).documents[0]["spec"]
    with pytest.raises(
        ConfigError, match=r"overlay\.job\.spec\.ttlSecondsAfterFinish=null removes something that is not there"
    ):
        overlaid({"job": {"spec": {"ttlSecondsAfterFinish": None}}})


@pytest.mark.parametrize(
    ("overlay", "message"),
    [
        ({"jobs": {}}, "overlay.jobs names no object"),
        ({"job": {"spec": {"parallelism": 2}}}, "overlay.job.spec.parallelism cannot be overlaid"),
        ({"job": {"spec": {"template": {}}}}, "overlay.job.spec.template cannot be overlaid"),
        ({"service": {"metadata": {"name": "x"}}}, "overlay.service.metadata.name cannot be overlaid"),
        ({"nodes": {"spec": {"containers": "x"}}}, "another shape than the list"),
        ({"nodes": {"spec": {"subdomain": {"a": 1}}}}, "another shape than the str"),
        ({"nodes": ["x"]}, "is not a mapping"),
    ],
)
def test_what_cannot_be_merged_is_named(overlay: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        overlaid(overlay)


def test_every_leaf_of_an_overlay_is_in_the_printed_difference() -> None:
    request = overlaid(
        {"nodes": {"spec": {"containers": [{"name": "main", "tty": True}]}}, "job": {"spec": {"ttlSecondsAfterFinished": 1}}}
    )
    assert request.overlaid == (
        "job.spec.template.spec.containers[main].tty: (absent) -> True",
        "job.spec.ttlSecondsAfterFinished: 86400 -> 1",
    )
    assert request.to_yaml().startswith("# overlay: job.spec.template.spec.containers[main].tty: (absent) -> True\n")


def test_the_built_objects_stay_as_they_were() -> None:
    built = {"job": {"spec": {"a": [1]}}}
    merged = apply_overlay(built, {"job": {"spec": {"a": [2]}}})
    assert built == {"job": {"spec": {"a": [1]}}}
    assert list(changes(built, merged)) == ["job.spec.a: [1] -> [2]"]

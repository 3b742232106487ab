"""k8s/ renders to these documents, which every supported version accepts."""

from __future__ import annotations

import subprocess
from typing import Any

import kubernetes_validate
import pytest
import yaml

from tests.kubernetes.conftest import ROOT, tool
from tests.kubernetes.samples import assert_golden
from tests.kubernetes.test_manifest import VERSIONS

FOLDERS = ("base", "overlays/kind", "overlays/gpu")


def render(folder: str) -> str:
    """``kubectl kustomize`` of the kubectl in the test tools: no cluster is asked."""
    kubectl = str(tool("kube", "controlplane").binary())
    done = subprocess.run([kubectl, "kubectl", "kustomize", str(ROOT / "k8s" / folder)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.kubernetes
@pytest.mark.parametrize("folder", FOLDERS)
def test_the_folder_renders_to_its_golden_file(folder: str) -> None:
    assert_golden(f"k8s-{folder.rsplit('/')[-1]}.yaml", render(folder))


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("folder", FOLDERS)
def test_every_supported_version_accepts_it(folder: str, version: str) -> None:
    documents: list[dict[str, Any]] = list(
        yaml.safe_load_all((ROOT / f"tests/kubernetes/golden/k8s-{folder.rsplit('/')[-1]}.yaml").read_text())
    )
    assert documents
    for document in documents:
        if not document["apiVersion"].startswith("kueue.x-k8s.io"):  # a custom resource: no schema in Kubernetes itself
            kubernetes_validate.validate(document, version, strict=True)
        assert (
            document["kind"] in ("Namespace", "ClusterQueue", "ResourceFlavor") or document["metadata"]["namespace"] == "zephon"
        )


def test_no_role_reaches_secrets_other_namespaces_or_everything() -> None:
    documents = [
        d
        for f in FOLDERS
        for d in yaml.safe_load_all((ROOT / f"tests/kubernetes/golden/k8s-{f.rsplit('/')[-1]}.yaml").read_text())
    ]
    assert not [d for d in documents if d["kind"] in ("ClusterRole", "ClusterRoleBinding")]
    rules = [rule for d in documents if d["kind"] == "Role" for rule in d["rules"]]
    assert rules
    for rule in rules:
        assert "*" not in [*rule["apiGroups"], *rule["resources"], *rule["verbs"]]
        assert not {"secrets", "pods/exec", "roles", "serviceaccounts"} & set(rule["resources"])

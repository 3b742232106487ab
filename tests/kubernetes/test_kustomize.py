"""k8s/ renders to these documents, which every supported version accepts."""

from __future__ import annotations

import subprocess
from typing import Any

import kubernetes_validate
import pytest
import yaml

from tests.kubernetes.conftest import ROOT, tool
from tests.kubernetes.samples import assert_golden
from tests.kubernetes.test_manifest import VERSIONS, built

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


def rendered() -> list[dict[str, Any]]:
    """All documents of all folders, each once."""
    found: list[dict[str, Any]] = []
    for folder in FOLDERS:
        text = (ROOT / f"tests/kubernetes/golden/k8s-{folder.rsplit('/')[-1]}.yaml").read_text()
        found += [document for document in yaml.safe_load_all(text) if document not in found]
    return found


@pytest.mark.parametrize("version", [VERSIONS[0], VERSIONS[-1]])
def test_the_oldest_and_the_newest_version_accept_it(version: str) -> None:
    for document in rendered():
        if not document["apiVersion"].startswith("kueue.x-k8s.io"):  # a custom resource: no schema in Kubernetes itself
            kubernetes_validate.validate(document, version, strict=True)
        assert (
            document["kind"] in ("Namespace", "ClusterQueue", "ResourceFlavor") or document["metadata"]["namespace"] == "zephon"
        )


def test_no_role_reads_secrets_or_reaches_other_namespaces_or_everything() -> None:
    documents = rendered()
    assert not [d for d in documents if d["kind"] in ("ClusterRole", "ClusterRoleBinding")]
    rules = [rule for d in documents if d["kind"] == "Role" for rule in d["rules"]]
    assert rules
    for rule in rules:
        assert "*" not in [*rule["apiGroups"], *rule["resources"], *rule["verbs"]]
        assert not {"pods/exec", "roles", "serviceaccounts"} & set(rule["resources"])
        if "secrets" in rule["resources"]:
            assert (rule["resources"], rule["verbs"]) == (["secrets"], ["create"]), "who may create them sees none"


def admits(policy: dict[str, Any], *, labels: dict[str, str], namespace: str) -> bool:
    """Whether an ingress policy lets a pod with these labels connect, by the rules of networking.k8s.io/v1."""

    def matches(selector: dict[str, Any]) -> bool:
        assert set(selector) <= {"matchLabels"}, "this reading knows no expressions"
        return selector.get("matchLabels", {}).items() <= labels.items()

    for rule in policy["spec"].get("ingress", []):
        peers = rule.get("from")
        if not peers:
            return True  # a rule without peers is for everybody
        for peer in peers:
            assert set(peer) == {"podSelector"}, "a namespace or an address would be let in"
            if namespace == policy["metadata"]["namespace"] and matches(peer["podSelector"]):
                return True
    return False


def test_the_network_policy_lets_pods_of_zephon_reach_each_other_and_nobody_else() -> None:
    policies = [document for document in rendered() if document["kind"] == "NetworkPolicy"]
    assert policies
    for document in built().documents:
        if document["kind"] in ("Job", "Deployment"):
            labels = document["spec"]["template"]["metadata"]["labels"]
            for policy in policies:
                assert policy["spec"]["policyTypes"] == ["Ingress"]
                assert policy["spec"]["podSelector"]["matchLabels"].items() <= labels.items(), "it holds for our pods"
                assert admits(policy, labels=labels, namespace="zephon")
                assert not admits(policy, labels=labels, namespace="default"), "the same labels in another namespace"
                assert not admits(policy, labels={"app": "notebook"}, namespace="zephon")


@pytest.mark.parametrize("folder", FOLDERS)
def test_every_way_to_install_brings_the_network_policy(folder: str) -> None:
    text = (ROOT / f"tests/kubernetes/golden/k8s-{folder.rsplit('/')[-1]}.yaml").read_text()
    assert [d["metadata"]["name"] for d in yaml.safe_load_all(text) if d["kind"] == "NetworkPolicy"] == ["zephon-jobs"]

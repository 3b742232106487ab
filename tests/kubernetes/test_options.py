"""Options are typed: what is misspelt, doubled or impossible is refused with its dotted name."""

from __future__ import annotations

import re

import pytest

from zephon.errors import ConfigError
from zephon.launch.backends.kubernetes.options import KubernetesOptions, options_from


def test_the_options_survive_a_round_trip_through_plain_containers() -> None:
    options = options_from({"queue": "q", "tolerations": [{"key": "a"}], "volumes": {"v": {"mount": "/v", "claim": "c"}}})
    assert options_from(options.to_dict()) == options


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"namespce": "x"}, "scheduler.options.namespce is not a known field"),
        ({"gpu": "2"}, "scheduler.options.gpu='2' is not of type int"),
        ({"volumes": {"v": {"mount": "/v", "clam": "c"}}}, "scheduler.options.volumes.v.clam is not a known field"),
        ({"volumes": {"v": {"mount": "/v"}}}, "volumes.v has 0 sources"),
        ({"volumes": {"v": {"mount": "/v", "claim": "c", "secret": "s"}}}, "volumes.v has 2 sources (claim, secret)"),
        ({"volumes": {"v": {"mount": "v", "claim": "c"}}}, "volumes.v.mount='v' is not an absolute path"),
        ({"volumes": {"tmp": {"mount": "/v", "claim": "c"}}}, "volumes.tmp uses a name that every pod already has"),
        ({"shm_size": "16GB"}, "shm_size='16GB' is not a positive quantity"),
        ({"topology_spread": "force"}, "topology_spread='force' is not one of"),
        ({"run_as_user": 0}, "run_as_user=0 is below 1"),
        ({"namespace": "My_NS"}, "namespace='My_NS' is not a Kubernetes name"),
        ({"queue_priority": "high"}, "queue_priority='high' is set without queue"),
        ({"env": {"A": "1"}, "env_from_secrets": {"A": {"secret": "s", "key": "k"}}}, "A is in env and in env_from_secrets"),
    ],
)
def test_a_wrong_option_is_named(given: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        options_from(given)


def test_the_surface_of_options_is_this_list() -> None:
    """A new option edits this list and defends itself: the overlay reaches everything already."""
    assert sorted(KubernetesOptions().to_dict()) == sorted(
        [
            *("namespace", "kubeconfig", "context", "request_timeout_s", "server_dry_run"),
            *("image", "image_pull_policy", "image_pull_secrets", "service_account", "run_as_user", "run_as_group"),
            # The kind of network decides NCCL's settings; a work folder is more than a field of an object.
            *("network", "rdma", "rdma_resource", "workspace"),
            *("cpu", "memory_mb", "gpu", "gpu_resource", "shm_size", "tmp_size", "volumes", "env", "env_from_secrets"),
            *("node_selector", "tolerations", "affinity", "priority_class", "topology_spread", "lost_node_s"),
            *("queue", "queue_priority", "retries_per_node", "grace_s", "keep_finished_s"),
            # A container and a token that no overlay of the coordinator could fill in by itself.
            "watch",
            *("coordinator_port", "coordinator_cpu", "coordinator_memory", "overlay"),
        ]
    )


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("HF_TOKEN", "x"),
        ("AWS_SECRET_ACCESS_KEY", "x"),
        ("wandb_api_key", "x"),
        ("DB", "postgres://me:pw@host/db"),
        ("ANY", "hf_abcdefgh123"),
    ],
)
def test_a_secret_typed_as_a_value_is_refused_with_how_to_refer_to_it(name: str, value: str) -> None:
    with pytest.raises(ConfigError, match=rf"scheduler\.options\.env_from_secrets\.{name}=\{{secret: NAME, key: ") as error:
        options_from({"env": {name: value}})
    assert value not in str(error.value) or value == "x"


@pytest.mark.parametrize(("name", "value"), [("TOKENIZERS_PARALLELISM", "false"), ("TOKEN", "/run/secrets/t"), ("A_TOKEN", "")])
def test_what_only_sounds_like_a_secret_is_taken(name: str, value: str) -> None:
    assert options_from({"env": {name: value}}).env == {name: value}

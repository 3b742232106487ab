"""Pod templates: the part that the nodes and the coordinator share, and what is particular to each.

Both run as the pod security level "restricted" demands: not root, nothing writable but the mounted volumes, no
capability, no service account token. The pod's own pause process is PID 1 (``shareProcessNamespace``): it reaps
orphans, so that any image works without an init program, and SIGTERM still goes straight to the agent.
"""

from __future__ import annotations

import copy
import math

from zephon.fastjson import Json
from zephon.launch.backends.kubernetes.facts import JobFacts
from zephon.launch.backends.kubernetes.names import (
    ATTEMPT,
    MANAGED_BY,
    ROLE,
    RUN,
    RUN_ID,
    SPEC,
    SPEC_SHA256,
    label_value,
    run_id,
)
from zephon.launch.backends.kubernetes.options import KubernetesOptions, Toleration, Volume
from zephon.launch.backends.kubernetes.watch import ACCOUNT_FOLDER, MODULE
from zephon.run import secret, specs

_SPEC_FOLDER, _SECRET_FOLDER = "/etc/zephon", "/etc/zephon-secret"
_TOKEN = "watcher-token"
_SECRET_MODE = 0o440  # the files are root's; the pod's group may read them
MARGIN_S = 30


def labels(facts: JobFacts, *, role: str | None = None) -> dict[str, str]:
    shared = {
        MANAGED_BY: "zephon",
        RUN: label_value(facts.job.spec.name),
        RUN_ID: run_id(facts.job.run),
        ATTEMPT: label_value(str(facts.job.attempt)),
        SPEC: label_value(facts.job.spec.sha256()[:16]),
    }
    return shared if role is None else {**shared, ROLE: role}


def selector(facts: JobFacts, *, role: str | None = None) -> dict[str, str]:
    """The labels that name one attempt's pods and no other's."""
    shared = {RUN_ID: run_id(facts.job.run), ATTEMPT: label_value(str(facts.job.attempt))}
    return shared if role is None else {**shared, ROLE: role}


def secret_name(facts: JobFacts) -> str:
    return f"{facts.name}-{facts.submission[:12]}"


def grace_s(facts: JobFacts, options: KubernetesOptions) -> int:
    return options.grace_s if options.grace_s is not None else math.ceil(facts.job.spec.elastic.drain_s) + MARGIN_S


def node_template(facts: JobFacts, options: KubernetesOptions) -> Json:
    """The template of the Indexed Job's pods."""
    # Identity first: Kubernetes resolves $(NAME) only from variables above.
    identity = {"ZEPHON_NODE": "$(POD_NAME)@$(POD_UID)", "ZEPHON_ENDPOINT": endpoint(facts, options)}
    container = _container(
        facts,
        options,
        command=[facts.role.entrypoint, *facts.role.args],
        env=_downward_env()
        + _plain_env(_nccl(facts, options) | facts.role.env | options.env | identity)
        + _secret_env(options),
        resources=_node_resources(facts, options),
    )
    template = _template(facts, options, role="node", container=container)
    spec = template["spec"]
    if options.network == "host":
        spec |= {"hostNetwork": True, "dnsPolicy": "ClusterFirstWithHostNet"}
    spec["restartPolicy"] = "Never"
    spec["terminationGracePeriodSeconds"] = grace_s(facts, options)
    if options.topology_spread != "none":
        spec["topologySpreadConstraints"] = [
            {
                "maxSkew": 1,
                "topologyKey": "kubernetes.io/hostname",
                "whenUnsatisfiable": "DoNotSchedule" if options.topology_spread == "require" else "ScheduleAnyway",
                "nodeTaintsPolicy": "Honor",  # a machine that is cordoned or declared dead is no place to keep free
                "labelSelector": {"matchLabels": selector(facts, role="node")},
            }
        ]
    return template


def coordinator_template(facts: JobFacts, options: KubernetesOptions, *, command: list[str]) -> Json:
    """The template of the coordinator's pod: the run's volumes and secrets, for it writes there, but no GPU."""
    container = _container(
        facts,
        options,
        command=command,
        env=_plain_env({"PYTHONUNBUFFERED": "1", **options.env}) + _secret_env(options),
        resources={
            "requests": {"cpu": options.coordinator_cpu, "memory": options.coordinator_memory},
            "limits": {"memory": options.coordinator_memory},
        },
    )
    container["ports"] = [{"name": "meet", "containerPort": options.coordinator_port}]
    container["readinessProbe"] = {"tcpSocket": {"port": "meet"}, "periodSeconds": 2}
    container["livenessProbe"] = {"tcpSocket": {"port": "meet"}, "periodSeconds": 10, "failureThreshold": 6}
    template = _template(facts, options, role="coordinator", container=container)
    template["spec"].update(hostname="coordinator", restartPolicy="Always", terminationGracePeriodSeconds=5)
    if options.watch:
        _add_watcher(template["spec"], facts, options)
    return template


def _add_watcher(spec: Json, facts: JobFacts, options: KubernetesOptions) -> None:
    """A second container, which alone has a token of the pod's account."""
    job = ["--run", facts.job.run, "--attempt", str(facts.job.attempt), "--job", f"{options.namespace}/{facts.name}"]
    main = copy.deepcopy(spec["containers"][0])
    for unneeded in ("ports", "readinessProbe", "livenessProbe"):
        del main[unneeded]
    main["env"] = [entry for entry in main["env"] if entry["name"] != secret.GIVEN]
    token = {"name": _TOKEN, "mountPath": ACCOUNT_FOLDER, "readOnly": True}
    mounts = [*(mount for mount in main["volumeMounts"] if mount["name"] != "attempt-secret"), token]
    watcher = {**main, "name": "watcher", "command": [facts.role.entrypoint, "-m", MODULE, *job], "volumeMounts": mounts}
    spec["containers"].append(watcher)
    sources = [
        {"serviceAccountToken": {"path": "token", "expirationSeconds": 3600}},
        {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
    ]
    spec["volumes"].append({"name": _TOKEN, "projected": {"sources": sources, "defaultMode": _SECRET_MODE}})


def _template(facts: JobFacts, options: KubernetesOptions, *, role: str, container: Json) -> Json:
    container["volumeMounts"] += [_mount(name, volume) for name, volume in options.volumes.items()]
    spec: Json = {
        "subdomain": facts.name,
        "shareProcessNamespace": True,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": options.run_as_user,
            "runAsGroup": options.run_as_group,
            "fsGroup": options.run_as_group,
            "fsGroupChangePolicy": "OnRootMismatch",
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "tolerations": _lost_node_tolerations(options) + [_toleration(item) for item in options.tolerations],
        "containers": [container],
        "volumes": [
            {"name": "spec", "configMap": {"name": facts.name}},
            {"name": "attempt-secret", "secret": {"secretName": secret_name(facts), "defaultMode": _SECRET_MODE}},
            {"name": "tmp", "emptyDir": {"sizeLimit": options.tmp_size}},
            {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": options.shm_size}},
            *(_volume(name, volume) for name, volume in options.volumes.items()),
        ],
    }
    if options.service_account is not None:
        spec["serviceAccountName"] = options.service_account
    if options.image_pull_secrets:
        spec["imagePullSecrets"] = [{"name": name} for name in options.image_pull_secrets]
    if options.node_selector and role == "node":
        spec["nodeSelector"] = dict(options.node_selector)
    if options.affinity and role == "node":
        spec["affinity"] = options.affinity
    if options.priority_class is not None:
        spec["priorityClassName"] = options.priority_class
    return {
        "metadata": {"labels": labels(facts, role=role), "annotations": {SPEC_SHA256: facts.job.spec.sha256()}},
        "spec": spec,
    }


def _container(facts: JobFacts, options: KubernetesOptions, *, command: list[str], env: list[Json], resources: Json) -> Json:
    return {
        "name": "main",
        "image": facts.role.image,
        "imagePullPolicy": options.image_pull_policy,
        "command": command,
        "env": env,
        "resources": resources,
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": [
            {"name": "spec", "mountPath": _SPEC_FOLDER, "readOnly": True},
            {"name": "attempt-secret", "mountPath": _SECRET_FOLDER, "readOnly": True},
            {"name": "tmp", "mountPath": "/tmp"},
            {"name": "shm", "mountPath": "/dev/shm"},
        ],
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }


def endpoint(facts: JobFacts, options: KubernetesOptions) -> str:
    """Where the agents find the coordinator: the host name and subdomain of its pod, whichever pod that is now."""
    return f"coordinator.{facts.name}.{options.namespace}.svc:{options.coordinator_port}"


def _downward_env() -> list[Json]:
    fields = {"POD_NAME": "metadata.name", "POD_UID": "metadata.uid", "POD_IP": "status.podIP", "NODE_NAME": "spec.nodeName"}
    return [{"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}} for name, path in fields.items()]


def _nccl(facts: JobFacts, options: KubernetesOptions) -> dict[str, str]:
    """How NCCL talks on this kind of network, where ``env`` says nothing else."""
    if facts.role.resource.gpu == 0:
        return {}
    # In a pod the cluster's own interface is eth0; on a machine it is any but those of containers.
    interface = "eth0" if options.network == "pod" else "^lo,docker,cni,cali,flannel,cilium,veth,kube"
    # Without devices NCCL would find the machine's cards by name, fail to open them, and wait.
    return {"NCCL_SOCKET_IFNAME": interface, "NCCL_IB_DISABLE": "0" if options.rdma or options.network == "host" else "1"}


def _plain_env(values: dict[str, str]) -> list[Json]:
    # HOME is on the only writable path that every pod has.
    files = {"ZEPHON_SPEC_FILE": f"{_SPEC_FOLDER}/{specs.FILE}", secret.GIVEN: f"{_SECRET_FOLDER}/{secret.FILE}"}
    env = {"HOME": "/tmp", **files, **values}
    return [{"name": name, "value": env[name]} for name in sorted(env)]


def _secret_env(options: KubernetesOptions) -> list[Json]:
    return [
        {
            "name": name,
            "valueFrom": {
                "secretKeyRef": {"name": secret.secret, "key": secret.key} | ({"optional": True} if secret.optional else {})
            },
        }
        for name, secret in sorted(options.env_from_secrets.items())
    ]


def _node_resources(facts: JobFacts, options: KubernetesOptions) -> Json:
    wanted = facts.role.resource
    requests: Json = {}
    if wanted.cpu > 0:
        requests["cpu"] = str(wanted.cpu)
    if wanted.memMB > 0:
        requests["memory"] = f"{wanted.memMB}Mi"
    # No CPU limit: it would throttle the loader's threads although the machine is idle.
    limits = {"memory": requests["memory"]} if "memory" in requests else {}
    extended = {options.gpu_resource: str(wanted.gpu)} if wanted.gpu > 0 else {}
    extended |= {options.rdma_resource: str(options.rdma)} if options.rdma else {}
    extended |= {name: str(count) for name, count in sorted(wanted.devices.items())}
    return {"requests": requests | extended, "limits": limits | extended}


def _lost_node_tolerations(options: KubernetesOptions) -> list[Json]:
    return [
        {
            "key": f"node.kubernetes.io/{condition}",
            "operator": "Exists",
            "effect": "NoExecute",
            "tolerationSeconds": options.lost_node_s,
        }
        for condition in ("not-ready", "unreachable")
    ]


def _toleration(item: Toleration) -> Json:
    toleration = {"key": item.key, "operator": item.operator, "value": item.value, "effect": item.effect}
    toleration |= {"tolerationSeconds": item.seconds}  # type: ignore[dict-item]
    return {key: value for key, value in toleration.items() if value is not None}


def _mount(name: str, volume: Volume) -> Json:
    mount: Json = {"name": name, "mountPath": volume.mount}
    if volume.sub_path is not None:
        mount["subPath"] = volume.sub_path
    if volume.read_only:
        mount["readOnly"] = True
    return mount


def _volume(name: str, volume: Volume) -> Json:
    sources: Json = {
        "persistentVolumeClaim": volume.claim and {"claimName": volume.claim},
        "configMap": volume.config_map and {"name": volume.config_map},
        "secret": volume.secret and {"secretName": volume.secret},
        "emptyDir": volume.empty_dir and {"sizeLimit": volume.empty_dir},
        "hostPath": volume.host_path and {"path": volume.host_path},
    }
    return {"name": name} | {key: value for key, value in sources.items() if value}

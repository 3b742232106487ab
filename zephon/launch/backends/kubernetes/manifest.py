"""An AppDef as the exact objects that are sent: a pure function of the AppDef, the options and a submission id.

    Job <name>                  Indexed, one pod per node; owns all others
    ConfigMap <name>            the attempt's resolved RunSpec; owns the Secret too
    Secret <name>-<submission>  by which the attempt's processes know each other
    ConfigMap <name>-code       the work folder, where one is given (workspace.py)
    Service <name>              headless: names for the nodes and the coordinator, also before they are ready
    Deployment <name>-coordinator   decides who is in which generation; holds nothing that cannot be rebuilt

Two things come only with a submit: the owner reference, which is the Job's UID (``owned_by``), and the secret's value
(``with_value``), which nobody but the pods ever reads. That is why the Secret's name is new with each submit: an answer that
was lost is told from another's object without a right to read secrets; and why the Secret goes with a ConfigMap, which the
launcher may delete where somebody has deleted the Job and left the rest.
"""

from __future__ import annotations

import copy
import dataclasses
import re
from collections.abc import Iterator, Sequence

import yaml
from torchx.specs import AppDef

from zephon.exits import DRAINS, FINAL
from zephon.fastjson import Json
from zephon.launch.backends.kubernetes import names, workspace
from zephon.launch.backends.kubernetes.facts import JobFacts, facts_of
from zephon.launch.backends.kubernetes.options import KubernetesOptions
from zephon.launch.backends.kubernetes.overlay import apply_overlay, changes
from zephon.launch.backends.kubernetes.pod import coordinator_template, labels, node_template, secret_name, selector
from zephon.launch.job import COORDINATOR_MODULE
from zephon.run import specs
from zephon.run.secret import FILE as SECRET_FILE
from zephon.run.secret import new_secret


@dataclasses.dataclass(frozen=True, kw_only=True)
class Request:
    """What one submit sends: the Job first, which owns the rest; what the overlay changed, a line a leaf; and remarks."""

    namespace: str
    name: str
    documents: tuple[Json, ...]
    overlaid: tuple[str, ...]
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        return self.to_yaml()

    def to_yaml(self) -> str:
        """The objects as a YAML stream that ``kubectl apply -f -`` accepts, the overlay's changes as comments above."""
        head = "".join(f"# note: {line}\n" for line in self.notes)
        head += "".join(f"# overlay: {line}\n" for line in self.overlaid)
        dumped = (yaml.dump(doc, Dumper=_Dumper, sort_keys=False, width=120, allow_unicode=True) for doc in self.documents)
        return head + "---\n".join(dumped)


class _Dumper(yaml.SafeDumper):
    """Quotes what kubectl's reader, which follows other versions of YAML too, would take for a number, a time or a boolean."""


_NUMBER = r"[-+]?(0[xob][\da-f_]+|[\d_]*\.?[\d_]*(e[-+]?\d+)?|\d+(:\d+)+(\.\d*)?|\d{4}-\d\d?-\d\d?([t ].*)?)"
_AMBIGUOUS = re.compile(_NUMBER + r"|y|n|yes|no|on|off|true|false|null|~|=|<<|[-+]?\.(inf|nan)", re.IGNORECASE)


def _string(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="'" if _AMBIGUOUS.fullmatch(text) else None)


_Dumper.add_representer(str, _string)


def build(app: AppDef, options: KubernetesOptions, *, submission: str) -> Request:
    """All objects of one attempt.

    Args:
        app: what the component returned, macros not yet substituted.
        options: typed options; ``options.overlay`` is applied last.
        submission: identifies this submission.
    Raises:
        ConfigError: a name, path, period or overlay that cannot work.
    """
    facts = facts_of(app, options, submission=submission)
    built = {
        "job": _job(facts, options),
        "config_map": _config_map(facts, options),
        "service": _service(facts, options),
        "coordinator": _coordinator(facts, options),
    }
    packed = workspace.pack(options.workspace) if options.workspace is not None else None
    if packed is not None:
        for template in (built["job"]["spec"]["template"], built["coordinator"]["spec"]["template"]):
            workspace.unpack(template, source=f"{facts.name}-code")
    final = apply_overlay(built, options.overlay)
    overlaid = tuple(f"{name}.{line}" for name in built for line in changes(built[name], final[name]))
    notes = tuple(_notes(facts, options))
    code = [workspace.config_map(_metadata(facts, options, name=f"{facts.name}-code"), packed)] if packed is not None else []
    documents = (final["job"], final["config_map"], _secret(facts, options), *code, final["service"], final["coordinator"])
    return Request(namespace=options.namespace, name=facts.name, documents=documents, overlaid=overlaid, notes=notes)


def _notes(facts: JobFacts, options: KubernetesOptions) -> Iterator[str]:
    if "@sha256:" not in facts.role.image:
        yield f"image {facts.role.image} is a tag: later pods may run other code"
    memory_mb = facts.role.resource.memMB
    if facts.role.resource.gpu and 0 < memory_mb * 2**20 < 2 * names.quantity(options.shm_size, setting="shm_size"):
        yield f"shm_size={options.shm_size} is more than half of memory_mb={memory_mb}, of which it is a part"


def owned_by(document: Json, owners: Sequence[Json]) -> Json:
    """A copy of an object that is deleted with the last of its owners (as the API server returned them)."""
    owned = copy.deepcopy(document)
    owned["metadata"]["ownerReferences"] = [
        {key: owner[key] for key in ("apiVersion", "kind")} | {key: owner["metadata"][key] for key in ("name", "uid")}
        for owner in owners
    ]
    return owned


def with_value(secret: Json) -> Json:
    """A copy of the Secret with a new value."""
    return {**secret, "stringData": {SECRET_FILE: new_secret()}}


def _metadata(facts: JobFacts, options: KubernetesOptions, *, name: str) -> Json:
    annotations = {
        names.SPEC_SHA256: facts.job.spec.sha256(),
        names.SUBMISSION: facts.submission,
        names.RUN_URL: facts.job.run,
    }
    return {"name": name, "namespace": options.namespace, "labels": labels(facts), "annotations": annotations}


def _job(facts: JobFacts, options: KubernetesOptions) -> Json:
    metadata = _metadata(facts, options, name=facts.name)
    nodes, elastic = facts.job.spec.nodes, facts.job.spec.elastic
    metadata["annotations"] |= {names.NODES_MIN: str(elastic.nodes_min), names.NODES_MAX: str(elastic.nodes_max)}
    template = node_template(facts, options)
    if options.queue is not None:
        metadata["labels"]["kueue.x-k8s.io/queue-name"] = options.queue
        # Only beside a queue label: without one, Kueue gates the pods and nobody ungates them.
        metadata["annotations"]["kueue.x-k8s.io/elastic-job"] = "true"
        if options.queue_priority is not None:
            metadata["labels"]["kueue.x-k8s.io/priority-class"] = options.queue_priority
    spec: Json = {
        "completionMode": "Indexed",
        "parallelism": nodes,
        "completions": nodes,
        "suspend": options.queue is not None,
        "backoffLimitPerIndex": options.retries_per_node,
        "maxFailedIndexes": 0,
        "podReplacementPolicy": "Failed",
        "podFailurePolicy": {"rules": _failure_rules()},
        "template": template,
    }
    if options.keep_finished_s is not None:
        spec["ttlSecondsAfterFinished"] = options.keep_finished_s
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": spec}


def _failure_rules() -> list[Json]:
    """First match wins: a final verdict ends the Job, a disruption or a drain costs nothing, any other end is counted."""

    def exit_codes(action: str, *codes: int) -> Json:
        values = [int(code) for code in codes]
        return {"action": action, "onExitCodes": {"containerName": "main", "operator": "In", "values": values}}

    return [
        exit_codes("FailJob", *FINAL),
        {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
        exit_codes("Ignore", *DRAINS),
    ]


def _secret(facts: JobFacts, options: KubernetesOptions) -> Json:
    metadata = _metadata(facts, options, name=secret_name(facts))
    return {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "type": "Opaque", "immutable": True}


def _config_map(facts: JobFacts, options: KubernetesOptions) -> Json:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": _metadata(facts, options, name=facts.name),
        "immutable": True,
        "data": {specs.FILE: facts.job.spec.canonical_json()},
    }


def _service(facts: JobFacts, options: KubernetesOptions) -> Json:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _metadata(facts, options, name=facts.name),
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": selector(facts),
            "ports": [{"name": "meet", "port": options.coordinator_port}],
        },
    }


def _coordinator(facts: JobFacts, options: KubernetesOptions) -> Json:
    command = [facts.role.entrypoint, "-m", COORDINATOR_MODULE, *facts.job.coordinator(port=options.coordinator_port)]
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": _metadata(facts, options, name=f"{facts.name}-coordinator"),
        "spec": {
            "replicas": 1,
            "strategy": {"type": "Recreate"},
            "selector": {"matchLabels": selector(facts, role="coordinator")},
            "template": coordinator_template(facts, options, command=command),
        },
    }

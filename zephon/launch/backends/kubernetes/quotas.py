"""A namespace's quotas against all pods of a job, the coordinator's too. A quota with scopes counts some of them only.

    Terminating, NotTerminating      pods with a deadline of their own (activeDeadlineSeconds), and without one
    BestEffort, NotBestEffort        pods that ask for no processor time and no memory at all, and others
    PriorityClass                    pods of a priority class, by a scopeSelector
    CrossNamespacePodAffinity        pods whose affinity names other namespaces

A scope that is not in this table is said and not guessed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from decimal import Decimal

from zephon.errors import ConfigError
from zephon.fastjson import Json
from zephon.launch.backends.kubernetes.client import Cluster
from zephon.launch.backends.kubernetes.errors import Forbidden
from zephon.launch.backends.kubernetes.manifest import Request
from zephon.launch.backends.kubernetes.names import quantity

_COUNTED = {"Job": "completions", "Deployment": "replicas"}


def quota_remarks(cluster: Cluster, request: Request) -> list[str]:
    """What the namespace's quotas have no room for at present.

    Raises:
        ConfigError: a quota that is smaller than this job alone, the coordinator's pod included.
    """
    namespace = request.namespace
    try:
        quotas = cluster.find("ResourceQuota", namespace)
    except Forbidden:
        return [f"you may not read the quotas of namespace {namespace}: whether there is room was not checked"]
    return [remark for quota in quotas for remark in _remarks_on(quota, request)]


def _remarks_on(quota: Json, request: Request) -> Iterator[str]:
    name, status, scopes = quota["metadata"]["name"], quota.get("status") or {}, _scopes(quota["spec"])
    if unknown := [scope["scopeName"] for scope in scopes if scope["scopeName"] not in _MATCHES]:
        yield f"quota {name} counts by scope {', '.join(unknown)}: whether it has room was not checked"
        return
    needs, only = needed(request, scopes), f" (of pods in scope {', '.join(map(_in_words, scopes))})" if scopes else ""
    for key, hard in (status.get("hard") or quota["spec"].get("hard") or {}).items():
        need = needs.get(key.removeprefix("requests.") if key in ("requests.cpu", "requests.memory") else key)
        if need is None:
            continue
        most, used = _amount(hard), _amount((status.get("used") or {}).get(key, "0"))
        if need > most:
            raise ConfigError(
                f"quota {name} of namespace {request.namespace} allows {key}={hard}{only}, and this job needs {_plain(need)} "
                "with its coordinator",
                follows="some of its pods could never be created",
                remedy="ask for fewer nodes=, or less scheduler.options.cpu, memory_mb or gpu, or have the quota raised",
            )
        if need > most - used:
            yield (
                f"quota {name}: {key} has {_plain(most - used)} left of {hard}{only} and this job needs {_plain(need)}: "
                "some pods wait until other jobs end"
            )


def needed(request: Request, scopes: Sequence[Json] = ()) -> dict[str, Decimal]:
    """What the pods of a request ask a quota for, of nodes and coordinator, by the quota's keys.

    Args:
        scopes: only the pods that match all of these are counted; with any, only what a pod asks for.
    """
    total: dict[str, Decimal] = {"pods": Decimal(0)}
    if not scopes:
        total["count/jobs.batch"] = Decimal(1)
    for document in request.documents:
        count = _COUNTED.get(document["kind"])
        if count is None or not all(_matches(document["spec"]["template"]["spec"], scope) for scope in scopes):
            continue
        replicas = Decimal(document["spec"][count])
        total["pods"] += replicas
        for container in document["spec"]["template"]["spec"]["containers"]:
            for part, values in (container.get("resources") or {}).items():
                for resource, value in values.items():
                    for key in (f"{part}.{resource}", *([resource] if part == "requests" else ())):
                        total[key] = total.get(key, Decimal(0)) + replicas * _amount(value)
    return total


def _scopes(spec: Json) -> list[Json]:
    """Both ways of writing them as one."""
    plain = [{"scopeName": name, "operator": "Exists"} for name in spec.get("scopes") or []]
    return [*plain, *((spec.get("scopeSelector") or {}).get("matchExpressions") or [])]


def _in_words(scope: Json) -> str:
    values = f" {scope['operator']} {', '.join(scope['values'])}" if scope.get("values") else ""
    return f"{scope['scopeName']}{values}"


def _matches(pod: Json, scope: Json) -> bool:
    return _MATCHES[scope["scopeName"]](pod, scope)


def _has_deadline(pod: Json, _: Json) -> bool:
    return pod.get("activeDeadlineSeconds") is not None


def _is_best_effort(pod: Json, _: Json) -> bool:
    containers = [*pod["containers"], *(pod.get("initContainers") or [])]
    asked = [values for container in containers for values in (container.get("resources") or {}).values()]
    return not any({"cpu", "memory"} & set(values) for values in asked)


def _has_priority(pod: Json, scope: Json) -> bool:
    name, values = pod.get("priorityClassName"), scope.get("values") or []
    match scope["operator"]:
        case "Exists":
            return name is not None
        case "DoesNotExist":
            return name is None
        case "In":
            return name in values
        case _:
            return name is not None and name not in values


def _is_near_others(pod: Json, _: Json) -> bool:
    """Whether an affinity of the pod names other namespaces."""
    affinity = pod.get("affinity") or {}
    terms: list[Json] = []
    for kind in ("podAffinity", "podAntiAffinity"):
        rules = affinity.get(kind) or {}
        terms += rules.get("requiredDuringSchedulingIgnoredDuringExecution") or []
        terms += [term["podAffinityTerm"] for term in rules.get("preferredDuringSchedulingIgnoredDuringExecution") or []]
    return any(term.get("namespaces") or term.get("namespaceSelector") is not None for term in terms)


_MATCHES = {
    "Terminating": _has_deadline,
    "NotTerminating": lambda pod, scope: not _has_deadline(pod, scope),
    "BestEffort": _is_best_effort,
    "NotBestEffort": lambda pod, scope: not _is_best_effort(pod, scope),
    "PriorityClass": _has_priority,
    "CrossNamespacePodAffinity": _is_near_others,
}


def _amount(text: object) -> Decimal:
    return Decimal(0) if str(text) in ("0", "") else quantity(str(text), setting="quota")


def _plain(value: Decimal) -> str:
    for unit, size in (("Ti", 2**40), ("Gi", 2**30), ("Mi", 2**20)):
        if value >= size:
            return f"{float(value / size):.4g}{unit}"
    return f"{float(value):g}"

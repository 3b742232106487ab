"""An AppDef as Kubernetes objects: pure builders (names, options, manifest, overlay) and one thin client.

    AppDef + KubernetesOptions ── manifest.build() ──► Job, ConfigMap, Service, Deployment ── client ──► API server

Only ``client`` imports the ``kubernetes`` package, and only when a cluster is asked for something.
"""

{{- /* SPDX-License-Identifier: Apache-2.0 */ -}}
{{- /* A file of manifests, with what is the cluster's own: include "sluice.manifest" (list . "node.yaml") */ -}}
{{- define "sluice.manifest" -}}
{{- $root := index . 0 -}}
{{- $values := $root.Values -}}
{{- $name := index . 1 -}}
{{- $text := required (printf "there is no manifest %s" $name) ($root.Files.Get (printf "manifests/%s" $name)) -}}
{{- $text = replace "image: sluice-kubernetes:0.2" (printf "image: %s" $values.images.kubernetes) $text -}}
{{- $text = replace "image: sluice-controller:0.2" (printf "image: %s" $values.images.controller) $text -}}
{{- $text = replace "image: sluice-server:0.2" (printf "image: %s" $values.images.server) $text -}}
{{- $text = replace "imagePullPolicy: IfNotPresent" (printf "imagePullPolicy: %s" $values.images.pullPolicy) $text -}}
{{- $text = replace "path: /run/sluice," (printf "path: %s," $values.paths.run) $text -}}
{{- $text = replace "path: /var/run/cdi," (printf "path: %s," $values.paths.cdi) $text -}}
{{- $text = replace "path: /var/lib/kubelet/" (printf "path: %s/" $values.paths.kubelet) $text -}}
{{- $text = replace "endpoints = etcd.sluice.svc:2379" (printf "endpoints = %s" $values.pool.etcdEndpoints) $text -}}
{{- $text = replace "storage: 2Gi" (printf "storage: %s" $values.pool.storage) $text -}}
{{- $text = replace "controller_addr = sluice-pool.sluice.svc:9123" (printf "addresses = %s" $values.controllerAddresses) $text -}}
{{- $text = replace "replicas: 2" (printf "replicas: %d" (int $values.extender.replicas)) $text -}}
{{- if $values.hostNetwork }}
{{- $text = replace "pod-security.kubernetes.io/enforce: restricted" "pod-security.kubernetes.io/enforce: privileged" $text -}}
{{- range $part := list "controller" "extender" }}
{{- $account := printf "serviceAccountName: sluice-%s\n" $part }}
{{- $network := "      hostNetwork: true\n      dnsPolicy: ClusterFirstWithHostNet\n" }}
{{- $text = replace $account (print $account $network) $text -}}
{{- end }}
{{- end }}
{{- if $values.extender.url }}
{{- $service := "service: {name: sluice-extender, namespace: sluice, path: /mutate}" }}
{{- $text = replace $service (printf "url: %s/mutate" $values.extender.url) $text -}}
{{- end }}
{{- $text -}}
{{- end -}}

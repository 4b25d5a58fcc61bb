// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// olderPools is the definition of pools in the group before, as far as it matters.
const olderPools = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata:
  name: inferencepools.inference.networking.x-k8s.io
  annotations: {api-approved.kubernetes.io: unapproved}
spec:
  group: inference.networking.x-k8s.io
  scope: Namespaced
  names: {kind: InferencePool, plural: inferencepools, singular: inferencepool}
  versions:
  - name: v1alpha2
    served: true
    storage: true
    schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}
`

const olderPool = `
apiVersion: inference.networking.x-k8s.io/v1alpha2
kind: InferencePool
metadata: {name: pool}
spec:
  selector: {app: vllm}
  targetPortNumber: 8000
  extensionRef: {name: epp}
`

// near asks for the zones of endpoints.
const near = `apiVersion: llm-d.ai/v1
kind: EndpointPickerConfig
plugins:
- type: topology-affinity-scorer
schedulingProfiles: [{name: default, plugins: [{pluginRef: topology-affinity-scorer}]}]
`

// TestOlderPools serves a pool of the group before. Its endpoints have the zones of their nodes once the picker may list these; until then
// one line says that it may not.
func TestOlderPools(t *testing.T) {
	c := New(t)
	c.ours(t)
	s := &site{Cluster: c, t: t, ns: c.Namespace(t), pickers: []string{"epp"}}
	s.Apply(t, s.ns, olderPools)
	defer func() {
		s.Kubectl(t, "delete", "crd", "inferencepools.inference.networking.x-k8s.io")
		s.Kubectl(t, "delete", "node", "node-1", "--ignore-not-found")
		s.Kubectl(t, "delete", "clusterrolebinding,clusterrole", "nodes", "--ignore-not-found")
		_ = os.RemoveAll(filepath.Join(c.dir, ".kube")) // kubectl remembers the kinds for hours
	}()
	s.Kubectl(t, "wait", "--for=condition=Established", "crd", "--all", "--timeout=60s")
	manifests := strings.Replace(basics("60s"), "{apiGroups: [inference.networking.k8s.io], resources: [inferencepools]",
		"{apiGroups: [inference.networking.x-k8s.io], resources: [inferencepools]", 1)
	of := strings.Index(manifests, "---")
	s.Apply(t, s.ns, manifests[of:])
	s.Apply(t, s.ns, olderPool)
	s.Apply(t, s.ns, "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: epp}\ndata:\n  default-plugins.yaml: |\n    "+strings.ReplaceAll(near, "\n", "\n    ")+"\n"+engine("a", ""))
	s.Apply(t, s.ns, "apiVersion: v1\nkind: Node\nmetadata: {name: node-1, labels: {topology.kubernetes.io/zone: here, other: label}}\n")
	addr := s.Addr(t, s.ns, "a")
	s.Apply(t, s.ns, picker("epp", "--pool-group", "inference.networking.x-k8s.io", "--allow-experimental-plugins"))
	s.Addr(t, s.ns, "epp")
	s.shows("/debug/fleet", `"address": "`+addr, `"version": "inference.networking.x-k8s.io/v1alpha2"`, `nodes in the cluster"`)
	s.measures("penstock_kube_feed_state", 1, "inferencepools", "synced")
	s.Kubectl(t, "create", "clusterrole", "nodes", "--verb=get,list,watch", "--resource=nodes")
	s.Kubectl(t, "create", "clusterrolebinding", "nodes", "--clusterrole=nodes", "--serviceaccount="+s.ns+":epp")
	s.Kubectl(t, "delete", "pod", "-n", s.ns, "epp", "--grace-period=1") // it asks again after minutes
	s.Apply(t, s.ns, picker("epp", "--pool-group", "inference.networking.x-k8s.io", "--allow-experimental-plugins"))
	s.shows("/debug/fleet", `"address": "`+addr, `"topology.kubernetes.io/zone": "here"`, `"resource": "nodes"`)
	s.Apply(t, s.ns, "apiVersion: v1\nkind: Node\nmetadata: {name: node-1, labels: {topology.kubernetes.io/zone: there}}\n")
	s.shows("/debug/fleet", `"topology.kubernetes.io/zone": "there"`)
}

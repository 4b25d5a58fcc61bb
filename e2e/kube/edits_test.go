// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/penstock-project/penstock/e2e/rig"
)

// shows waits until the first picker's page has each of these texts.
func (s *site) shows(path string, texts ...string) {
	s.t.Helper()
	rig.Eventually(s.t, fmt.Sprintf("%s to show %q", path, texts), func() error {
		page, err := s.page(s.pickers[0], path)
		for _, text := range texts {
			if err == nil && !strings.Contains(page, text) {
				err = fmt.Errorf("%q is missing", text)
			}
		}
		return err
	})
}

// measures waits until a metric of the first picker has a value.
func (s *site) measures(name string, want float64, labels ...string) {
	s.t.Helper()
	rig.Eventually(s.t, fmt.Sprintf("%s%v to be %v", name, labels, want), func() error {
		got, err := s.metric(name, labels...)
		if err == nil && got != want {
			err = fmt.Errorf("it is %v", got)
		}
		return err
	})
}

// configEdits edits the configuration under load, in the ConfigMap that the pod has mounted and in one that the picker
// follows itself. A wrong edit changes nothing, and is told.
func (c *Cluster) configEdits(t *testing.T) {
	t.Run("mounted", func(t *testing.T) { c.edited(t, picker("epp"), "/default-plugins.yaml:5: plugins[0].type", false) })
	follows := strings.Replace(picker("epp"), `"--config-file", "/config/default-plugins.yaml"`, `"--config-map", "$(NAMESPACE)/epp"`, 1)
	t.Run("followed", func(t *testing.T) { c.edited(t, follows, "/epp default-plugins.yaml:5: plugins[0].type", true) })
}

func (c *Cluster) edited(t *testing.T, manifest, place string, followed bool) {
	s := c.site(t, nil, nil, "a", "b")
	s.pickers = []string{"epp"}
	if followed {
		s.Apply(t, s.ns, "apiVersion: rbac.authorization.k8s.io/v1\nkind: Role\nmetadata: {name: maps}\nrules: [{apiGroups: [\"\"], resources: [configmaps], verbs: [get, list, watch]}]\n"+
			"---\napiVersion: rbac.authorization.k8s.io/v1\nkind: RoleBinding\nmetadata: {name: maps}\nroleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: maps}\n"+
			"subjects: [{kind: ServiceAccount, name: epp}]\n")
	}
	s.Apply(t, s.ns, manifest)
	s.envoy(c.Addr(t, s.ns, "epp") + ":9002")
	s.answers()
	l := Traffic(t, s.http, 8, 8, nil)
	const field = `"noEndpointRequestTTL": `
	s.shows("/debug/fleet", field+`"1m0s"`)
	s.Apply(t, s.ns, basics("7s"))
	s.shows("/debug/fleet", field+`"7s"`)

	s.Apply(t, s.ns, strings.Replace(basics("8s"), "- type: queue-scorer", "- type: queue-score", 1))
	s.shows("/debug/fleet", place, "queue-scorer", field+`"7s"`) // what is wrong, what would be right, and what is in force
	if n, err := s.metric("penstock_config_errors"); err != nil || n == 0 {
		t.Errorf("%v errors of the configuration are counted, %v", n, err)
	}
	if followed {
		rig.Eventually(t, "an event on the ConfigMap", func() error {
			got, err := s.kubectl(t.Context(), "", "get", "events", "-n", s.ns, "-o", `jsonpath={range .items[*]}{.involvedObject.kind}/{.involvedObject.name} {.type} {.message}{"\n"}{end}`)
			for line := range strings.Lines(got) {
				if strings.HasPrefix(line, "ConfigMap/epp Warning ") && strings.Contains(line, "queue-score") {
					return nil
				}
			}
			return errors.Join(err, errors.New("there are: "+got))
		})
	}
	l.More(t, 40)

	s.Apply(t, s.ns, basics("9s"))
	s.shows("/debug/fleet", field+`"9s"`)
	s.measures("penstock_config_errors", 0)
	l.More(t, 40)
	if followed { // what it said last stays
		s.Kubectl(t, "delete", "configmap", "-n", s.ns, "epp")
		l.More(t, 40)
		s.Apply(t, s.ns, basics("11s"))
		s.shows("/debug/fleet", field+`"11s"`)
	}
	s.whole(l)
}

// poolDefinition removes the definition of InferencePool, and with it all pools, and brings both back. Requests wait
// meanwhile, as they do for an empty pool.
func (c *Cluster) poolDefinition(t *testing.T) {
	s := c.site(t, []string{"epp"}, nil, "a", "b")
	l := Traffic(t, s.http, 8, 8, nil)
	s.serves(l, s.endpoint("a"), s.endpoint("b"))
	crd := filepath.Join(modules(t), "config", "crd", "bases", "inference.networking.k8s.io_inferencepools.yaml")
	for range 2 {
		s.Kubectl(t, "delete", "-f", crd)
		s.measures("llm_d_epp_flow_control_queue_size", 8)
		s.Kubectl(t, "apply", "-f", crd)
		s.Kubectl(t, "wait", "--for=condition=Established", "crd", "--all", "--timeout=60s")
		rig.Eventually(t, "the pool to be taken", func() error {
			_, err := s.kubectl(t.Context(), basics("60s"), "apply", "-n", s.ns, "-f", "-")
			return err
		})
		s.serves(l, s.endpoint("a"), s.endpoint("b"))
	}
	s.whole(l)
}

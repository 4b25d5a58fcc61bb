// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/penstock-project/penstock/e2e/rig"
)

// TestDropIn puts penstock where llm-d's Endpoint Picker was, with llm-d's manifests, flags and permissions, and lets happen
// to it what happens in a cluster, under load. No request is lost that could have been served.
func TestDropIn(t *testing.T) {
	c := New(t)
	t.Run("crds come and go", c.crdsComeAndGo) // first, since there are none yet
	c.ours(t)
	t.Run("pods", c.podsComeAndGo)
	t.Run("streams survive", c.streamsSurvive)
	t.Run("IPv6", c.ipv6)
	t.Run("engines fail", c.enginesFail)
	t.Run("rolling update", c.rollingUpdate)
	t.Run("scale to zero", c.scaleToZero)
	t.Run("objectives", c.objectives)
	t.Run("configuration", c.configEdits)
	t.Run("pool definition", c.poolDefinition)
	t.Run("watches drop", c.watchesDrop)
	t.Run("API outage", c.outage)
	t.Run("unreachable", c.unreachable)
	t.Run("permissions", c.permissions)
	t.Run("access", c.metricsAccess)
	t.Run("llm-d", c.asLLMD)
	t.Run("examples", c.examples)
}

// whole ends a load and fails the test when an answer was not whole, or when the picker did not count what became of each
// request, of this load and of others.
func (s *site) whole(l *Load) {
	s.t.Helper()
	all := l.Stop()
	s.t.Log(all)
	if len(all.Lost()) > 0 {
		s.t.Error("requests were lost that could have been served")
	}
	s.counted()
}

// counted waits until the picker has counted the outcome of each request that was sent.
func (s *site) counted() {
	s.t.Helper()
	s.measures("penstock_request_end_total", float64(sentTo(s.http)))
	s.measures("penstock_inflight_drift", 0)
	for line := range strings.Lines(s.Logs(s.ns, s.pickers[0])) {
		if strings.Contains(line, `"msg":"metrics page"`) {
			s.t.Error(line)
		}
	}
}

// podsComeAndGo changes the pool's pods in all the ways in which pods change by themselves or by an operator.
func (c *Cluster) podsComeAndGo(t *testing.T) {
	s := c.site(t, []string{"epp"}, nil, "a", "b")
	l := Traffic(t, s.http, 8, 8, nil)
	a, b := s.endpoint("a"), s.endpoint("b")
	s.serves(l, a, b)

	s.Unready(t, s.ns, "a", true)
	s.serves(l, b)
	s.Unready(t, s.ns, "a", false)
	s.serves(l, a, b)

	six := s.engine("six", `annotations: {test/family: IPv6}`)
	s.serves(l, a, b, six)

	// Terminating: the mark is there while the pod still runs, is ready, and finishes what it has.
	s.Kubectl(t, "delete", "pod", "-n", s.ns, "b", "--wait=false")
	s.serves(l, a, six)
	s.Kubectl(t, "wait", "--for=delete", "pod/b", "-n", s.ns, "--timeout=90s")
	again := s.engine("b", "")
	if again == b {
		t.Fatalf("pod b has its old address %s: this tries nothing", b)
	}
	s.serves(l, a, six, again)

	s.Kubectl(t, "label", "pod", "-n", s.ns, "six", "app=other", "--overwrite") // no longer the pool's
	s.serves(l, a, again)
	s.Kubectl(t, "patch", "pod", "-n", s.ns, "a", "--subresource=status", "--type=merge", "-p", `{"status":{"phase":"Failed"}}`)
	s.serves(l, again)
	s.whole(l)
}

// enginesFail kills an engine and switches a node off. What those had in hand is lost, and nothing else.
func (c *Cluster) enginesFail(t *testing.T) {
	const clients = 8
	s := c.site(t, []string{"epp"}, nil, "a")
	s.Apply(t, s.ns, strings.Replace(engine("far", ""), "spec:\n", "spec:\n  nodeName: node-2\n", 1))
	a, far := s.endpoint("a"), s.endpoint("far")
	l := Traffic(t, s.http, clients, 8, nil)
	s.serves(l, a, far)

	killed := time.Now()
	s.Crash(t, s.ns, "a")
	l.More(t, 2*clients)
	s.serves(l, a, far) // started again, in the same pod
	t.Log("an engine was killed:", l.Outcomes().Since(killed.Add(-time.Second)))

	s.Lose("node-2", 20*time.Second)
	lost := time.Now()
	s.serves(l, a)
	t.Logf("a node was switched off: served by the others alone after %v: %v", time.Since(lost).Round(100*time.Millisecond), l.Outcomes().Since(lost))
	since := time.Now()
	l.More(t, 200)
	if after := l.Stop().Since(since); len(after.Lost()) > 0 {
		t.Errorf("lost although a live engine was there: %v", after)
	}
}

// rollingUpdate replaces the engines one by one, as a deployment with a surge of one does.
func (c *Cluster) rollingUpdate(t *testing.T) {
	s := c.site(t, []string{"epp"}, nil, "old-1", "old-2", "old-3")
	l := Traffic(t, s.http, 8, 40, nil)
	var next []string
	for i := range 3 {
		next = append(next, s.engine(fmt.Sprintf("new-%d", i+1), ""))
		s.Kubectl(t, "delete", "pod", "-n", s.ns, fmt.Sprintf("old-%d", i+1))
	}
	s.serves(l, next...)
	s.whole(l)
}

// scaleToZero takes the last engine away: who asks waits for the next, for as long as noEndpointRequestTTL says, also after
// that is edited in the ConfigMap that the picker has mounted.
func (c *Cluster) scaleToZero(t *testing.T) {
	const clients = 8
	s := c.site(t, []string{"epp"}, nil, "a")
	l := Traffic(t, s.http, clients, 8, nil)
	s.serves(l, s.endpoint("a"))
	for range 2 {
		s.Kubectl(t, "delete", "pod", "-n", s.ns, "a")
		s.measures("llm_d_epp_flow_control_queue_size", clients)
		s.serves(l, s.engine("a", ""))
	}
	s.whole(l)
	s.Kubectl(t, "delete", "pod", "-n", s.ns, "a")
	s.Apply(t, s.ns, basics("1s"))
	s.shows("/debug/fleet", `"noEndpointRequestTTL": "1s"`)
	refused, err := s.metric("penstock_request_end_total", `end="refused"`)
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if o := Ask(s.http, "to an empty pool"); o.Status != http.StatusServiceUnavailable || o.Took < time.Second {
			t.Errorf("%+v", o)
		}
	}
	s.measures("penstock_request_end_total", refused+3, `end="refused"`)
	s.counted()
}

// objectives edits objectives while requests with them come.
func (c *Cluster) objectives(t *testing.T) {
	s := c.site(t, []string{"epp"}, nil, "a")
	l := Traffic(t, s.http, 4, 8, http.Header{"X-Llm-D-Inference-Objective": {"premium"}})
	s.priority("premium", 0) // nobody knows it
	s.objective("premium", 100)
	s.priority("premium", 100)
	s.condition("inferenceobjective", "premium", "Accepted", "True")
	s.objective("premium", 7)
	s.priority("premium", 7)
	s.Apply(t, s.ns, "apiVersion: llm-d.ai/v1\nkind: InferenceObjective\nmetadata: {name: stray}\nspec: {priority: 1, poolRefs: [{name: no-such-pool}]}\n")
	s.condition("inferenceobjective", "stray", "Accepted", "False")
	if _, err := s.kubectl(t.Context(), "apiVersion: llm-d.ai/v1\nkind: InferenceObjective\nmetadata: {name: none}\nspec: {priority: 1}\n", "apply", "-n", s.ns, "-f", "-"); err == nil {
		t.Error("an objective without a pool was taken")
	}
	// As users of llm-d before v1.0 wrote it.
	s.Apply(t, s.ns, "apiVersion: llm-d.ai/v1alpha2\nkind: InferenceObjective\nmetadata: {name: older}\nspec: {priority: 9, poolRef: {name: pool}}\n")
	s.priority("older", 9)
	s.Kubectl(t, "delete", "inferenceobjective", "-n", s.ns, "premium")
	s.priority("premium", 0)
	s.whole(l)
}

// crdsComeAndGo starts with the CRD of InferencePool alone; the optional ones are installed, removed and installed again. Then
// come those of the group of before, and ours beside them: the newer wins, and the older's status says so.
func (c *Cluster) crdsComeAndGo(t *testing.T) {
	s := c.site(t, []string{"epp"}, nil, "a")
	l := Traffic(t, s.http, 4, 8, nil)
	s.priority("premium", 0)
	for range 2 {
		c.ours(t)
		s.objective("premium", 50)
		s.priority("premium", 50)
		s.Kubectl(t, "delete", "-f", filepath.Join(rig.Root(), "deploy", "crds"))
		s.priority("premium", 0)
	}
	ours, err := os.ReadFile(filepath.Join(rig.Root(), "deploy", "crds", "llm-d.ai_inferenceobjectives.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	const older = "inference.networking.x-k8s.io"
	s.Apply(t, s.ns, strings.ReplaceAll(string(ours), "llm-d.ai", older))
	s.Kubectl(t, "wait", "--for=condition=Established", "crd", "--all", "--timeout=60s")
	rig.Eventually(t, "an objective of the older group to be taken", func() error {
		_, err := s.kubectl(t.Context(), "apiVersion: "+older+"/v1alpha2\nkind: InferenceObjective\nmetadata: {name: premium}\nspec: {priority: 30, poolRef: {name: pool}}\n", "apply", "-n", s.ns, "-f", "-")
		return err
	})
	s.priority("premium", 30)
	c.ours(t)
	s.objective("premium", 60)
	s.priority("premium", 60)
	s.condition("inferenceobjectives.v1alpha2."+older, "premium", "Accepted", "False")
	s.condition("inferenceobjectives.v1.llm-d.ai", "premium", "Accepted", "True")
	s.Kubectl(t, "delete", "crd", "inferenceobjectives."+older)
	if err := os.RemoveAll(filepath.Join(c.dir, ".kube")); err != nil { // kubectl remembers the kinds for hours
		t.Error(err)
	}
	s.priority("premium", 60)
	s.whole(l)
}

// outage makes the API server hang, and then end and come back, under load. What has changed meanwhile is seen afterwards.
func (c *Cluster) outage(t *testing.T) {
	s := c.site(t, []string{"epp"}, nil, "a", "b")
	l := Traffic(t, s.http, 8, 8, nil)
	a, b := s.endpoint("a"), s.endpoint("b")
	s.serves(l, a, b)
	s.Freeze()
	time.Sleep(15 * time.Second) // longer than a call of the picker may take
	s.serves(l, a, b)
	s.Thaw()
	third := s.engine("c", "")
	s.serves(l, a, b, third)

	s.Cluster.Stop(t)
	s.serves(l, a, b, third)
	s.Cluster.Start(t)
	fourth := s.engine("d", "")
	s.serves(l, a, b, third, fourth)
	s.whole(l)
}

// permissions takes the picker's permissions away, some and then all, and gives them back. A watch that is open goes on
// without them, so the API server is restarted each time.
func (c *Cluster) permissions(t *testing.T) {
	s := c.site(t, []string{"epp"}, nil, "a")
	l := Traffic(t, s.http, 4, 8, nil)
	a := s.endpoint("a")
	restart := func() {
		s.Cluster.Stop(t)
		s.Cluster.Start(t)
	}
	s.objective("premium", 40)
	s.priority("premium", 40)

	// Without the objectives' permission the pods are followed all the same, and the picker says what it lacks.
	fewer := strings.Replace(basics("60s"), "resources: [inferenceobjectives, inferencemodelrewrites]", "resources: [inferencemodelrewrites]", 1)
	s.Apply(t, s.ns, fewer)
	restart()
	b := s.engine("b", "")
	s.serves(l, a, b)
	rig.Eventually(t, "the picker to say what it may not", func() error {
		for line := range strings.Lines(s.Logs(s.ns, "epp")) {
			if strings.Contains(line, "inferenceobjectives") && (strings.Contains(line, "list") || strings.Contains(line, "watch")) {
				return nil
			}
		}
		return errors.New("no line names the verb and inferenceobjectives")
	})

	s.Kubectl(t, "delete", "rolebinding", "-n", s.ns, "epp")
	restart()
	unseen := s.engine("c", "")
	s.serves(l, a, b)
	s.Apply(t, s.ns, basics("60s"))
	s.serves(l, a, b, unseen)
	s.objective("premium", 41)
	s.priority("premium", 41)
	s.whole(l)
}

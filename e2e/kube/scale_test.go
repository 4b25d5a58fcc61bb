// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/penstock-project/penstock/e2e/rig"
)

// TestManyPods starts a picker for a pool of 500 pods, and replaces each pod of as many, or of PENSTOCK_KUBE_PODS. One engine answers
// at all their addresses.
func TestManyPods(t *testing.T) {
	const pods = 500
	c := New(t)
	c.ours(t)
	ns := c.Namespace(t)
	c.Apply(t, ns, basics("60s")+
		strings.Replace(engine("all", `annotations: {test/serves: `+many+`}`), "app: vllm", "app: all", 1))
	c.Addr(t, ns, "all")
	c.fleet(t, ns, "vllm", 0, pods)

	began := time.Now()
	c.Apply(t, ns, picker("epp", "--refresh-metrics-interval", "1s"))
	applied := time.Now()
	s := &site{Cluster: c, t: t, ns: ns, pickers: []string{"epp"}}
	rig.Eventually(t, "the picker to be ready", func() error {
		_, why := s.page("epp", "/readyz")
		return errors.Join(s.ready("epp"), why)
	})
	ready := time.Now()
	known := func(want int) {
		t.Helper()
		rig.Eventually(t, fmt.Sprintf("%d ready endpoints", want), func() error {
			got, err := s.metric("llm_d_epp_ready_endpoints")
			if err == nil && got != float64(want) {
				err = fmt.Errorf("%v are", got)
			}
			return err
		})
	}
	known(pods)
	t.Logf("%d pods: ready %v after kubectl apply (which took %v), all endpoints alive after %v; RSS %.0f MiB",
		pods, ready.Sub(applied).Round(time.Millisecond), applied.Sub(began).Round(time.Millisecond), time.Since(applied).Round(time.Millisecond), s.RSS(ns, "epp"))
	s.envoy(c.Addr(t, ns, "epp") + ":9002")
	s.answers()

	all := pods
	if n, err := strconv.Atoi(os.Getenv("PENSTOCK_KUBE_PODS")); err == nil && n > pods {
		all = n
	}
	const wave = 250
	for first := pods; first < all; first += wave {
		c.fleet(t, ns, "vllm", first, wave)
	}
	known(all)
	l := Traffic(t, s.http, 4, 8, nil)
	l.More(t, 20)
	before, churn := s.RSS(ns, "epp"), time.Now()
	for first := 0; first < all; first += wave { // as a deployment does whose surge is a wave
		c.fleet(t, ns, "vllm", all+first, wave)
		for i := range wave {
			c.remove(t, ns, first+i)
		}
	}
	rig.Eventually(t, "the picker to know the new pods and to forget the old ones", func() error {
		page, err := s.page("epp", "/debug/fleet")
		if err == nil && (!strings.Contains(page, fmt.Sprintf("p%d-rank-0", 2*all-1)) || strings.Contains(page, fmt.Sprintf("p%d-rank-0", all-1))) {
			err = errors.New("not yet")
		}
		return err
	})
	known(all)
	took, after := time.Since(churn), s.RSS(ns, "epp")
	s.measures("penstock_kube_list_difference", 0)
	l.More(t, 200)
	t.Logf("each of %d pods replaced in %v; RSS %.0f MiB before, %.0f MiB after, %.0f MiB some seconds later", all, took.Round(time.Millisecond), before, after, s.RSS(ns, "epp"))
	s.whole(l)
}

// TestManyPools serves ten pools of twenty pods from one process, and from ten.
func TestManyPools(t *testing.T) {
	const pools, pods = 10, 20
	c := New(t)
	c.ours(t)
	ns := c.Namespace(t)
	manifests := basics("60s") +
		strings.Replace(engine("all", `annotations: {test/serves: `+many+`}`), "app: vllm", "app: all", 1)
	for i := range pools {
		manifests += fmt.Sprintf("---\napiVersion: inference.networking.k8s.io/v1\nkind: InferencePool\nmetadata: {name: pool-%d}\n"+
			"spec: {selector: {matchLabels: {app: app-%d}}, targetPorts: [{number: 8000}], endpointPickerRef: {name: epp, port: {number: 9002}}}\n", i, i)
	}
	c.Apply(t, ns, manifests)
	c.Addr(t, ns, "all")
	for i := range pools {
		c.fleet(t, ns, fmt.Sprintf("app-%d", i), i*pods, pods)
	}
	// measure waits until the pickers know the pods and returns their memory and processor time.
	measure := func(pickers []string, pods float64) (rss, cores float64) {
		for _, name := range pickers {
			s := &site{Cluster: c, t: t, ns: ns, pickers: []string{name}}
			rig.Eventually(t, name+" to know its pods", func() error {
				got, err := s.metric("llm_d_epp_ready_endpoints")
				if err == nil && got != pods {
					err = fmt.Errorf("%v of %v", got, pods)
				}
				return err
			})
		}
		began, used := time.Now(), c.CPU(ns, pickers...)
		time.Sleep(5 * time.Second)
		cores = (c.CPU(ns, pickers...) - used).Seconds() / time.Since(began).Seconds()
		for _, name := range pickers {
			rss += c.RSS(ns, name)
		}
		return rss, cores
	}
	one := picker("one", "--all-pools", "--namespaces", "$(NAMESPACE)", "--refresh-metrics-interval", "1s")
	c.Apply(t, ns, strings.Replace(one, `"--pool-name", "pool", "--pool-namespace", "$(NAMESPACE)", `, "", 1))
	rss, cores := measure([]string{"one"}, pools*pods)
	t.Logf("one process for %d pools of %d pods: %.0f MiB, %.2f cores without a request", pools, pods, rss, cores)
	c.Kubectl(t, "delete", "pod", "-n", ns, "one", "--grace-period=1")

	var each []string
	for i := range pools {
		name := fmt.Sprintf("epp-%d", i)
		each = append(each, name)
		c.Apply(t, ns, strings.Replace(picker(name, "--refresh-metrics-interval", "1s"), `"--pool-name", "pool"`, fmt.Sprintf(`"--pool-name", "pool-%d"`, i), 1))
	}
	rss, cores = measure(each, pods)
	t.Logf("a process for each of them: %.0f MiB, %.2f cores", rss, cores)
}

// remove deletes a pod that fleet made, at once.
func (c *Cluster) remove(t *testing.T, ns string, i int) {
	if err := c.Do(t.Context(), "DELETE", fmt.Sprintf("/api/v1/namespaces/%s/pods/p%d?gracePeriodSeconds=0", ns, i), nil, nil); err != nil {
		t.Error(err)
	}
}

// fleet makes pods of the pool that exist as objects only; their addresses are those of the engine that serves them all.
func (c *Cluster) fleet(t *testing.T, ns, app string, first, n int) {
	t.Helper()
	next := make(chan int)
	var makers sync.WaitGroup
	for range 8 {
		makers.Go(func() {
			for i := range next {
				name := fmt.Sprintf("p%d", i)
				path := "/api/v1/namespaces/" + ns + "/pods"
				addr := fmt.Sprintf("10.245.%d.%d", i/250, 1+i%250)
				err := c.Do(t.Context(), "POST", path, object{
					"metadata": object{"name": name, "labels": object{"app": app, "wave": fmt.Sprint(first)}, "annotations": object{"test/status": "none"}},
					"spec":     object{"nodeName": "node-1", "containers": []object{{"name": "vllm", "image": "vllm-sim"}}}}, nil)
				if err == nil {
					err = c.Do(t.Context(), "PATCH", path+"/"+name+"/status", object{"status": object{"phase": "Running", "podIP": addr, "podIPs": []object{{"ip": addr}},
						"conditions": []object{{"type": "Ready", "status": "True"}, {"type": "ContainersReady", "status": "True"}}}}, nil)
				}
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	for i := range n {
		next <- first + i
	}
	close(next)
	makers.Wait()
}

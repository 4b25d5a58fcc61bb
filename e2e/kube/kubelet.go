// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/penstock-project/penstock/e2e/rig"
)

// Kubelet runs the pods of all nodes. It binds those that nobody has bound, to the node "node-1".
type Kubelet struct {
	c        *Cluster
	penstock string // the program
	dir      string
	work     sync.WaitGroup
	ctx      context.Context

	mu   sync.Mutex
	pods map[string]*pod // by UID, also those that have ended: the watch may still speak of them
}

// addresses counts the pods of all clusters, so that no two have the same address and neighbours that remember one are right.
var addresses atomic.Int64

// manifest is what the kubelet reads of a pod.
type manifest struct {
	Metadata struct {
		Name, Namespace, UID       string
		Annotations                map[string]string
		DeletionTimestamp          *time.Time
		DeletionGracePeriodSeconds int
	}
	Spec struct {
		NodeName, ServiceAccountName string
		InitContainers, Containers   []container
		Volumes                      []volume
	}
}

type volume struct {
	Name      string
	ConfigMap *struct{ Name string }
}

type container struct {
	Name, Image   string
	RestartPolicy string
	Command, Args []string
	Env           []struct {
		Name, Value string
		ValueFrom   *struct {
			FieldRef *struct{ FieldPath string }
		}
	}
	VolumeMounts []struct{ Name, MountPath string }
	Ports        []struct {
		Name          string
		ContainerPort int
	}
	ReadinessProbe *probe
	Lifecycle      *struct {
		PreStop *struct {
			Sleep *struct{ Seconds int }
		}
	}
}

func newKubelet(t *testing.T, c *Cluster) *Kubelet {
	ctx, cancel := context.WithCancel(context.Background())
	k := &Kubelet{c: c, penstock: rig.Penstock(t), dir: t.TempDir(), ctx: ctx, pods: map[string]*pod{}}
	k.work.Go(k.watch)
	t.Cleanup(func() {
		cancel()
		k.work.Wait()
	})
	return k
}

// watch follows the pods of the cluster and begins anew when the watch breaks.
func (k *Kubelet) watch() {
	for k.ctx.Err() == nil {
		var list struct {
			Metadata struct{ ResourceVersion string }
			Items    []manifest
		}
		if err := k.c.Do(k.ctx, "GET", "/api/v1/pods", nil, &list); err != nil {
			wait(k.ctx, 200*time.Millisecond)
			continue
		}
		there := map[string]bool{}
		for _, m := range list.Items {
			there[m.Metadata.UID] = true
			k.seen(m)
		}
		k.mu.Lock()
		for uid, p := range k.pods {
			if !there[uid] {
				p.remove()
			}
		}
		k.mu.Unlock()
		response, err := k.c.send(k.ctx, "GET", "/api/v1/pods?watch=1&resourceVersion="+list.Metadata.ResourceVersion, nil)
		if err != nil {
			continue
		}
		events := json.NewDecoder(response.Body)
		for {
			var e struct {
				Type   string
				Object manifest
			}
			if events.Decode(&e) != nil || e.Type == "ERROR" {
				break
			}
			if e.Type != "DELETED" {
				k.seen(e.Object)
				continue
			}
			k.mu.Lock()
			if p := k.pods[e.Object.Metadata.UID]; p != nil {
				p.remove()
			}
			k.mu.Unlock()
		}
		response.Body.Close()
	}
}

// seen starts a pod that is new, and ends one that is to end.
func (k *Kubelet) seen(m manifest) {
	k.mu.Lock()
	defer k.mu.Unlock()
	p := k.pods[m.Metadata.UID]
	if p == nil {
		if m.Metadata.Annotations["test/status"] == "none" {
			return // the test writes its status
		}
		p = &pod{k: k, manifest: m, dir: filepath.Join(k.dir, m.Metadata.UID), ending: make(chan int, 1), removed: make(chan struct{}),
			lost: make(chan time.Duration, 1), ended: make(chan struct{}), exited: make(chan *process, 8), restarts: map[string]int{}}
		p.number = int(addresses.Add(1))
		k.pods[m.Metadata.UID] = p
		k.work.Go(func() {
			p.live(k.ctx)
			close(p.ended)
		})
	}
	if m.Metadata.DeletionTimestamp != nil {
		select {
		case p.ending <- m.Metadata.DeletionGracePeriodSeconds:
		default:
		}
	}
}

// pod returns a running pod by its name.
func (k *Kubelet) pod(namespace, name string) *pod {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, p := range k.pods {
		if p.manifest.Metadata.Namespace == namespace && p.manifest.Metadata.Name == name && !p.gone() {
			return p
		}
	}
	return nil
}

// running is a running pod by its name.
func (k *Kubelet) running(t testing.TB, namespace, name string) *pod {
	t.Helper()
	p := k.pod(namespace, name)
	if p == nil {
		t.Fatalf("no pod %s/%s", namespace, name)
	}
	return p
}

// Crash kills a pod's processes, and returns when they have ended. They start again in the same pod, with the same address.
func (k *Kubelet) Crash(t testing.TB, namespace, name string) {
	t.Helper()
	p := k.running(t, namespace, name)
	p.mu.Lock()
	processes := slices.Clone(p.processes)
	p.mu.Unlock()
	p.kill()
	for _, x := range processes {
		<-x.done
	}
}

// Signal sends a signal to a pod's processes.
func (k *Kubelet) Signal(t testing.TB, namespace, name string, s syscall.Signal) {
	t.Helper()
	for _, pid := range k.running(t, namespace, name).pids() {
		syscall.Kill(-pid, s)
	}
}

// Drop breaks the connections between a pod and the API server, and returns how many there were.
func (k *Kubelet) Drop(t testing.TB, namespace, name string) int {
	t.Helper()
	broken, err := output("ip", "netns", "exec", k.running(t, namespace, name).name(), "ss", "-H", "-K", "dst", api4)
	if err != nil {
		t.Fatal(err)
	}
	return strings.Count(broken, api4)
}

// Cut has what a pod and the API server send each other go nowhere, or no longer: nobody hears why.
func (k *Kubelet) Cut(t testing.TB, namespace, name string, cut bool) {
	t.Helper()
	pod, command := k.running(t, namespace, name).name(), "route del "+api4+" dev lo"
	if cut { // what comes from where nothing is sent to is dropped
		command = "route add " + api4 + " dev lo"
		if _, err := output("ip", "netns", "exec", pod, "sh", "-c", "echo 1 > /proc/sys/net/ipv4/conf/all/rp_filter"); err != nil {
			t.Fatal(err)
		}
	}
	if err := link(pod, command); err != nil {
		t.Fatal(err)
	}
}

// Unready makes a pod's readiness probe fail, or no longer, while it serves all the same.
func (k *Kubelet) Unready(t testing.TB, namespace, name string, unready bool) {
	t.Helper()
	k.running(t, namespace, name).unready.Store(unready)
}

// Lose switches a node off: its pods answer nothing any more, and the cluster learns of it only after a while.
func (k *Kubelet) Lose(node string, noticed time.Duration) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, p := range k.pods {
		if p.manifest.Spec.NodeName == node && !p.gone() {
			p.lost <- noticed
		}
	}
}

// RSS is the resident memory of a pod's processes in MiB.
func (k *Kubelet) RSS(namespace, name string) float64 {
	sum := 0.0
	if p := k.pod(namespace, name); p != nil {
		for _, pid := range p.pids() {
			sum += float64(status(pid, "VmRSS")) / 1024
		}
	}
	return sum
}

// CPU is the processor time that pods have used.
func (k *Kubelet) CPU(namespace string, names ...string) time.Duration {
	var sum time.Duration
	for _, name := range names {
		if p := k.pod(namespace, name); p != nil {
			for _, pid := range p.pids() {
				sum += cpu(pid)
			}
		}
	}
	return sum
}

// Logs is what a pod has printed so far.
func (k *Kubelet) Logs(namespace, name string) string {
	var all bytes.Buffer
	if p := k.pod(namespace, name); p != nil {
		files, _ := filepath.Glob(filepath.Join(p.dir, "*.log"))
		for _, f := range files {
			text, _ := os.ReadFile(f)
			all.Write(text)
		}
	}
	return all.String()
}

// Addr returns the address of a pod that is ready, and waits until it is.
func (k *Kubelet) Addr(t testing.TB, namespace, name string) string {
	t.Helper()
	var addr string
	defer func() {
		if addr == "" {
			t.Logf("what pod %s printed:\n%s", name, k.Logs(namespace, name))
		}
	}()
	rig.Eventually(t, "pod "+name+" to be ready", func() error {
		var got struct {
			Status struct {
				PodIP      string
				Conditions []struct{ Type, Status string }
			}
		}
		if err := k.c.Do(t.Context(), "GET", "/api/v1/namespaces/"+namespace+"/pods/"+name, nil, &got); err != nil {
			return err
		}
		for _, c := range got.Status.Conditions {
			if c.Type == "Ready" && c.Status == "True" {
				addr = got.Status.PodIP
				return nil
			}
		}
		return errors.New("not ready")
	})
	return addr
}

// evict ends the pods of a namespace at once; when the test failed it shows what the pickers printed.
func (k *Kubelet) evict(t testing.TB, namespace string) {
	k.mu.Lock()
	pods := maps.Clone(k.pods)
	k.mu.Unlock()
	for uid, p := range pods {
		if p.manifest.Metadata.Namespace != namespace {
			delete(pods, uid)
		} else if t.Failed() && p.picker() && !p.gone() {
			text := ""
			for line := range strings.Lines(k.Logs(namespace, p.manifest.Metadata.Name)) {
				if !strings.Contains(line, `"msg":"request"`) {
					text += line
				}
			}
			t.Logf("the end of what %s printed, but for requests:\n%s", p.manifest.Metadata.Name, text[max(0, len(text)-8000):])
		}
	}
	err := k.c.Do(context.Background(), "DELETE", "/api/v1/namespaces/"+namespace+"/pods?gracePeriodSeconds=0", nil, nil)
	if err != nil {
		t.Error("at the end:", err)
		return
	}
	for _, p := range pods {
		<-p.ended
	}
}

// wait is a pause that ends with ctx.
func wait(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// link runs commands of ip in a network namespace, the node's when it is "".
func link(namespace string, commands ...string) error {
	argv := []string{"ip"}
	if namespace != "" {
		argv = append(argv, "-n", namespace)
	}
	for _, c := range commands {
		if _, err := output(append(argv, strings.Fields(c)...)...); err != nil {
			return fmt.Errorf("network: %w", err)
		}
	}
	return nil
}

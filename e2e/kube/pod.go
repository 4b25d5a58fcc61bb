// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// secrets is where a pod finds its account's token.
const secrets = "/run/secrets/kubernetes.io/serviceaccount"

// pod is one that runs. Its manifest, address and folder do not change.
type pod struct {
	k        *Kubelet
	manifest manifest
	dir      string
	number   int

	ending  chan int           // the grace period in seconds, when it is to end
	removed chan struct{}      // closed when the API no longer has it
	lost    chan time.Duration // its node was switched off
	ended   chan struct{}
	exited  chan *process
	once    sync.Once

	mu        sync.Mutex
	processes []*process

	ready    bool
	unready  atomic.Bool
	restarts map[string]int
	told     string // the status that the API has
	started  time.Time
	fresh    time.Time // when its config maps were last looked at
}

// process is a running container.
type process struct {
	container
	cmd   *exec.Cmd
	ready *probing
	done  chan struct{}
}

// say adds a line to what the pod has printed.
func (p *pod) say(err error) {
	if f, e := os.OpenFile(filepath.Join(p.dir, "kubelet.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600); e == nil {
		fmt.Fprintln(f, "kubelet:", err)
		f.Close()
	}
}

// gone reports whether it has ended.
func (p *pod) gone() bool {
	select {
	case <-p.ended:
		return true
	default:
		return false
	}
}

func (p *pod) remove() { p.once.Do(func() { close(p.removed) }) }

// path is the pod's in the API.
func (p *pod) path() string {
	return "/api/v1/namespaces/" + p.manifest.Metadata.Namespace + "/pods/" + p.manifest.Metadata.Name
}

// ip is the pod's address, of the family that its annotation asks for.
func (p *pod) ip() string {
	if p.manifest.Metadata.Annotations["test/family"] == "IPv6" {
		return p.ip6()
	}
	return p.ip4()
}

func (p *pod) ip4() string { return fmt.Sprintf("10.244.%d.%d", 1+p.number/250, 1+p.number%250) }
func (p *pod) ip6() string { return fmt.Sprintf("fd00:244::%x", 16+p.number) }

// picker reports whether it runs an Endpoint Picker.
func (p *pod) picker() bool {
	return slices.ContainsFunc(p.manifest.Spec.Containers, func(c container) bool { return !strings.Contains(c.Image, "vllm") })
}

// live runs the pod until it has ended.
func (p *pod) live(ctx context.Context) {
	defer p.stop()
	for err := p.start(ctx); err != nil; err = p.start(ctx) {
		p.say(err)
		p.stop()
		select {
		case <-ctx.Done():
			return
		case <-p.removed:
			return
		case <-time.After(time.Second):
		}
	}
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-p.removed:
			return
		case grace := <-p.ending:
			p.terminate(ctx, time.Duration(grace)*time.Second)
			return
		case noticed := <-p.lost:
			link("", fmt.Sprintf("link set v%d down", p.number))
			p.kill()
			wait(ctx, noticed)
			p.ready, p.processes = false, nil
			for p.report(ctx) != nil {
				wait(ctx, time.Second)
			}
			select {
			case <-ctx.Done():
			case <-p.removed:
			}
			return
		case x := <-p.exited:
			p.restarts[x.Name]++
			wait(ctx, min(time.Second<<p.restarts[x.Name]/8, 5*time.Second))
			p.mu.Lock()
			p.processes = slices.DeleteFunc(p.processes, func(o *process) bool { return o == x })
			p.mu.Unlock()
			if err := p.run(x.container); err != nil {
				p.say(err)
			}
		case <-tick.C:
		}
		p.look(ctx)
		p.report(ctx) // tried again with the next tick
	}
}

// start gives the pod a node, a network and its processes.
func (p *pod) start(ctx context.Context) error {
	m := &p.manifest
	if err := os.MkdirAll(filepath.Join(p.dir, "account"), 0o755); err != nil {
		return err
	}
	if m.Spec.NodeName == "" {
		err := p.k.c.Do(ctx, "POST", p.path()+"/binding", object{"metadata": object{"name": m.Metadata.Name}, "target": object{"kind": "Node", "name": "node-1"}}, nil)
		var r Refusal
		if err != nil && !(errors.As(err, &r) && r.Status == http.StatusConflict) { // somebody has bound it
			return err
		}
		m.Spec.NodeName = "node-1"
	}
	p.started = time.Now()
	var all []container
	for _, c := range append(m.Spec.InitContainers, m.Spec.Containers...) {
		if len(p.k.program(c)) > 0 {
			all = append(all, c)
		}
	}
	if len(all) == 0 {
		return nil
	}
	if err := p.network(); err != nil {
		return err
	}
	var token struct{ Status struct{ Token string } }
	account := "/api/v1/namespaces/" + m.Metadata.Namespace + "/serviceaccounts/" + m.Spec.ServiceAccountName + "/token"
	if err := p.k.c.Do(ctx, "POST", account, object{"spec": object{"expirationSeconds": 86400}}, &token); err != nil {
		return err
	}
	for name, text := range map[string]string{"token": token.Status.Token, "namespace": m.Metadata.Namespace, "ca.crt": string(p.k.c.ca)} {
		if err := os.WriteFile(filepath.Join(p.dir, "account", name), []byte(text), 0o600); err != nil {
			return err
		}
	}
	if err := p.volumes(ctx); err != nil {
		return err
	}
	for _, c := range all {
		if err := p.run(c); err != nil {
			return err
		}
	}
	return nil
}

// network makes the pod's namespace of network, with an address on the bridge.
func (p *pod) network() error {
	name, veth := p.name(), fmt.Sprintf("v%d", p.number)
	err := link("", "netns add "+name, "link add "+veth+" type veth peer name eth0 netns "+name, "link set "+veth+" master br0 up")
	if err != nil {
		return err
	}
	// Each pod can reach both families; the API has one address of it.
	address := []string{"addr add " + p.ip4() + "/16 dev eth0", "addr add " + p.ip6() + "/64 dev eth0 nodad"}
	gateway := "route add default via " + gateway4
	if p.manifest.Metadata.Annotations["test/serves"] != "" {
		address = append(address, "route add local "+p.manifest.Metadata.Annotations["test/serves"]+" dev lo")
	}
	if err := link(name, append([]string{"link set lo up", "link set eth0 up"}, append(address, gateway)...)...); err != nil {
		return err
	}
	if serves := p.manifest.Metadata.Annotations["test/serves"]; serves != "" {
		return link("", "route replace "+serves+" via "+p.ip())
	}
	return nil
}

// name is that of the network namespace.
func (p *pod) name() string { return fmt.Sprintf("pod%d", p.number) }

// program is what a container's image starts. An image that holds nothing ("pause") starts nothing.
func (k *Kubelet) program(c container) []string {
	image := c.Image[strings.LastIndex(c.Image, "/")+1:]
	image, _, _ = strings.Cut(image, ":")
	switch {
	case len(c.Command) > 0 && c.Command[0] == "/penstock":
		return append([]string{k.penstock}, c.Command[1:]...)
	case len(c.Command) > 0:
		return c.Command
	case image == "pause":
		return nil
	case strings.Contains(image, "vllm"):
		return []string{k.penstock, "sim", "engine"}
	}
	return []string{k.penstock, "epp"} // ours, and llm-d's, which had several names
}

// run starts a container.
func (p *pod) run(c container) error {
	env := map[string]string{"KUBERNETES_SERVICE_HOST": api4, "KUBERNETES_SERVICE_PORT": "6443"}
	for _, e := range c.Env {
		env[e.Name] = e.Value
		if e.ValueFrom != nil && e.ValueFrom.FieldRef != nil {
			env[e.Name] = map[string]string{"metadata.name": p.manifest.Metadata.Name, "metadata.namespace": p.manifest.Metadata.Namespace,
				"metadata.uid": p.manifest.Metadata.UID, "status.podIP": p.ip(), "spec.nodeName": p.manifest.Spec.NodeName}[e.ValueFrom.FieldRef.FieldPath]
		}
	}
	// A namespace of mounts with the account, in one of network. What the manifest mounts elsewhere is not mounted:
	// arguments that name a folder of the manifest get the folder's place here.
	argv := append([]string{"ip", "netns", "exec", p.name(), "sh", "-c", `mount --bind "$0" ` + secrets + ` && exec "$@"`, filepath.Join(p.dir, "account")}, p.k.program(c)...)
	for _, arg := range c.Args {
		for name, value := range env {
			arg = strings.ReplaceAll(arg, "$("+name+")", value)
		}
		for _, m := range c.VolumeMounts {
			arg = strings.ReplaceAll(arg, strings.TrimSuffix(m.MountPath, "/")+"/", filepath.Join(p.dir, "volumes", m.Name)+"/")
		}
		argv = append(argv, arg)
	}
	out, err := os.OpenFile(filepath.Join(p.dir, c.Name+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer out.Close()
	x := &process{container: c, cmd: exec.Command(argv[0], argv[1:]...), ready: &probing{}, done: make(chan struct{})}
	x.cmd.Dir, x.cmd.Stdout, x.cmd.Stderr = p.dir, out, out
	x.cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + p.dir}
	for name, value := range env {
		x.cmd.Env = append(x.cmd.Env, name+"="+value)
	}
	x.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := x.cmd.Start(); err != nil {
		return err
	}
	p.mu.Lock()
	p.processes = append(p.processes, x)
	p.mu.Unlock()
	go func() {
		x.cmd.Wait()
		close(x.done)
		select {
		case p.exited <- x:
		case <-p.ended:
		}
	}()
	return nil
}

// volumes writes the config maps that the pod mounts, each in one step.
func (p *pod) volumes(ctx context.Context) error {
	for _, v := range p.manifest.Spec.Volumes {
		dir := filepath.Join(p.dir, "volumes", v.Name)
		if err := os.MkdirAll(dir, 0o755); err != nil || v.ConfigMap == nil {
			continue
		}
		var config struct {
			Metadata struct{ ResourceVersion string }
			Data     map[string]string
		}
		if err := p.k.c.Do(ctx, "GET", "/api/v1/namespaces/"+p.manifest.Metadata.Namespace+"/configmaps/"+v.ConfigMap.Name, nil, &config); err != nil {
			return err
		}
		version := "..v" + config.Metadata.ResourceVersion
		if at, _ := os.Readlink(filepath.Join(dir, "..data")); at == version {
			continue
		}
		if err := os.MkdirAll(filepath.Join(dir, version), 0o755); err != nil {
			return err
		}
		for name, text := range config.Data {
			if err := os.WriteFile(filepath.Join(dir, version, name), []byte(text), 0o644); err != nil {
				return err
			}
			os.Symlink(filepath.Join("..data", name), filepath.Join(dir, name))
		}
		os.Symlink(version, filepath.Join(dir, "..next"))
		if err := os.Rename(filepath.Join(dir, "..next"), filepath.Join(dir, "..data")); err != nil {
			return err
		}
	}
	return nil
}

// look runs the probes that are due and notices config maps that have changed.
func (p *pod) look(ctx context.Context) {
	p.mu.Lock()
	processes := slices.Clone(p.processes)
	p.mu.Unlock()
	p.ready = !p.unready.Load()
	for _, x := range processes {
		p.ready = x.ready.look(ctx, x.container, p.ip()) && p.ready
	}
	if now := time.Now(); now.Sub(p.fresh) > time.Second {
		p.fresh = now
		p.volumes(ctx)
	}
}

// report writes the pod's status when it differs from what the API has.
func (p *pod) report(ctx context.Context) error {
	ready := map[bool]string{true: "True", false: "False"}[p.ready]
	var containers []object
	for _, c := range p.manifest.Spec.Containers {
		containers = append(containers, object{"name": c.Name, "image": c.Image, "imageID": "", "ready": p.ready, "restartCount": p.restarts[c.Name],
			"state": object{"running": object{"startedAt": p.started.UTC().Format(time.RFC3339)}}})
	}
	var conditions []object
	for _, name := range []string{"PodScheduled", "Initialized", "ContainersReady", "Ready"} {
		value := "True"
		if strings.HasSuffix(name, "Ready") {
			value = ready
		}
		conditions = append(conditions, object{"type": name, "status": value})
	}
	body := object{"metadata": object{"uid": p.manifest.Metadata.UID}, "status": object{"phase": "Running", "hostIP": gateway4, "podIP": p.ip(), "podIPs": []object{{"ip": p.ip()}},
		"startTime": p.started.UTC().Format(time.RFC3339), "conditions": conditions, "containerStatuses": containers}}
	text, _ := json.Marshal(body)
	if string(text) == p.told {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	err := p.k.c.Do(ctx, "PATCH", p.path()+"/status", body, nil)
	if err == nil || gone(err) {
		p.told, err = string(text), nil
	}
	return err
}

// terminate ends the pod as a kubelet does: what the manifest wants first, SIGTERM, and SIGKILL when the grace is over.
func (p *pod) terminate(ctx context.Context, grace time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, grace)
	defer cancel()
	stop := context.AfterFunc(ctx, p.kill)
	defer stop()
	go func() {
		select {
		case <-p.removed: // by force
			cancel()
		case <-p.ended:
		}
	}()
	p.mu.Lock()
	processes := slices.Clone(p.processes)
	p.mu.Unlock()
	var all sync.WaitGroup
	for _, x := range processes {
		all.Go(func() {
			if l := x.Lifecycle; l != nil && l.PreStop != nil && l.PreStop.Sleep != nil {
				wait(ctx, time.Duration(l.PreStop.Sleep.Seconds)*time.Second)
			}
			x.cmd.Process.Signal(syscall.SIGTERM)
			<-x.done
		})
	}
	all.Wait()
	p.stop()
	for p.k.ctx.Err() == nil {
		err := p.k.c.Do(p.k.ctx, "DELETE", p.path(), object{"gracePeriodSeconds": 0, "preconditions": object{"uid": p.manifest.Metadata.UID}}, nil)
		if err == nil || gone(err) {
			return
		}
		wait(p.k.ctx, 200*time.Millisecond)
	}
}

// kill ends the pod's processes at once.
func (p *pod) kill() {
	for _, pid := range p.pids() {
		syscall.Kill(-pid, syscall.SIGKILL)
	}
}

func (p *pod) pids() []int {
	p.mu.Lock()
	defer p.mu.Unlock()
	var pids []int
	for _, x := range p.processes {
		pids = append(pids, x.cmd.Process.Pid)
	}
	return pids
}

// stop ends the processes and takes the network down.
func (p *pod) stop() {
	p.kill()
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, x := range p.processes {
		<-x.done
	}
	if _, err := os.Stat("/run/netns/" + p.name()); err == nil {
		link("", "netns del "+p.name())
	}
	p.processes = nil
}

// status reads a number of /proc/PID/status.
func status(pid int, name string) int {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, name+":"); ok {
			n, _ := strconv.Atoi(strings.Fields(rest)[0])
			return n
		}
	}
	return 0
}

// cpu is the processor time of a process, from /proc/PID/stat: hundredths of a second in its 14th and 15th field.
func cpu(pid int) time.Duration {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	fields := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
	if len(fields) < 13 {
		return 0
	}
	user, _ := strconv.Atoi(fields[11])
	system, _ := strconv.Atoi(fields[12])
	return time.Duration(user+system) * 10 * time.Millisecond
}

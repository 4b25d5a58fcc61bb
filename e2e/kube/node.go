// SPDX-License-Identifier: Apache-2.0

// Package kube puts penstock into a Kubernetes cluster of real parts: etcd, kube-apiserver, kubectl and Envoy, and pods
// that are processes with a network namespace and an address of their own.
//
// What a cluster has besides, the package plays: the kubelet, the scheduler and the endpoints of a service. The tests and
// everything they start run in one namespace of mounts, processes and network, the node: its ports are free, nothing in it
// reaches the machine's own network, and all of it ends with the test binary, however that ends.
package kube

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"github.com/penstock-project/penstock/e2e/rig"
)

// gaie is where the CRDs of InferencePool come from: the module of the Gateway API Inference Extension.
const gaie = "sigs.k8s.io/gateway-api-inference-extension@v1.6.0"

// The node's addresses on the pods' network, and that of the API server. 10.245.0.0/16 is routed to the pod with the annotation that asks for it.
const (
	gateway4 = "10.244.0.1"
	api4     = "10.244.0.2"
	gateway6 = "fd00:244::1"
	many     = "10.245.0.0/16"
)

// Node runs the tests in a node: the test binary starts itself again in new namespaces. It returns the exit code.
func Node(m *testing.M) int {
	if os.Getenv("PENSTOCK_KUBE_BIN") == "" {
		return outside()
	}
	if err := network(); err != nil {
		fmt.Fprintln(os.Stderr, "the node's network:", err)
		return 1
	}
	return m.Run()
}

// outside finds the tools, which may have to be downloaded, and starts the node.
func outside() int {
	runtime.LockOSThread() // the node ends with the thread that started it
	fail := func(err error) int {
		fmt.Fprintln(os.Stderr, "the tests of the cluster cannot run:", err)
		return 1
	}
	bin, err := output(filepath.Join(rig.Root(), "scripts", "install-kube.sh"))
	if err != nil {
		return fail(err)
	}
	for _, script := range []string{"install-envoy.sh", "install-helm.sh", "install-crds.sh", "install-kube-controllers.sh"} {
		if _, err := output(filepath.Join(rig.Root(), "scripts", script)); err != nil {
			return fail(err)
		}
	}
	crds, err := output("go", "mod", "download", "-json", gaie)
	if err != nil {
		return fail(err)
	}
	for _, program := range []string{"ip", "mount", "ss"} {
		if _, err := exec.LookPath(program); err != nil {
			return fail(fmt.Errorf("%w: install iproute2 and mount", err))
		}
	}
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.Env = append(os.Environ(), "PENSTOCK_KUBE_BIN="+bin, "PENSTOCK_KUBE_CRDS="+crds)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL,
		Cloneflags: syscall.CLONE_NEWNET | syscall.CLONE_NEWNS | syscall.CLONE_NEWPID}
	if id := os.Getuid(); id != 0 { // root in a namespace of users will do
		cmd.SysProcAttr.Cloneflags |= syscall.CLONE_NEWUSER
		cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{HostID: id, Size: 1}}
		cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{HostID: os.Getgid(), Size: 1}}
	}
	err = cmd.Run()
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit):
		return max(exit.ExitCode(), 1)
	case errors.Is(err, fs.ErrPermission):
		return fail(fmt.Errorf("%w: namespaces need root, or a kernel that gives them to users", err))
	case err != nil:
		return fail(err)
	}
	return 0
}

// network makes the node's mounts and the bridge that joins the pods.
func network() error {
	for _, argv := range []string{
		"mount --make-rprivate /",
		"mount -t proc proc /proc",
		"mount -t tmpfs run /run", // for the names of network namespaces and what pods find in /var/run
		"ip link set lo up",
		"ip link add br0 address 02:00:00:00:00:01 type bridge", // or it has that of a pod, and another one when that ends
		"ip link set br0 up",
		"ip addr add " + gateway4 + "/16 dev br0",
		"ip addr add " + api4 + "/16 dev br0",
		"ip addr add " + gateway6 + "/64 dev br0 nodad",
	} {
		if _, err := output(strings.Fields(argv)...); err != nil {
			return err
		}
	}
	// Pods reach those of 10.245.0.0/16 by way of the node.
	if err := os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0); err != nil {
		return err
	}
	// Folders of tests end with the node, too, also when a test does not clean up.
	if err := os.Setenv("TMPDIR", "/run/tests"); err != nil {
		return err
	}
	return errors.Join(os.MkdirAll("/run/tests", 0o755), os.MkdirAll(secrets, 0o755))
}

// output runs a program and returns what it printed, without the last line's end.
func output(argv ...string) (string, error) {
	cmd := exec.Command(argv[0], argv[1:]...)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		err = fmt.Errorf("%s: %w\n%s", strings.Join(argv, " "), err, stderr.String())
	}
	return strings.TrimSpace(string(out)), err
}

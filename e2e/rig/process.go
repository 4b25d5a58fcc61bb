// SPDX-License-Identifier: Apache-2.0

// Package rig starts what the end-to-end tests need: the built penstock, Envoy, engines, clients.
//
// Everything listens on free ports of 127.0.0.1, writes to a temporary folder, and ends with the
// test that started it. Nothing is skipped when a part is missing: the test fails.
package rig

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// Patience is how long a test waits for what ought to take a moment. It only has to be longer
// than a slow, busy machine needs.
const Patience = 90 * time.Second

// Process is a program that a test started, in a process group of its own.
type Process struct {
	Name string
	cmd  *exec.Cmd
	log  string
	done chan struct{} // closed when it has ended
}

// Start runs argv in a new temporary folder until the test ends. When the test failed, the end of
// its output is shown.
func Start(t testing.TB, name string, argv ...string) *Process {
	return StartIn(t, t.TempDir(), name, nil, argv...)
}

// StartIn is Start in a folder and with more environment.
func StartIn(t testing.TB, dir, name string, env []string, argv ...string) *Process {
	t.Helper()
	p := &Process{Name: name, log: filepath.Join(t.TempDir(), name+".log"), done: make(chan struct{})}
	out, err := os.Create(p.log)
	if err != nil {
		t.Fatal(err)
	}
	p.cmd = exec.Command(argv[0], argv[1:]...)
	p.cmd.Dir = dir
	p.cmd.Env = append(os.Environ(), env...)
	p.cmd.Stdout, p.cmd.Stderr = out, out
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
	if err := p.cmd.Start(); err != nil {
		t.Fatalf("start %s: %v", name, err)
	}
	out.Close()
	go func() {
		p.cmd.Wait()
		close(p.done)
	}()
	t.Cleanup(func() {
		p.Signal(syscall.SIGTERM)
		select {
		case <-p.done:
		case <-time.After(15 * time.Second):
		}
		syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL) // and whatever it started
		<-p.done
		if t.Failed() {
			t.Logf("the end of what %s printed:\n%s", name, p.Tail(80))
		}
	})
	return p
}

// Signal sends s to the program, if it still runs.
func (p *Process) Signal(s syscall.Signal) { p.cmd.Process.Signal(s) }

// Kill ends the program and all that it started, at once: an engine's workers outlive its server.
func (p *Process) Kill(t testing.TB) {
	t.Helper()
	syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL)
	p.Wait(t)
}

// Alive reports whether the program still runs.
func (p *Process) Alive() bool {
	select {
	case <-p.done:
		return false
	default:
		return true
	}
}

// Wait returns the program's exit code, -1 when a signal ended it.
func (p *Process) Wait(t testing.TB) int {
	t.Helper()
	select {
	case <-p.done:
		return p.cmd.ProcessState.ExitCode()
	case <-time.After(Patience):
		t.Fatalf("%s did not end within %v", p.Name, Patience)
		return 0
	}
}

// Log returns what the program printed.
func (p *Process) Log() string {
	b, _ := os.ReadFile(p.log)
	return string(b)
}

// Tail returns the last lines of what the program printed.
func (p *Process) Tail(lines int) string {
	all := strings.Split(strings.TrimSpace(p.Log()), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}

// Listening waits until the program accepts connections at addr, and returns it.
func (p *Process) Listening(t testing.TB, addr string) *Process {
	t.Helper()
	Eventually(t, p.Name+" to listen on "+addr, func() error {
		if !p.Alive() {
			t.Fatalf("%s ended with code %d:\n%s", p.Name, p.cmd.ProcessState.ExitCode(), p.Tail(30))
		}
		c, err := net.DialTimeout("tcp", addr, time.Second)
		if err == nil {
			c.Close()
		}
		return err
	})
	return p
}

// Eventually waits until check returns nil, and fails the test when it does not within [Patience].
func Eventually(t testing.TB, what string, check func() error) {
	t.Helper()
	Within(t, Patience, what, check)
}

// Within is Eventually with a deadline that is itself asserted.
func Within(t testing.TB, limit time.Duration, what string, check func() error) {
	t.Helper()
	deadline := time.After(limit)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		err := check()
		if err == nil {
			return
		}
		select {
		case <-deadline:
			t.Fatalf("waited %v for %s: %v", limit, what, err)
		case <-tick.C:
		}
	}
}

var (
	portMu sync.Mutex
	port   = 20000 + rand.IntN(10000) // below the range that outgoing connections use
)

// Addr returns an address of 127.0.0.1 that nobody listens on.
func Addr(t testing.TB) string {
	t.Helper()
	portMu.Lock()
	defer portMu.Unlock()
	for range 1000 {
		port = 20000 + (port-20000+1)%12000
		addr := fmt.Sprintf("127.0.0.1:%d", port)
		if l, err := net.Listen("tcp", addr); err == nil {
			l.Close()
			return addr
		}
	}
	t.Fatal("no free port")
	return ""
}

// Port returns the port of an address.
func Port(addr string) string {
	_, port, _ := net.SplitHostPort(addr)
	return port
}

// Root is the repository.
func Root() string {
	_, file, _, _ := runtime.Caller(0)
	return filepath.Join(filepath.Dir(file), "..", "..")
}

// Penstock is the binary under test: $PENSTOCK, else bin/penstock.
func Penstock(t testing.TB) string {
	t.Helper()
	bin := os.Getenv("PENSTOCK")
	if bin == "" {
		bin = filepath.Join(Root(), "bin", "penstock")
	}
	bin, err := filepath.Abs(bin)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(bin); err != nil {
		t.Fatalf("%v: run make build first", err)
	}
	return bin
}

// Tool runs one of the installers in scripts/, which does nothing when the tool is there, and
// returns its folder.
func Tool(t testing.TB, script string) string {
	t.Helper()
	return strings.TrimSpace(Run(t, nil, filepath.Join(Root(), "scripts", script)))
}

// Run runs a program to its end and returns what it printed on standard output.
func Run(t testing.TB, env []string, argv ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Env = append(os.Environ(), env...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		if ctx.Err() != nil {
			err = errors.Join(err, ctx.Err())
		}
		t.Fatalf("%s: %v\n%s%s", strings.Join(argv, " "), err, out, stderr.Bytes())
	}
	return string(out)
}

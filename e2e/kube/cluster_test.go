// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/penstock-project/penstock/e2e/rig"
)

func TestMain(m *testing.M) { os.Exit(Node(m)) }

// TestCluster tries the harness itself: pods of the API become processes that answer at their addresses, and end with grace.
func TestCluster(t *testing.T) {
	c := New(t)
	t.Run("pods", c.podsAreProcesses)
}

func (c *Cluster) podsAreProcesses(t *testing.T) {
	ns := c.Namespace(t)
	c.Apply(t, ns, engine("a", "")+engine("b", `annotations: {test/family: IPv6}`))
	for _, name := range []string{"a", "b"} {
		addr := c.Addr(t, ns, name)
		if strings.Contains(addr, ":") {
			addr = "[" + addr + "]"
		}
		if o := Ask(addr+":8000", "hello"); o.Err != nil {
			t.Errorf("pod %s at %s: %v", name, addr, o.Err)
		}
	}
	addr := c.Addr(t, ns, "a")
	c.Kubectl(t, "delete", "pod", "-n", ns, "a")
	if conn, err := net.DialTimeout("tcp", addr+":8000", time.Second); err == nil {
		conn.Close()
		t.Error("a pod that was deleted answers")
	}
	c.Stop(t)
	c.Start(t)
	c.Apply(t, ns, engine("a", ""))
	again := c.Addr(t, ns, "a")
	if again == addr {
		t.Errorf("a new pod has the address of the old one, %s", again)
	}
	c.Crash(t, ns, "a")
	rig.Eventually(t, "a pod that crashed to answer again", func() error { return Ask(again+":8000", "hello").Err })
	if a := rig.Ask(t, again+":8000", "hello"); a.Status != http.StatusOK {
		t.Errorf("%+v", a)
	}
}

// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/penstock-project/penstock/e2e/rig"
)

// Cluster is an API server with its etcd, and the kubelet of its nodes.
type Cluster struct {
	*Kubelet
	dir, bin, addr string
	ca             []byte     // PEM
	t              *testing.T // the cluster's processes end with it
	server         *rig.Process
	admin          *http.Client
	namespaces     atomic.Int64
}

const adminToken = "admin"

// New starts a cluster that has the CRD of InferencePool and no other.
func New(t *testing.T) *Cluster {
	t.Helper()
	c := &Cluster{t: t, dir: t.TempDir(), bin: os.Getenv("PENSTOCK_KUBE_BIN"), addr: api4 + ":6443"}
	c.certificates(t)
	client, peer := rig.Addr(t), rig.Addr(t)
	rig.Start(t, "etcd", filepath.Join(c.bin, "etcd"), "--name=default", "--data-dir="+filepath.Join(c.dir, "etcd"), "--unsafe-no-fsync",
		"--listen-client-urls=http://"+client, "--advertise-client-urls=http://"+client,
		"--listen-peer-urls=http://"+peer, "--initial-advertise-peer-urls=http://"+peer,
		"--initial-cluster=default=http://"+peer, "--log-level=error").Listening(t, client)
	c.write(t, "etcd.addr", client)
	c.Start(t)
	c.write(t, "kubeconfig", c.kubeconfig(adminToken))
	c.Kubectl(t, "apply", "-f", filepath.Join(modules(t), "config", "crd", "bases", "inference.networking.k8s.io_inferencepools.yaml"))
	c.Kubectl(t, "wait", "--for=condition=Established", "crd", "--all", "--timeout=60s")
	// Pickers ask who reads their metrics: llm-d's chart allows that with a role of the cluster.
	c.Kubectl(t, "create", "clusterrolebinding", "metrics", "--clusterrole=system:auth-delegator", "--group=system:serviceaccounts")
	c.Kubelet = newKubelet(t, c)
	return c
}

// modules is the folder of the Gateway API Inference Extension.
func modules(t testing.TB) string {
	var module struct{ Dir string }
	if err := json.Unmarshal([]byte(os.Getenv("PENSTOCK_KUBE_CRDS")), &module); err != nil {
		t.Fatal(err)
	}
	return module.Dir
}

// Start starts the API server, again after [Cluster.Stop], with all it knew, and waits until it serves.
func (c *Cluster) Start(t testing.TB) {
	t.Helper()
	etcd, err := os.ReadFile(filepath.Join(c.dir, "etcd.addr"))
	if err != nil {
		t.Fatal(err)
	}
	file := func(name string) string { return filepath.Join(c.dir, name) }
	c.server = rig.Start(c.t, "kube-apiserver", filepath.Join(c.bin, "kube-apiserver"), "--etcd-servers=http://"+string(etcd),
		"--bind-address=0.0.0.0", "--secure-port=6443", "--advertise-address="+api4, "--endpoint-reconciler-type=none",
		"--tls-cert-file="+file("server.crt"), "--tls-private-key-file="+file("server.key"), "--cert-dir="+c.dir,
		"--token-auth-file="+file("tokens"), "--authorization-mode=RBAC", "--service-cluster-ip-range=10.0.0.0/24",
		"--service-account-issuer=https://kubernetes.default.svc",
		"--service-account-key-file="+file("server.crt"), "--service-account-signing-key-file="+file("server.key"),
		"--shutdown-send-retry-after=false", "--profiling=false")
	rig.Eventually(t, "the API server to be ready", func() error {
		if !c.server.Alive() {
			c.t.Fatalf("kube-apiserver ended:\n%s", c.server.Tail(20))
		}
		return c.Do(t.Context(), "GET", "/readyz", nil, nil)
	})
}

// Stop ends the API server at once; what it has stored stays.
func (c *Cluster) Stop(t testing.TB) {
	t.Helper()
	c.server.Signal(syscall.SIGKILL)
	c.server.Wait(t)
}

// Freeze makes the API server hang: it keeps its connections and answers nothing.
func (c *Cluster) Freeze() { c.server.Signal(syscall.SIGSTOP) }

// Thaw ends [Cluster.Freeze].
func (c *Cluster) Thaw() { c.server.Signal(syscall.SIGCONT) }

// Namespace makes a new namespace, which holds nothing but its service account. Its pods end with the test.
func (c *Cluster) Namespace(t testing.TB) string {
	t.Helper()
	name := fmt.Sprintf("t%d", c.namespaces.Add(1))
	c.create(t, "/api/v1/namespaces", object{"metadata": object{"name": name}})
	c.create(t, "/api/v1/namespaces/"+name+"/serviceaccounts", object{"metadata": object{"name": "default"}})
	t.Cleanup(func() { c.evict(t, name) })
	return name
}

// Kubectl runs kubectl as the cluster's administrator and returns what it printed.
func (c *Cluster) Kubectl(t testing.TB, args ...string) string {
	t.Helper()
	out, err := c.kubectl(t.Context(), "", args...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// Apply applies manifests to a namespace with kubectl.
func (c *Cluster) Apply(t testing.TB, namespace, text string) {
	t.Helper()
	if out, err := c.kubectl(t.Context(), text, "apply", "-n", namespace, "-f", "-"); err != nil {
		t.Fatal(err, out)
	}
}

func (c *Cluster) kubectl(ctx context.Context, stdin string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*rig.Patience) // it may wait for a pod with its grace
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(c.bin, "kubectl"), append([]string{"--kubeconfig", filepath.Join(c.dir, "kubeconfig")}, args...)...)
	cmd.Env = append(os.Environ(), "HOME="+c.dir) // where it caches what the server offers
	cmd.Stdin = strings.NewReader(stdin)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		err = fmt.Errorf("kubectl %s: %w: %s", strings.Join(args, " "), err, stderr.String())
	}
	return strings.TrimSpace(string(out)), err
}

// object is a Kubernetes object, or a part of one, as JSON has it.
type object = map[string]any

// create makes an object by POST.
func (c *Cluster) create(t testing.TB, path string, body object) {
	t.Helper()
	if err := c.Do(t.Context(), "POST", path, body, nil); err != nil {
		t.Fatal(err)
	}
}

// Do is one call of the API: body is sent as JSON (as a merge patch when the method is PATCH), and the answer is read into
// answer. A refusal is an error of type [Refusal].
func (c *Cluster) Do(ctx context.Context, method, path string, body, answer any) error {
	patience := 10 * time.Second
	if method == "DELETE" { // perhaps of hundreds
		patience = rig.Patience
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	response, err := c.send(ctx, method, path, body)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if answer == nil {
		_, err = io.Copy(io.Discard, response.Body)
		return err
	}
	return json.NewDecoder(response.Body).Decode(answer)
}

func (c *Cluster) send(ctx context.Context, method, path string, body any) (*http.Response, error) {
	var text []byte
	if body != nil {
		text, _ = json.Marshal(body)
	}
	request, err := http.NewRequestWithContext(ctx, method, "https://"+c.addr+path, bytes.NewReader(text))
	if err != nil {
		return nil, err
	}
	request.Header.Set("Authorization", "Bearer "+adminToken)
	request.Header.Set("Content-Type", "application/json")
	if method == "PATCH" {
		request.Header.Set("Content-Type", "application/merge-patch+json")
	}
	response, err := c.admin.Do(request)
	if err != nil {
		return nil, err
	}
	if response.StatusCode >= 300 {
		text, _ := io.ReadAll(response.Body)
		response.Body.Close()
		return nil, Refusal{response.StatusCode, fmt.Sprintf("%s %s: %s", method, path, text)}
	}
	return response, nil
}

// Refusal is an answer of the API server that is not a success.
type Refusal struct {
	Status int
	Text   string
}

func (r Refusal) Error() string { return r.Text }

// gone reports whether the object asked for is not there.
func gone(err error) bool {
	var r Refusal
	return errors.As(err, &r) && (r.Status == http.StatusNotFound || r.Status == http.StatusConflict)
}

// certificates makes the server's key and its certificate, which is also the authority, and the client that trusts it.
func (c *Cluster) certificates(t testing.TB) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "kube-apiserver"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour), IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		DNSNames: []string{"localhost", "kubernetes.default.svc"}, IPAddresses: []net.IP{net.ParseIP(api4), net.ParseIP("127.0.0.1")}}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	c.ca = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	c.write(t, "server.crt", string(c.ca))
	c.write(t, "server.key", string(pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: private})))
	c.write(t, "tokens", adminToken+`,admin,admin,"system:masters"`+"\n")
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(c.ca)
	c.admin = &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool}, MaxIdleConnsPerHost: 16}}
}

// kubeconfig is a configuration for the bearer of a token.
func (c *Cluster) kubeconfig(token string) string {
	return fmt.Sprintf(`apiVersion: v1
kind: Config
clusters: [{name: it, cluster: {server: "https://%s", certificate-authority-data: %s}}]
users: [{name: it, user: {token: %s}}]
contexts: [{name: it, context: {cluster: it, user: it}}]
current-context: it
`, c.addr, base64.StdEncoding.EncodeToString(c.ca), token)
}

func (c *Cluster) write(t testing.TB, name, text string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(c.dir, name), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

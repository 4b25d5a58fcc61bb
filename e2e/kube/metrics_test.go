// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/penstock-project/penstock/e2e/rig"
)

// authority signs certificates for a test.
type authority struct {
	dir  string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(t testing.TB) *authority {
	t.Helper()
	a := &authority{dir: t.TempDir()}
	a.cert, a.key = a.issue(t, a.dir, &x509.Certificate{IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign})
	return a
}

// file is where the authority's own certificate is.
func (a *authority) file() string { return filepath.Join(a.dir, "tls.crt") }

// issue writes tls.crt and tls.key, as in a Secret, to a folder.
func (a *authority) issue(t testing.TB, dir string, template *x509.Certificate) (*x509.Certificate, *ecdsa.PrivateKey) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template.SerialNumber = big.NewInt(time.Now().UnixNano())
	template.Subject = pkix.Name{CommonName: filepath.Base(dir)}
	template.NotBefore, template.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
	parent, signer := a.cert, a.key
	if parent == nil {
		parent, signer = template, key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, key.Public(), signer)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	for name, block := range map[string]*pem.Block{"tls.crt": {Type: "CERTIFICATE", Bytes: der}, "tls.key": {Type: "EC PRIVATE KEY", Bytes: private}} {
		if err := os.WriteFile(filepath.Join(dir, name), pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return cert, key
}

// TestPrometheus has a real Prometheus scrape `penstock epp` over TLS with the token of a service account, which a real API server
// looks at; a second picker wants a certificate of its scraper, too. Whoever has less is kept out, and Prometheus says why.
func TestPrometheus(t *testing.T) {
	c := New(t)
	ns := c.Namespace(t)
	c.Apply(t, ns, basics("10s")+"---\napiVersion: v1\nkind: ServiceAccount\nmetadata: {name: prometheus}\n---\napiVersion: v1\nkind: ServiceAccount\nmetadata: {name: stranger}\n")
	c.Kubectl(t, "create", "clusterrole", "scrape", "--verb=get", "--non-resource-url=/metrics")
	c.Kubectl(t, "create", "clusterrolebinding", "scrape", "--clusterrole=scrape", "--serviceaccount="+ns+":prometheus")

	dir := t.TempDir()
	write := func(name, text string) string {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	token := func(account string) string { return c.Kubectl(t, "create", "token", "-n", ns, account) }
	kubeconfig := write("kubeconfig", c.kubeconfig(token("epp")))
	conf := write("picker.yaml", "apiVersion: llm-d.ai/v1alpha1\nkind: EndpointPickerConfig\nplugins: [{type: queue-scorer}]\nschedulingProfiles: [{name: default, plugins: [{pluginRef: queue-scorer}]}]\n")

	ours, theirs := newAuthority(t), newAuthority(t)
	server, client, odd := t.TempDir(), t.TempDir(), t.TempDir()
	ours.issue(t, server, &x509.Certificate{IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}})
	ours.issue(t, client, &x509.Certificate{ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
	theirs.issue(t, odd, &x509.Certificate{ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
	epp := func(flags ...string) (metrics string) {
		t.Helper()
		metrics, grpc := rig.Addr(t), rig.Addr(t)
		rig.Start(t, "epp", append([]string{rig.Penstock(t), "epp", "--pool-name", "pool", "--pool-namespace", ns, "--kubeconfig", kubeconfig, "--config-file", conf,
			"--grpc-port", rig.Port(grpc), "--grpc-health-port", rig.Port(rig.Addr(t)), "--metrics-port", rig.Port(metrics), "--metrics-cert-dir", server}, flags...)...).
			Listening(t, metrics).Listening(t, grpc)
		return metrics
	}
	open, closed := epp(), epp("--metrics-client-ca-file", ours.file())

	good, strange, wrong := write("good", token("prometheus")), write("strange", token("stranger")), write("wrong", "not.a.token")
	var jobs strings.Builder
	want := map[string]string{}
	job := func(name, failure, target, token, ca, cert string) {
		want[name] = failure
		fmt.Fprintf(&jobs, "- job_name: %s\n  scheme: https\n  static_configs: [{targets: [%q]}]\n  tls_config: {ca_file: %q", name, target, ca)
		if cert != "" {
			fmt.Fprintf(&jobs, ", cert_file: %q, key_file: %q", filepath.Join(cert, "tls.crt"), filepath.Join(cert, "tls.key"))
		}
		fmt.Fprintln(&jobs, "}")
		if token != "" {
			fmt.Fprintf(&jobs, "  authorization: {credentials_file: %q}\n", token)
		}
	}
	job("token", "", open, good, ours.file(), "")
	job("wrong-token", "401", open, wrong, ours.file(), "")
	job("no-token", "401", open, "", ours.file(), "")
	job("who-may-not", "403", open, strange, ours.file(), "")
	job("wrong-authority", "certificate signed by unknown authority", open, good, theirs.file(), "")
	job("certificate", "", closed, good, ours.file(), client)
	job("certificate-alone", "401", closed, "", ours.file(), client)
	job("no-certificate", "certificate required", closed, good, ours.file(), "")
	job("odd-certificate", "certificate", closed, good, ours.file(), odd)
	p := rig.ScrapeJobs(t, jobs.String())
	rig.Eventually(t, "every target to be scraped, or not", func() error {
		failures, err := p.Failures()
		if err != nil {
			return err
		}
		up, err := p.Query("up", "job")
		if err != nil {
			return err
		}
		for name, want := range want {
			got, scraped := failures[name]
			if v, known := up[name]; !scraped || !known || (got == "") != (want == "") || !strings.Contains(got, want) || (v == 1) != (want == "") {
				return fmt.Errorf("%s: up is %v, with the failure %q; want %q", name, v, got, want)
			}
		}
		return nil
	})
	for _, name := range []string{"token", "certificate"} {
		p.Becomes(t, fmt.Sprintf("count(llm_d_epp_ready_endpoints{job=%q})", name), 1)
	}
	p.Becomes(t, `count(llm_d_epp_ready_endpoints)`, 2) // of nobody else
}

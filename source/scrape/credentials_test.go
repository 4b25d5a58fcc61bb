// SPDX-License-Identifier: Apache-2.0

package scrape

import (
	"bufio"
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// authority signs certificates.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pem  []byte
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	a := &authority{}
	der, key := a.sign(t, &x509.Certificate{IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign})
	var err error
	if a.cert, err = x509.ParseCertificate(der); err != nil {
		t.Fatal(err)
	}
	a.key, a.pem = key, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	return a
}

func (a *authority) sign(t *testing.T, c *x509.Certificate) ([]byte, *ecdsa.PrivateKey) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	c.SerialNumber, c.NotBefore, c.NotAfter = big.NewInt(time.Now().UnixNano()), time.Unix(0, 0), time.Now().Add(240*time.Hour)
	parent, by := a.cert, a.key
	if parent == nil {
		parent, by = c, key
	}
	der, err := x509.CreateCertificate(rand.Reader, c, parent, &key.PublicKey, by)
	if err != nil {
		t.Fatal(err)
	}
	return der, key
}

// pair is a certificate for 10.0.0.1, or for a client, and its key, in PEM.
func (a *authority) pair(t *testing.T, name string) (cert, key []byte) {
	t.Helper()
	der, k := a.sign(t, &x509.Certificate{Subject: pkix.Name{CommonName: name}, IPAddresses: []net.IP{net.IPv4(10, 0, 0, 1)},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}})
	b, err := x509.MarshalECPrivateKey(k)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: b})
}

// secure is a peer in memory that speaks TLS and answers each request with who asked.
type secure struct {
	config *tls.Config
	last   net.Conn
}

// buffered is an end of a pipe whose writes do not wait for the reader, as those of sockets do not.
type buffered struct {
	net.Conn
	out  chan []byte
	once sync.Once
}

func newBuffered(c net.Conn) *buffered {
	b := &buffered{Conn: c, out: make(chan []byte, 100)}
	go func() {
		for data := range b.out {
			_, _ = c.Write(data)
		}
		_ = c.Close()
	}()
	return b
}

func (b *buffered) Write(data []byte) (int, error) {
	b.out <- bytes.Clone(data)
	return len(data), nil
}

func (b *buffered) Close() error {
	b.once.Do(func() { close(b.out) })
	return nil
}

func (s *secure) dial(context.Context, string, string) (net.Conn, error) {
	ours, theirs := net.Pipe()
	s.last = theirs
	var c net.Conn = theirs
	if s.config != nil {
		c = tls.Server(newBuffered(theirs), s.config)
	}
	go func() {
		defer c.Close()
		in := bufio.NewReader(c)
		for {
			req, err := http.ReadRequest(in)
			if err != nil {
				return
			}
			who := req.Header.Get("Authorization")
			if t, ok := c.(*tls.Conn); ok {
				for _, cert := range t.ConnectionState().PeerCertificates {
					who += " " + cert.Subject.CommonName
				}
			}
			if _, err := fmt.Fprintf(c, "HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", len(who), who); err != nil {
				return
			}
		}
	}()
	return newBuffered(ours), nil
}

// caller asks a peer as a poll of a source does.
type caller struct {
	creds credentials
	get   *getter
	w     *worker
}

func newCaller(t *testing.T, dial Dialer, parameters map[string]any) *caller {
	t.Helper()
	b, err := json.Marshal(parameters)
	if err != nil {
		t.Fatal(err)
	}
	c := &caller{get: newGetter("10.0.0.1:8000", "/metrics", acceptPage)}
	c.creds.HTTP = of(t, Sources, MulticlusterSource, string(b)).fetch().HTTP
	c.w = &worker{ctx: t.Context(), timeout: 5 * time.Second, dial: dial}
	t.Cleanup(c.get.close)
	return c
}

// ask returns the body, or !fault.
func (c *caller) ask() string {
	config, auth, err := c.creds.read()
	if err != nil {
		return "!" + err.Error()
	}
	c.get.show(config, auth)
	body, err := c.get.get(c.w, 1000)
	if err != nil {
		return "!" + err.Error()
	}
	return string(body)
}

func write(t *testing.T, path string, data []byte) string {
	t.Helper()
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestTLS(t *testing.T) {
	ours, others := newAuthority(t), newAuthority(t)
	dir := t.TempDir()
	serverCert, serverKey := ours.pair(t, "engine")
	server, err := tls.X509KeyPair(serverCert, serverKey)
	if err != nil {
		t.Fatal(err)
	}
	clients := x509.NewCertPool()
	clients.AddCert(ours.cert)
	cert, key := ours.pair(t, "penstock")
	badCert, badKey := others.pair(t, "stranger")
	files := map[string]string{}
	for name, data := range map[string][]byte{"ca": ours.pem, "otherCA": others.pem, "cert": cert, "key": key, "badCert": badCert, "badKey": badKey, "empty": nil} {
		files[name] = write(t, filepath.Join(dir, name), data)
	}
	plain := &tls.Config{Certificates: []tls.Certificate{server}}
	mutual := &tls.Config{Certificates: []tls.Certificate{server}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: clients}
	for _, c := range []struct {
		name       string
		server     *tls.Config
		parameters map[string]any
		want       string
	}{
		{"an authority of one's own", plain, map[string]any{"caCertPath": files["ca"]}, ""},
		{"another's", plain, map[string]any{"caCertPath": files["otherCA"]}, "!certificate"},
		{"the system's", plain, nil, "!certificate"},
		{"unverified", plain, map[string]any{"insecureSkipVerify": true}, ""},
		{"unverified in spite of an authority", plain, map[string]any{"insecureSkipVerify": true, "caCertPath": files["otherCA"]}, ""},
		{"a client's certificate", mutual, map[string]any{"caCertPath": files["ca"], "clientCertPath": files["cert"], "clientKeyPath": files["key"]}, " penstock"},
		{"a stranger's", mutual, map[string]any{"caCertPath": files["ca"], "clientCertPath": files["badCert"], "clientKeyPath": files["badKey"]}, "!tls-handshake"},
		{"none", mutual, map[string]any{"caCertPath": files["ca"]}, "!tls-handshake"},
		{"a peer without TLS", nil, map[string]any{"insecureSkipVerify": true}, "!no-tls"},
		{"no authority in the file", plain, map[string]any{"caCertPath": files["empty"]}, "!caCertPath: " + files["empty"] + ": holds no certificate in PEM"},
		{"a key that does not fit", plain, map[string]any{"clientCertPath": files["cert"], "clientKeyPath": files["badKey"]},
			"!clientCertPath: " + files["cert"] + " and " + files["badKey"] + ": tls: private key does not match public key"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := &secure{config: c.server}
			if c.server == nil {
				s = nil
			}
			dial := func(ctx context.Context, network, address string) (net.Conn, error) {
				if s != nil {
					return s.dial(ctx, network, address)
				}
				ours, theirs := net.Pipe()
				go func() {
					defer theirs.Close()
					_, _ = theirs.Read(make([]byte, 4096))
					_, _ = io.WriteString(theirs, "HTTP/1.1 400 Bad Request\r\n\r\n")
				}()
				return ours, nil
			}
			caller := newCaller(t, dial, c.parameters)
			for range 2 { // the second over the same connection
				if got := caller.ask(); got != c.want {
					t.Errorf("got %q, want %q", got, c.want)
				}
			}
		})
	}
}

// What is shown follows its files within a second or so; while they cannot be read the last stays.
func TestCredentialsAreReadAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ours := newAuthority(t)
		dir := t.TempDir()
		serverCert, serverKey := ours.pair(t, "engine")
		server, err := tls.X509KeyPair(serverCert, serverKey)
		if err != nil {
			t.Fatal(err)
		}
		clients := x509.NewCertPool()
		clients.AddCert(ours.cert)
		s := &secure{config: &tls.Config{Certificates: []tls.Certificate{server}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: clients}}
		at := func(name string) string { return filepath.Join(dir, name) }
		renew := func(name string) {
			cert, key := ours.pair(t, name)
			write(t, at("cert"), cert)
			write(t, at("key"), key)
		}
		renew("first")
		c := newCaller(t, s.dial, map[string]any{
			"caCertPath": write(t, at("ca"), ours.pem), "clientCertPath": at("cert"), "clientKeyPath": at("key"),
			"bearerTokenFile": write(t, at("token"), []byte(" one\n")),
		})
		want := func(s string) {
			t.Helper()
			if got := c.ask(); got != s {
				t.Errorf("got %q, want %q", got, s)
			}
		}
		want("Bearer one first")
		write(t, at("token"), []byte("two"))
		renew("second")
		want("Bearer one first") // not looked at again so soon
		pass(1100 * time.Millisecond)
		want("Bearer two first") // on the connection that is open
		_ = s.last.Close()
		pass(time.Millisecond)
		want("Bearer two second")
		write(t, at("token"), []byte("three\r\nX-Evil: 1"))
		write(t, at("cert"), []byte("half of it"))
		pass(1100 * time.Millisecond)
		_ = s.last.Close()
		pass(time.Millisecond)
		want("Bearer two second")
		if err := os.Remove(at("token")); err != nil {
			t.Fatal(err)
		}
		renew("third")
		pass(1100 * time.Millisecond)
		_ = s.last.Close()
		pass(time.Millisecond)
		want("Bearer two third")
		c.get.close()
		pass(time.Millisecond)
	})
}

func TestTokensThatCannotBe(t *testing.T) {
	path := filepath.Join(t.TempDir(), "token")
	for _, token := range []string{"", " \n", "a b", "a\r\nb", "ä", string(make([]byte, maxFile+1))} {
		write(t, path, []byte(token))
		c := credentials{HTTP: HTTP{Scheme: "http", BearerTokenFile: path}}
		if _, auth, err := c.read(); err == nil {
			t.Errorf("%.10q: got %q", token, auth)
		}
	}
}

// SPDX-License-Identifier: Apache-2.0

package penstock

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/penstock-project/penstock/observe"
)

// Environment variables that say where the metrics address is, and with which token it lets us in.
const (
	serverVariable = "PENSTOCK_SERVER"
	tokenVariable  = "PENSTOCK_TOKEN"
)

// inquiry is which request is asked for, of whom, and in what form.
type inquiry struct {
	id, server         string
	tokenFile          string
	caFile, serverName string // of https
	certPath           string
	json, all          bool
}

// explainRequest tells why a request went where it went.
func explainRequest(ctx context.Context, q inquiry, stdout io.Writer) error {
	v, err := q.fetch(ctx)
	if err != nil {
		return err
	}
	if len(v.Decisions) == 0 {
		return q.missing(v.Kept)
	}
	if q.json {
		var out any
		if err := json.Unmarshal(v.Decisions[0], &out); err != nil {
			return fmt.Errorf("%s: %w", q.server, err)
		}
		enc := json.NewEncoder(stdout)
		enc.SetIndent("", "  ")
		return enc.Encode(out)
	}
	var r observe.Record
	if err := json.Unmarshal(v.Decisions[0], &r); err != nil {
		return fmt.Errorf("%s: %w", q.server, err)
	}
	tellRequest(stdout, &r, q.all)
	if v.Matched > 1 && q.named() {
		fmt.Fprintf(stdout, "\n%d requests had this id; this is the newest. All of them: %s/debug/decisions?full=true&id=%s\n",
			v.Matched, q.base(), url.QueryEscape(q.id))
	}
	return nil
}

// named reports whether one request is asked for, not the newest of a kind.
func (q *inquiry) named() bool { return q.id != "last" && q.id != "slow" && q.id != "failed" }

func (q *inquiry) query() string {
	switch q.id {
	case "last":
		return "full=true&limit=1"
	case "slow", "failed":
		return "full=true&limit=1&" + q.id + "=true"
	}
	return "full=true&limit=1&id=" + url.QueryEscape(q.id)
}

// base is the start of all addresses of the server.
func (q *inquiry) base() string {
	if strings.HasPrefix(q.server, "https://") {
		return "https://" + q.host()
	}
	return "http://" + q.host()
}

func (q *inquiry) host() string {
	host := strings.TrimSuffix(strings.TrimPrefix(strings.TrimPrefix(q.server, "http://"), "https://"), "/")
	if _, _, err := net.SplitHostPort(host); err != nil {
		host = net.JoinHostPort(strings.Trim(host, "[]"), "9090")
	}
	return host
}

func (q *inquiry) fetch(ctx context.Context) (*observe.DecisionsView, error) {
	ctx, cancel := context.WithTimeout(ctx, 15*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, q.base()+"/debug/decisions?"+q.query(), nil)
	if err != nil {
		return nil, misused("--server %q: want a host and port, such as localhost:9090", q.server)
	}
	token := os.Getenv(tokenVariable)
	if q.tokenFile != "" {
		text, err := os.ReadFile(q.tokenFile)
		if err != nil {
			return nil, fmt.Errorf("--token-file: %w", err)
		}
		token = string(text)
	}
	if token = strings.TrimSpace(token); token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	client, err := q.client()
	if err != nil {
		return nil, err
	}
	defer client.CloseIdleConnections()
	resp, err := client.Do(req)
	if err != nil {
		var inner *url.Error
		if errors.As(err, &inner) {
			err = inner.Err
		}
		return nil, fmt.Errorf("cannot ask %s: %w\nName the metrics address of the gateway with --server or $%s; the gateway says it when it starts. In Kubernetes: kubectl port-forward deploy/NAME 9090", q.host(), err, serverVariable)
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(io.LimitReader(resp.Body, 16<<20))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", q.host(), err)
	}
	switch resp.StatusCode {
	case http.StatusUnauthorized, http.StatusForbidden, http.StatusInternalServerError, http.StatusServiceUnavailable:
		return nil, fmt.Errorf("%s answers %s: %.4000s\nGive the token of a service account that may read it: --token-file FILE or $%s, such as %s=$(kubectl create token NAME) penstock explain …",
			q.host(), resp.Status, strings.TrimSpace(string(body)), tokenVariable, tokenVariable)
	case http.StatusBadRequest:
		return nil, fmt.Errorf("%s answers %s: %.4000s\nWhere the metrics address has a certificate, want --server https://%s", q.host(), resp.Status, strings.TrimSpace(string(body)), q.host())
	}
	var v observe.DecisionsView
	if err := json.Unmarshal(body, &v); err != nil || resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s answers %s to /debug/decisions: want the metrics address of a Penstock, which is another than the one that clients call", q.host(), resp.Status)
	}
	return &v, nil
}

// client is how the server is asked.
func (q *inquiry) client() (*http.Client, error) {
	c := &tls.Config{ServerName: q.serverName}
	if q.caFile != "" {
		pool, err := authorities(q.caFile)
		if err != nil {
			return nil, fmt.Errorf("--ca-file: %w", err)
		}
		c.RootCAs = pool
	}
	if q.certPath != "" {
		pair, err := tls.LoadX509KeyPair(filepath.Join(q.certPath, "tls.crt"), filepath.Join(q.certPath, "tls.key"))
		if err != nil {
			return nil, fmt.Errorf("--cert-path: %w", err)
		}
		c.Certificates = []tls.Certificate{pair}
	}
	return &http.Client{Transport: &http.Transport{Proxy: http.ProxyFromEnvironment, TLSClientConfig: c}}, nil
}

// missing says why there is nothing to tell.
func (q *inquiry) missing(kept observe.KeptView) error {
	switch q.id {
	case "last":
		return fmt.Errorf("%s remembers no request yet", q.host())
	case "slow", "failed":
		return fmt.Errorf("%s remembers no %s request: %s", q.host(), q.id, kept.Lives())
	}
	return fmt.Errorf("%s has no record of a request %q: %s.\nA request's id is the x-request-id that it came with or was given, and \"id\" of its access line; last, slow and failed name the newest ones",
		q.host(), q.id, kept.Lives())
}

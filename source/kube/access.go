// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/singleflight"
	authn "k8s.io/api/authentication/v1"
	authz "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
)

// Access decides who may read pages of ours, as an API server does for its own: a TokenReview says whose a bearer token
// is, a SubjectAccessReview whether they may. Answers are remembered for a short while. Tokens are not: only their hashes.
type Access struct {
	client  *rest.RESTClient
	metrics Metrics
	log     *slog.Logger
	salt    [32]byte

	asking  singleflight.Group
	slots   [2]chan struct{} // to ask: for who is new; for who was let in before, so that strangers do not keep them out
	waiting atomic.Int32     // strangers

	users   memory[*authn.UserInfo] // by token
	bad     memory[string]          // tokens that are nobody's, and what the API server says of them
	allowed memory[struct{}]        // by token, verb and path
	denied  memory[string]

	mu      sync.Mutex
	trouble string // why the API server does not answer, as it was logged last
}

// How long answers count, and how much is asked.
const (
	accessFresh   = time.Minute      // an answer that lets in is not asked for again
	accessLately  = 10 * time.Minute // and for so long it counts where the API server cannot be asked
	accessRefused = 10 * time.Second // an answer that keeps out is not asked for again, nor an API server that is away
	accessPatient = 5 * time.Second  // for an answer
	accessSlots   = 4
	accessWaiting = 64   // strangers that wait for an answer; more are turned away
	accessKept    = 4096 // answers of a kind
	accessPath    = 4096 // bytes of a path, and 16 KiB of a token
)

type digest [sha256.Size]byte

// NewAccess prepares to ask the API server of c, see [Connect]. Nothing is sent.
func NewAccess(c *rest.Config, m Metrics, log *slog.Logger) (*Access, error) {
	c = rest.CopyConfig(c)
	c.QPS, c.Burst = 20, 40 // a flood of tokens is no flood for the API server
	clients, err := newClients(c)
	if err != nil {
		return nil, err
	}
	a := &Access{client: clients.custom, metrics: m, log: log}
	for i := range a.slots {
		a.slots[i] = make(chan struct{}, accessSlots)
	}
	_, _ = rand.Read(a.salt[:]) // never fails
	return a, nil
}

// Allow says whether a request may have its page: status 0 if so, else the HTTP status and the text to answer with.
func (a *Access) Allow(r *http.Request) (status int, text string) {
	verb, path := strings.ToLower(r.Method), r.URL.Path
	token, problem := bearer(r.Header.Get("Authorization"))
	switch {
	case problem != "":
		return http.StatusUnauthorized, problem + ". Send the header Authorization: Bearer TOKEN, with the token of a service account that may " + verb + " " + shown(path) +
			", such as kubectl create token NAME prints"
	case len(path) > accessPath:
		return http.StatusRequestURITooLong, fmt.Sprintf("the path has %d bytes: want at most %d", len(path), accessPath)
	}
	who := a.digest(token)
	key := a.digest(token, verb, path)
	if _, fresh, _ := a.allowed.get(key); fresh {
		return 0, ""
	}
	if why, fresh, _ := a.bad.get(who); fresh {
		return http.StatusUnauthorized, why
	}
	if why, fresh, _ := a.denied.get(key); fresh {
		return http.StatusForbidden, why
	}
	type said struct {
		status int
		text   string
	}
	answer := a.asking.DoChan(string(key[:]), func() (any, error) {
		// A client that leaves must not take the answer from others who wait for it.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), accessPatient)
		defer cancel()
		status, text := a.ask(ctx, token, who, key, verb, path)
		return said{status, text}, nil
	})
	select {
	case v := <-answer:
		return v.Val.(said).status, v.Val.(said).text
	case <-r.Context().Done():
		return http.StatusServiceUnavailable, "the client left"
	}
}

// digest hashes what an answer is of. The salt is of this process, so that a hash is of no use elsewhere.
func (a *Access) digest(parts ...string) (d digest) {
	h := sha256.New()
	h.Write(a.salt[:])
	for _, p := range parts {
		fmt.Fprintf(h, "%d:%s", len(p), p)
	}
	h.Sum(d[:0])
	return d
}

// bearer is the token of a header, or what is wrong with it.
func bearer(header string) (token, problem string) {
	scheme, token, _ := strings.Cut(header, " ")
	token = strings.TrimSpace(token)
	switch {
	case header == "":
		return "", "there is no bearer token"
	case !strings.EqualFold(scheme, "bearer"):
		return "", "the Authorization header has no bearer token"
	case token == "" || len(token) > 16<<10 || strings.ContainsFunc(token, func(c rune) bool { return c <= ' ' || c >= 0x7f }):
		return "", "the bearer token is none: want one line of ASCII, at most 16 KiB"
	}
	return token, ""
}

// shown is a path as a text can hold it.
func shown(path string) string {
	if len(path) > 200 || strings.ContainsFunc(path, func(c rune) bool { return c <= ' ' || c == 0x7f }) {
		return fmt.Sprintf("%.200q", path)
	}
	return path
}

// ask asks the API server.
func (a *Access) ask(ctx context.Context, token string, who, key digest, verb, path string) (int, string) {
	_, _, known := a.allowed.get(key)
	slot := a.slots[0]
	if known {
		slot = a.slots[1]
	} else {
		defer a.waiting.Add(-1)
		if a.waiting.Add(1) > accessWaiting {
			return http.StatusServiceUnavailable, "too many tokens wait to be reviewed: try again"
		}
	}
	select {
	case slot <- struct{}{}:
		defer func() { <-slot }()
	case <-ctx.Done():
		return a.unanswered(errors.New("too many tokens wait to be reviewed"), who, key)
	}
	user, why, err := a.user(ctx, token, who)
	switch {
	case err != nil:
		return a.unanswered(err, who, key)
	case user == nil:
		a.allowed.drop(key)
		return http.StatusUnauthorized, why
	}
	allowed, err := a.may(ctx, user, verb, path)
	switch {
	case err != nil:
		return a.unanswered(err, who, key)
	case !allowed:
		why := forbidden(user.Username, verb, path)
		a.allowed.drop(key)
		a.denied.put(key, why, accessRefused, accessRefused)
		return http.StatusForbidden, why
	}
	a.allowed.put(key, struct{}{}, accessFresh, accessLately)
	return 0, ""
}

// user says whose a token is, or why it is nobody's.
func (a *Access) user(ctx context.Context, token string, who digest) (u *authn.UserInfo, why string, err error) {
	if u, fresh, _ := a.users.get(who); fresh {
		return u, "", nil
	}
	review := authn.TokenReview{TypeMeta: metav1.TypeMeta{APIVersion: "authentication.k8s.io/v1", Kind: "TokenReview"}, Spec: authn.TokenReviewSpec{Token: token}}
	if err := a.review(ctx, "authentication.k8s.io", "tokenreviews", &review); err != nil {
		return nil, "", err
	}
	if !review.Status.Authenticated {
		why := "the API server does not accept the bearer token: " + cmp.Or(review.Status.Error, "it is nobody's") + ". kubectl create token NAME makes one that is good for an hour"
		a.users.drop(who)
		a.bad.put(who, why, accessRefused, accessLately) // for as long as what it was let in to before
		return nil, why, nil
	}
	a.bad.drop(who)
	a.users.put(who, &review.Status.User, accessFresh, accessFresh)
	return &review.Status.User, "", nil
}

// may says whether a user may have a page.
func (a *Access) may(ctx context.Context, u *authn.UserInfo, verb, path string) (bool, error) {
	review := authz.SubjectAccessReview{
		TypeMeta: metav1.TypeMeta{APIVersion: "authorization.k8s.io/v1", Kind: "SubjectAccessReview"},
		Spec: authz.SubjectAccessReviewSpec{
			User: u.Username, Groups: u.Groups, UID: u.UID, NonResourceAttributes: &authz.NonResourceAttributes{Verb: verb, Path: path},
			Extra: map[string]authz.ExtraValue{},
		},
	}
	for k, v := range u.Extra {
		review.Spec.Extra[k] = authz.ExtraValue(v)
	}
	err := a.review(ctx, "authorization.k8s.io", "subjectaccessreviews", &review)
	return review.Status.Allowed, err
}

// forbidden says what a user lacks, and how they get it.
func forbidden(user, verb, path string) string {
	to := fmt.Sprintf("--user=%q", user)
	if parts := strings.Split(user, ":"); len(parts) == 4 && parts[0] == "system" && parts[1] == "serviceaccount" {
		to = "--serviceaccount=" + parts[2] + ":" + parts[3]
	}
	return fmt.Sprintf(`user %q may not %s %s. It needs a ClusterRole with this rule, and a ClusterRoleBinding to it:

rules:
- nonResourceURLs: [%q]
  verbs: [%q]

kubectl create clusterrole NAME --verb=%s --non-resource-url=%s
kubectl create clusterrolebinding NAME --clusterrole=NAME %s`, user, verb, shown(path), path, verb, verb, shown(path), to)
}

// unanswered is what to do without an answer. Who was let in lately still is, where the API server is away, unless it has
// said since that the token is nobody's.
func (a *Access) unanswered(err error, who, key digest) (int, string) {
	var not *notAllowed
	if errors.As(err, &not) {
		return http.StatusInternalServerError, not.Error()
	}
	if why, _, nobody := a.bad.get(who); nobody {
		a.bad.spare(who, accessRefused)
		return http.StatusUnauthorized, why
	}
	if _, _, known := a.allowed.get(key); known {
		a.allowed.spare(key, accessRefused)
		return 0, ""
	}
	return http.StatusServiceUnavailable, fmt.Sprintf("the API server says who may read this page, and it does not answer: %v", err)
}

// notAllowed is a permission of our own that is missing.
type notAllowed struct {
	group, resource string
	err             error
}

func (e *notAllowed) Unwrap() error { return e.err }

func (e *notAllowed) Error() string {
	return fmt.Sprintf("this gateway may not create %s.%s, which it needs to know who may read its metrics. Its service account needs a ClusterRole with "+
		`{apiGroups: [%q], resources: [%q], verbs: [create]}; --metrics-endpoint-auth=false lets everybody in. The API server says: %s`, e.resource, e.group, e.group, e.resource, e.err)
}

// review has the API server fill in a review.
func (a *Access) review(ctx context.Context, group, resource string, into any) error {
	body, err := json.Marshal(into)
	if err != nil {
		return err
	}
	answer := a.client.Post().MaxRetries(0).AbsPath("/apis/"+group+"/v1", resource).
		SetHeader("Content-Type", "application/json").SetHeader("Accept", "application/json").Body(body).Do(ctx)
	raw, err := answer.Raw()
	if err == nil {
		err = json.Unmarshal(raw, into)
	} else if said := answer.Error(); said != nil {
		err = said // in the API server's words, which Raw leaves out
	}
	if err != nil {
		a.metrics.Failed(resource, "create", reason(err))
		switch {
		case apierrors.IsForbidden(err):
			err = &notAllowed{group, resource, err}
		case ctx.Err() != nil:
			err = fmt.Errorf("%s: nothing within %v", resource, accessPatient)
		}
	}
	a.tell(resource, err)
	return err
}

// tell logs what is wrong between us and the API server once, and when it is right again.
func (a *Access) tell(resource string, err error) {
	said := ""
	if err != nil {
		said = resource + " " + reason(err)
	}
	a.mu.Lock()
	before := a.trouble
	if err != nil || strings.HasPrefix(before, resource+" ") {
		a.trouble = said
	}
	after := a.trouble
	a.mu.Unlock()
	switch {
	case after == before:
	case err == nil:
		a.log.Info("the API server says again who may read the metrics port")
	default:
		a.log.Warn("the API server does not say who may read the metrics port", slog.String("verb", "create"), slog.String("resource", resource), slog.Any("error", err))
	}
}

// memory holds answers, the last ones at least: when there are accessKept new ones, those that were old already are
// forgotten. The zero memory is empty.
type memory[V any] struct {
	mu       sync.Mutex
	new, old map[digest]kept[V]
}

type kept[V any] struct {
	value       V
	fresh, good time.Time // until when it counts as it is, and where there is no other
}

// get returns an answer that still counts, and whether it is fresh.
func (m *memory[V]) get(k digest) (v V, fresh, ok bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	h, ok := m.new[k]
	if !ok {
		h, ok = m.old[k]
	}
	if now := time.Now(); !ok || !now.Before(h.good) {
		return v, false, false
	} else {
		return h.value, now.Before(h.fresh), true
	}
}

// put has an answer count for some time, and in need for longer.
func (m *memory[V]) put(k digest, v V, fresh, good time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.new) >= accessKept {
		m.old, m.new = m.new, nil
	}
	if m.new == nil {
		m.new = map[digest]kept[V]{}
	}
	now := time.Now()
	m.new[k] = kept[V]{v, now.Add(fresh), now.Add(good)}
}

// spare has an answer count as fresh for some time, but not for longer than it is good.
func (m *memory[V]) spare(k digest, fresh time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, held := range []map[digest]kept[V]{m.new, m.old} {
		if h, ok := held[k]; ok {
			h.fresh = time.Now().Add(fresh)
			held[k] = h
		}
	}
}

func (m *memory[V]) drop(k digest) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.new, k)
	delete(m.old, k)
}

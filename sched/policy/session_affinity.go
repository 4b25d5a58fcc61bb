// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"encoding/base64"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/penstock-project/penstock/fleet"
	"github.com/penstock-project/penstock/sched"
)

// SessionAffinity is what session-affinity-filter and session-affinity-scorer share: where the request's session
// was served before.
type SessionAffinity struct {
	// Strategy is encoded_endpoint_header, where the answer's header names the endpoint that served and the client
	// sends it with its next request, or session_id, where we remember the endpoint by an id that the client chooses.
	Strategy string `json:"strategy"`
	// EncodedEndpointHeaderConfig is for the strategy encoded_endpoint_header.
	EncodedEndpointHeaderConfig EncodedEndpointHeader `json:"encodedEndpointHeaderConfig"`
	// SessionIDConfig is for the strategy session_id.
	SessionIDConfig SessionID `json:"sessionIdConfig"`
	// ProfileName limits what is remembered, and told in headers, to requests for which the profile of that name
	// decided; empty for all.
	ProfileName string `json:"profileName"`

	bound bindings
}

// EncodedEndpointHeader is where the endpoint is written to and read from.
type EncodedEndpointHeader struct {
	// Header is the header of requests and answers: its value is namespace/name of the endpoint, in base64. It can
	// only ever choose among the candidates; anything else in it counts as no session.
	Header string `json:"header"`
}

// SessionID says what names a session, and how long it is remembered.
type SessionID struct {
	// Sources are where the session's id is looked for; the first that has one counts. The header x-session-id when
	// left out.
	Sources []SessionSource `json:"sources"`
	// EvictionTTLSeconds is how long a session is remembered after its last request. Of each plugin the latest
	// 100,000 sessions are remembered.
	EvictionTTLSeconds int `json:"evictionTtlSeconds"`
	// EvictionSweepSeconds is accepted and not needed: what is older is not used, and its memory is let go as others
	// come.
	EvictionSweepSeconds int `json:"evictionSweepSeconds"`
}

// SessionSource is one place where a session's id may be.
type SessionSource struct {
	// Header is a header of requests. Beside it there is no attribute.
	Header string `json:"header"`
	// Attribute is a fact that a producer tells: SessionID of session-id-producer, agent-identity of the plugin of that
	// name.
	Attribute string `json:"attribute"`
	// Producer is the plugin that tells the attribute; empty for any.
	Producer string `json:"producer"`
}

const (
	byHeader    = "encoded_endpoint_header"
	bySessionID = "session_id"
)

func newSessionAffinity() SessionAffinity {
	return SessionAffinity{
		Strategy:                    byHeader,
		EncodedEndpointHeaderConfig: EncodedEndpointHeader{Header: "x-session-token"},
		SessionIDConfig:             SessionID{EvictionTTLSeconds: 300, EvictionSweepSeconds: 10},
	}
}

// Validate reports a session that nothing can name.
func (p *SessionAffinity) Validate() error {
	switch {
	case p.Strategy != byHeader && p.Strategy != bySessionID:
		return fmt.Errorf("strategy: want %s or %s, got %q", byHeader, bySessionID, p.Strategy)
	case p.EncodedEndpointHeaderConfig.Header == "":
		return errors.New("encodedEndpointHeaderConfig.header: is empty: want the header that names the endpoint")
	case p.SessionIDConfig.EvictionTTLSeconds <= 0:
		return errors.New("sessionIdConfig.evictionTtlSeconds: must be above 0")
	case p.SessionIDConfig.EvictionSweepSeconds <= 0:
		return errors.New("sessionIdConfig.evictionSweepSeconds: must be above 0")
	}
	if err := ownHeader("encodedEndpointHeaderConfig.header", p.EncodedEndpointHeaderConfig.Header); err != nil {
		return err
	}
	p.EncodedEndpointHeaderConfig.Header = strings.ToLower(p.EncodedEndpointHeaderConfig.Header)
	for i := range p.SessionIDConfig.Sources {
		s := &p.SessionIDConfig.Sources[i]
		at := fmt.Sprintf("sessionIdConfig.sources[%d]", i)
		switch {
		case (s.Header == "") == (s.Attribute == ""):
			return errors.New(at + ": want either header or attribute")
		case s.Header != "" && s.Producer != "":
			return errors.New(at + ".producer: a header has none")
		case s.Header != "":
			if err := headerName(at+".header", s.Header); err != nil {
				return err
			}
		}
		s.Header = strings.ToLower(s.Header)
	}
	return nil
}

// home is the candidate where the request's session was served before; -1 for none.
func (p *SessionAffinity) home(c *sched.Cycle) int {
	if p.Strategy == byHeader {
		return encoded(c, c.Header(p.EncodedEndpointHeaderConfig.Header))
	}
	id := p.session(c)
	if id == "" {
		return -1
	}
	to, ok := p.bound.find(id, c.Now, p.ttl())
	if !ok {
		return -1
	}
	return candidate(c, to)
}

func (p *SessionAffinity) ttl() time.Duration {
	return time.Duration(p.SessionIDConfig.EvictionTTLSeconds) * time.Second
}

// session is the id of the request's session, or "".
func (p *SessionAffinity) session(c *sched.Cycle) string {
	if len(p.SessionIDConfig.Sources) == 0 {
		return c.Header("x-session-id")
	}
	for i := range p.SessionIDConfig.Sources {
		s := &p.SessionIDConfig.Sources[i]
		id := ""
		if s.Header != "" {
			id = c.Header(s.Header)
		} else {
			id = c.Attribute(s.Attribute, s.Producer)
		}
		if id != "" {
			return id
		}
	}
	return ""
}

// Placed implements [sched.Placer]: it binds the session to the endpoint, unless it is bound to another one that
// could have served, and was not asked before this one.
func (p *SessionAffinity) Placed(c *sched.Cycle, chosen *fleet.Endpoint) {
	if p.Strategy != bySessionID || !p.records(c) {
		return
	}
	id := p.session(c)
	if id == "" {
		return
	}
	if to, ok := p.bound.find(id, c.Now, p.ttl()); ok && to != chosen.ID {
		i := candidate(c, to)
		failed := i >= 0 && len(c.Order) > 0 && c.Order[0] == i
		if i >= 0 && !failed {
			return
		}
	}
	p.bound.bind(id, chosen.ID, c.Now, p.ttl())
}

// Answered implements [sched.Answerer]: the client learns the endpoint that served.
func (p *SessionAffinity) Answered(c *sched.Cycle, served *fleet.Endpoint, set func(name, value string)) {
	if p.Strategy == byHeader && p.records(c) {
		if id := served.ID.String(); len(id) <= maxDecoded {
			set(p.EncodedEndpointHeaderConfig.Header, base64.StdEncoding.EncodeToString([]byte(id)))
		}
	}
}

func (p *SessionAffinity) records(c *sched.Cycle) bool {
	return p.ProfileName == "" || p.ProfileName == c.Profile
}

// maxDecoded bounds namespace/name of an endpoint; it is a multiple of 3.
const maxDecoded = 768

// encoded is the candidate that a token names; -1 for none.
func encoded(c *sched.Cycle, token string) int {
	var text [maxDecoded / 3 * 4]byte
	var name [maxDecoded]byte
	if token == "" || len(token) > len(text) {
		return -1
	}
	n, err := base64.StdEncoding.Decode(name[:], text[:copy(text[:], token)])
	if err != nil {
		return -1
	}
	at := slices.Index(name[:n], '/')
	if at < 0 {
		return -1
	}
	for i, e := range c.Candidates {
		if e.Namespace == string(name[:at]) && e.Name == string(name[at+1:n]) {
			return i
		}
	}
	return -1
}

// candidate is the one of that ID; -1 for none.
func candidate(c *sched.Cycle, id fleet.ID) int {
	for i, e := range c.Candidates {
		if e.ID == id {
			return i
		}
	}
	return -1
}

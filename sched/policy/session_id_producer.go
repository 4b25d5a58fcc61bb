// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"errors"
	"strings"

	"github.com/penstock-project/penstock/sched"
)

// SessionIDProducer takes the session's id from a header or a cookie. It tells it as the attribute SessionID of the
// request; an id of more than 256 bytes is none.
type SessionIDProducer struct {
	// HeaderName is the header that has the id, in any case of letters.
	HeaderName string `json:"headerName"`
	// CookieName is the cookie that has the id, instead of a header.
	CookieName string `json:"cookieName"`

	name   string
	header string // in lower case
}

// sessionAttribute is the name by which a session's id is told.
const sessionAttribute = "SessionID"

// maxIdentity bounds what names a session or an agent.
const maxIdentity = 256

// SetName implements [sched.Namer].
func (p *SessionIDProducer) SetName(name string) { p.name = name }

// Validate reports that there is nowhere to look, or more than one place.
func (p *SessionIDProducer) Validate() error {
	switch {
	case p.HeaderName == "" && p.CookieName == "":
		return errors.New("headerName: is missing: want headerName or cookieName")
	case p.HeaderName != "" && p.CookieName != "":
		return errors.New("cookieName: stands beside headerName: want one of them")
	case p.CookieName != "" && headerName("", p.CookieName) != nil: // both are tokens
		return errors.New("cookieName: is no name of a cookie")
	case p.CookieName != "":
		return nil
	}
	p.header = strings.ToLower(p.HeaderName)
	return headerName("headerName", p.HeaderName)
}

// Produce implements [sched.Producer].
func (p *SessionIDProducer) Produce(c *sched.Cycle) {
	var id string
	if p.CookieName != "" {
		id = cookie(c.Header("cookie"), p.CookieName)
	} else {
		id = strings.TrimSpace(c.Header(p.header))
	}
	if id != "" && len(id) <= maxIdentity {
		c.Attributes = append(c.Attributes, sched.Attribute{Name: sessionAttribute, Producer: p.name, Value: id})
	}
}

// cookie is the value of the first cookie of that name (RFC 6265 §5.4).
func cookie(header, name string) string {
	for pair := range strings.SplitSeq(header, ";") {
		if k, v, ok := strings.Cut(strings.TrimSpace(pair), "="); ok && k == name {
			return strings.Trim(v, `"`)
		}
	}
	return ""
}

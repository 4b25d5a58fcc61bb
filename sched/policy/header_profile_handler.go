// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"errors"
	"fmt"
	"strings"

	"github.com/penstock-project/penstock/sched"
)

// HeaderProfileHandler runs the profile that a request header names. A request that names one that is not there
// is refused with status 400 and the names of those that are. Where there is one profile it always decides.
//
// EPP-Profile and other headers that steer the gateway are heeded from trusted callers only; of others they count
// as missing.
type HeaderProfileHandler struct {
	// HeaderName is the header, in any case of letters.
	HeaderName string `json:"headerName"`
	// DefaultProfile decides without the header.
	DefaultProfile string `json:"defaultProfile"`

	header string // in lower case
}

// Validate reports that nothing names a profile.
func (p *HeaderProfileHandler) Validate() error {
	if p.HeaderName == "" {
		return errors.New("headerName: is empty: want the header that names the profile")
	}
	if p.DefaultProfile == "" {
		return errors.New("defaultProfile: is empty: want the profile of requests without the header")
	}
	p.header = strings.ToLower(p.HeaderName)
	return headerName("headerName", p.HeaderName)
}

// Choose implements [sched.Handler].
func (p *HeaderProfileHandler) Choose(c *sched.Cycle, profiles []*sched.Profile) (*sched.Profile, string) {
	if len(profiles) == 1 {
		return profiles[0], ""
	}
	asked := c.Header(p.header)
	name := asked
	if name == "" {
		name = p.DefaultProfile
	}
	for _, q := range profiles {
		if q.Name == name {
			return q, ""
		}
	}
	var names []string
	for _, q := range profiles {
		names = append(names, q.Name)
	}
	there := strings.Join(names, ", ")
	if asked == "" {
		return nil, fmt.Sprintf("the default profile, %s, is not there: name one of %s in the header %s", name, there, p.HeaderName)
	}
	return nil, fmt.Sprintf("the header %s names a profile that is not there, %q: want one of %s", p.HeaderName, name[:min(len(name), 64)], there)
}

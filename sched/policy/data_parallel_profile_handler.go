// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"errors"
	"strconv"
	"strings"

	"github.com/penstock-project/penstock/fleet"
	"github.com/penstock-project/penstock/sched"
)

// DataParallelProfileHandler runs one profile and names the picked data-parallel rank in a header.
//
// Each rank is an endpoint with a port of its own, but requests go to primaryPort of its address, where whoever
// listens sends them on to the rank in x-data-parallel-host-port. Of several profiles the first decides.
type DataParallelProfileHandler struct {
	// PrimaryPort is the port that requests are sent to.
	PrimaryPort int `json:"primaryPort"`
}

// Validate reports a port that cannot be.
func (p *DataParallelProfileHandler) Validate() error {
	if p.PrimaryPort < 1 || p.PrimaryPort > 65535 {
		return errors.New("primaryPort: must be between 1 and 65535")
	}
	return nil
}

// Choose implements [sched.Handler].
func (*DataParallelProfileHandler) Choose(_ *sched.Cycle, profiles []*sched.Profile) (*sched.Profile, string) {
	return profiles[0], ""
}

// Address implements [sched.Redirector].
func (p *DataParallelProfileHandler) Address(e *fleet.Endpoint) string {
	i := strings.LastIndexByte(e.Address, ':')
	return e.Address[:i+1] + strconv.Itoa(p.PrimaryPort)
}

// Placed implements [sched.Placer].
func (*DataParallelProfileHandler) Placed(c *sched.Cycle, chosen *fleet.Endpoint) {
	c.SetHeader("x-data-parallel-host-port", chosen.Address)
}

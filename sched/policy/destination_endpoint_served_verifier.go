// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"github.com/penstock-project/penstock/fleet"
	"github.com/penstock-project/penstock/sched"
)

// DestinationEndpointServedVerifier copies the address of the endpoint that served into the response header
// x-conformance-test-served-endpoint, for conformance tests. It takes no parameters.
type DestinationEndpointServedVerifier struct{}

// Answered implements [sched.Answerer].
func (*DestinationEndpointServedVerifier) Answered(_ *sched.Cycle, served *fleet.Endpoint, set func(name, value string)) {
	set("x-conformance-test-served-endpoint", served.Address)
}

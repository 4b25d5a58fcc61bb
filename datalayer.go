// SPDX-License-Identifier: Apache-2.0

package penstock

import (
	"fmt"

	"github.com/penstock-project/penstock/config"
	"github.com/penstock-project/penstock/source/scrape"
)

// scrapePlan is what is polled of the endpoints of a picker's pools. Its sources that are not polled,
// and sources that nothing reads, are no matter here.
func scrapePlan(p *config.Picker) (*scrape.Plan, error) {
	var polls []scrape.Poll
	for _, s := range p.Sources {
		if scrape.Sources[s.Type] == nil {
			continue
		}
		source, err := scrape.Sources.New(s.Type, s.Decode)
		if err != nil {
			return nil, err
		}
		poll := scrape.Poll{Name: s.Name, Type: s.Type, Source: source}
		for _, x := range s.Extractors {
			if scrape.Extractors[x.Type] == nil {
				continue
			}
			extractor, err := scrape.Extractors.New(x.Type, x.Decode)
			if err != nil {
				return nil, err
			}
			poll.Extractors = append(poll.Extractors, scrape.Named{Name: x.Name, Type: x.Type, Extractor: extractor})
		}
		if len(poll.Extractors) > 0 {
			polls = append(polls, poll)
		}
	}
	plan, err := scrape.NewPlan(polls...)
	if err != nil {
		return nil, fmt.Errorf("dataLayer.sources: %w", err)
	}
	return plan, nil
}

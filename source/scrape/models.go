// SPDX-License-Identifier: Apache-2.0

package scrape

import (
	"encoding/json"
)

const (
	maxModels = 1 << 20 // bytes of a list of models
	maxModel  = 512     // bytes of a model's name
)

// readModels tells the store which models a list names; adapters are on it too.
func (r *runner) readModels(j job, body []byte) error {
	var list struct {
		Data *[]struct {
			ID     string  `json:"id"`
			Parent *string `json:"parent"`
		} `json:"data"`
	}
	if err := json.Unmarshal(body, &list); err != nil || list.Data == nil {
		for _, x := range j.task.poll.extractors {
			r.opt.Extracted(j.task.poll.typ, x.Type, j.load, string(Malformed))
		}
		return Malformed
	}
	ids := make([]string, 0, len(*list.Data))
	var tuned []string
	for _, m := range *list.Data {
		if m.ID != "" && len(m.ID) <= maxModel {
			ids = append(ids, m.ID)
			if m.Parent != nil && *m.Parent != "" {
				tuned = append(tuned, m.ID)
			}
		}
	}
	r.store.TellModels(j.ep.ID, j.load, ids, tuned)
	return nil
}

// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"encoding/json"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/penstock-project/penstock/gateway"
	"github.com/penstock-project/penstock/request"
)

const modelsPath = "/v1/models"

type model struct {
	ID      string `json:"id"`
	Object  string `json:"object"`
	Created int64  `json:"created"`
	OwnedBy string `json:"owned_by"`
}

// models answers GET /v1/models and /v1/models/{id} for all pools, and reports whether it did.
// While no endpoint has told its models, an endpoint is asked instead.
func (s *Server) models(w http.ResponseWriter, r *http.Request) bool {
	rest, ok := strings.CutPrefix(r.URL.Path, modelsPath)
	if !ok || r.Method != http.MethodGet && r.Method != http.MethodHead || rest != "" && rest[0] != '/' {
		return false
	}
	known := s.core.Models()
	if len(known) == 0 {
		return false
	}
	id := strings.TrimPrefix(rest, "/")
	if id == "" {
		s.list(w, r, known)
		return true
	}
	if !slices.Contains(known, id) {
		writeRefusal(w, r, gateway.UnknownModel(id), request.Unknown, "")
		return true
	}
	writeJSON(w, r, s.model(id))
	return true
}

// list answers with a list of models, which may be empty.
func (s *Server) list(w http.ResponseWriter, r *http.Request, ids []string) {
	data := make([]model, len(ids))
	for i, id := range ids {
		data[i] = s.model(id)
	}
	writeJSON(w, r, map[string]any{"object": "list", "data": data})
}

func (s *Server) model(id string) model {
	return model{ID: id, Object: "model", Created: s.born.Unix(), OwnedBy: "penstock"}
}

func writeJSON(w http.ResponseWriter, r *http.Request, v any) {
	b, err := json.Marshal(v)
	if err != nil { // strings and numbers always marshal
		panic(err)
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(b)))
	if r.Method != http.MethodHead {
		_, _ = w.Write(b)
	}
}

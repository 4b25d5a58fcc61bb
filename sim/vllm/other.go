// SPDX-License-Identifier: Apache-2.0

package vllm

import (
	"fmt"
	"net/http"
	"slices"
)

// modelCard is an entry of the list of models, in vLLM's order.
type modelCard struct {
	ID          string       `json:"id"`
	Object      string       `json:"object"`
	Created     int64        `json:"created"`
	OwnedBy     string       `json:"owned_by"`
	Root        string       `json:"root"`
	Parent      *string      `json:"parent"`
	MaxModelLen *int         `json:"max_model_len"`
	Permission  []permission `json:"permission"`
}

type permission struct {
	ID           string  `json:"id"`
	Object       string  `json:"object"`
	Created      int64   `json:"created"`
	CreateEngine bool    `json:"allow_create_engine"`
	Sampling     bool    `json:"allow_sampling"`
	Logprobs     bool    `json:"allow_logprobs"`
	Search       bool    `json:"allow_search_indices"`
	View         bool    `json:"allow_view"`
	FineTuning   bool    `json:"allow_fine_tuning"`
	Organization string  `json:"organization"`
	Group        *string `json:"group"`
	Blocking     bool    `json:"is_blocking"`
}

// getModels lists the model under all its names, and the adapters.
func (s *Server) getModels(w http.ResponseWriter, _ *http.Request) int {
	created := s.began.Unix()
	card := func(id, root string, parent *string, length *int) modelCard {
		return modelCard{id, "model", created, "vllm", root, parent, length, []permission{{
			ID: "modelperm-" + id, Object: "model_permission", Created: created, Sampling: true, Logprobs: true, View: true, Organization: "*",
		}}}
	}
	var data []modelCard
	for _, m := range s.opts.Models {
		data = append(data, card(m, s.opts.Models[0], nil, &s.opts.MaxModelLen))
	}
	s.mu.Lock()
	for _, a := range s.adapters {
		data = append(data, card(a.Name, a.Path, &s.opts.Models[0], nil))
	}
	s.mu.Unlock()
	return reply(w, http.StatusOK, struct {
		Object string      `json:"object"`
		Data   []modelCard `json:"data"`
	}{"list", data})
}

type adapterBody struct {
	Name    string `json:"lora_name"`
	Path    string `json:"lora_path"`
	Inplace bool   `json:"load_inplace"`
}

func (s *Server) loadAdapter(w http.ResponseWriter, r *http.Request) int {
	var body adapterBody
	if err := decode(w, r, &body); err != nil {
		return fail(w, err)
	}
	refuse := func(format string, args ...any) int {
		return fail(w, &apiError{http.StatusBadRequest, "InvalidUserInput", fmt.Sprintf(format, args...), ""})
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	at := slices.IndexFunc(s.adapters, func(a Adapter) bool { return a.Name == body.Name })
	switch {
	case body.Name == "" || body.Path == "":
		return refuse("Both 'lora_name' and 'lora_path' must be provided.")
	case slices.Contains(s.opts.Models, body.Name):
		return refuse("The lora adapter '%s' conflicts with a served base model.", body.Name)
	case at >= 0 && !body.Inplace:
		return refuse("The lora adapter '%s' has already been loaded. If you want to load the adapter in place, set 'load_inplace' to True.", body.Name)
	case at >= 0:
		s.adapters[at].Path = body.Path
	default:
		s.adapters = append(s.adapters, Adapter{body.Name, body.Path})
	}
	_, _ = fmt.Fprintf(w, "Success: LoRA adapter '%s' added successfully.", body.Name)
	return http.StatusOK
}

func (s *Server) unloadAdapter(w http.ResponseWriter, r *http.Request) int {
	var body adapterBody
	if err := decode(w, r, &body); err != nil {
		return fail(w, err)
	}
	if body.Name == "" {
		return fail(w, &apiError{http.StatusBadRequest, "InvalidUserInput", "'lora_name' needs to be provided to unload a LoRA adapter.", ""})
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	at := slices.IndexFunc(s.adapters, func(a Adapter) bool { return a.Name == body.Name })
	if at < 0 {
		return fail(w, &apiError{http.StatusNotFound, "NotFoundError", fmt.Sprintf("The lora adapter '%s' cannot be found.", body.Name), ""})
	}
	s.adapters = slices.Delete(s.adapters, at, at+1)
	_, _ = fmt.Fprintf(w, "Success: LoRA adapter '%s' removed successfully.", body.Name)
	return http.StatusOK
}

// SPDX-License-Identifier: Apache-2.0

package tokens

import (
	"encoding/json"
	"os"
	"testing"
	"time"
)

// TestChats renders what e2e/tokens/chats.py had vLLM render: the bodies of three APIs, with a template of each manner.
func TestChats(t *testing.T) {
	data, err := os.ReadFile("testdata/chats.json")
	if err != nil {
		t.Fatal(err)
	}
	checkChats(t, data)
}

func checkChats(t *testing.T, data []byte) {
	t.Helper()
	var golden struct {
		Special   json.RawMessage              `json:"special"`
		Bodies    map[string][]json.RawMessage `json:"bodies"`
		Templates []struct {
			Name     string   `json:"name"`
			Template string   `json:"template"`
			Parts    bool     `json:"parts"`
			Cases    [][3]any `json:"cases"`
		} `json:"templates"`
	}
	if err := json.Unmarshal(data, &golden); err != nil {
		t.Fatal(err)
	}
	special, err := parseJSON(string(golden.Special))
	if err != nil {
		t.Fatal(err)
	}
	for _, tmpl := range golden.Templates {
		t.Run(tmpl.Name, func(t *testing.T) {
			f, err := newFormat(tmpl.Template)
			if err != nil {
				t.Fatal(err)
			}
			if f.parts != tmpl.Parts {
				t.Errorf("wants parts: got %v, want %v", f.parts, tmpl.Parts)
			}
			h := &chat{plain: f, tools: f, special: special.(*dict), now: time.Now}
			for _, c := range tmpl.Cases {
				api, n := c[0].(string), int(c[1].(float64))
				body := golden.Bodies[api][n]
				got, err := h.text(api, body)
				want, ok := c[2].(string)
				if (err == nil) != ok || ok && got != want {
					t.Errorf("%s %d: %.300s\ngot  %q, %v\nwant %q", api, n, body, got, err, want)
				}
			}
		})
	}
}

// text renders a body of an API.
func (h *chat) text(api string, body []byte) (string, error) {
	v, err := parseJSON(string(body))
	if err != nil {
		return "", err
	}
	d := v.(*dict)
	var c *conversation
	switch api {
	case "chat":
		c, err = h.openAI(d, nil)
	case "messages":
		c, err = h.anthropic(d)
	case "responses":
		c, err = h.responses(d)
	}
	if err != nil {
		return "", err
	}
	return h.render(c)
}

// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"encoding/json"
	"log/slog"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// How often the pods that we know are compared with those of the API server, and how much later a difference must still be
// there to be one: events take a moment.
const (
	compareEvery = 5 * time.Minute
	compareAgain = 10 * time.Second
)

// compare keeps comparing the pods that a namespace's feed knows with a list, and has it list anew when they differ for
// longer than an event takes. It should never find anything.
func (p *pods) compare(ctx context.Context, c *Cluster, f *feed) {
	c.opt.Metrics.Differs("pods", p.namespace, 0)
	defer c.opt.Metrics.Forget(p.namespace)
	for ctx.Err() == nil {
		sleep(ctx, c.opt.compareEvery)
		from := f.listed()
		if from == 0 {
			continue // it lists when it can
		}
		before := p.difference(ctx, c)
		n := 0
		if len(before) > 0 {
			sleep(ctx, c.opt.compareAgain)
			for id := range p.difference(ctx, c) {
				if before[id] {
					n++
				}
			}
		}
		if ctx.Err() != nil {
			return
		}
		if f.listed() != from {
			continue // what was compared is not what is known now
		}
		c.opt.Metrics.Differs("pods", p.namespace, n)
		if n > 0 {
			c.opt.Log.Error("the API server has other pods than its watch told: listing anew", slog.String("namespace", p.namespace), slog.Int("pods", n))
			f.anew()
		}
	}
}

// difference are the pods, by name and UID, that only one side has. Nothing differs while the API server cannot be asked.
func (p *pods) difference(ctx context.Context, c *Cluster) map[string]bool {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	raw, err := c.clients.core.Get().MaxRetries(0).AbsPath("/api/v1/namespaces", p.namespace, "pods").
		VersionedParams(&metav1.ListOptions{ResourceVersion: "0", FieldSelector: finished}, metav1.ParameterCodec).
		SetHeader("Accept", "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json").Do(ctx).Raw()
	if err != nil {
		return nil // the feed tells
	}
	var list struct {
		Items []struct {
			Metadata struct{ Name, UID string }
		}
	}
	if json.Unmarshal(raw, &list) != nil {
		return nil
	}
	out := map[string]bool{}
	for _, o := range list.Items {
		out[o.Metadata.Name+" "+o.Metadata.UID] = true
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, known := range p.all {
		id := known.name + " " + known.uid
		if out[id] {
			delete(out, id)
		} else {
			out[id] = true
		}
	}
	return out
}

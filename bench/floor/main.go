// SPDX-License-Identifier: Apache-2.0

// Floor is Go's bare httputil.ReverseProxy with random choice: the least that a proxy made of
// the standard library costs, and the measure of gateway/proxy (docs/performance.md).
//
//	floor -listen 127.0.0.1:32001 -n 8 -port 31000
package main

import (
	"flag"
	"fmt"
	"log"
	"math/rand/v2"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strings"
	"time"
)

func main() {
	listen := flag.String("listen", "127.0.0.1:32001", "address to listen on")
	list := flag.String("endpoints", "", "host:port of each endpoint, comma separated")
	n := flag.Int("n", 8, "endpoints on 127.0.0.1, when -endpoints is empty")
	port := flag.Int("port", 31000, "port of the first of them")
	flag.Parse()
	var endpoints []*url.URL
	for _, a := range strings.FieldsFunc(*list, func(r rune) bool { return r == ',' }) {
		endpoints = append(endpoints, &url.URL{Scheme: "http", Host: a})
	}
	for i := 0; *list == "" && i < *n; i++ {
		endpoints = append(endpoints, &url.URL{Scheme: "http", Host: fmt.Sprintf("127.0.0.1:%d", *port+i)})
	}
	if len(endpoints) == 0 {
		log.Fatal("floor: no endpoints")
	}
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.Proxy = nil
	transport.DisableCompression = true
	transport.MaxIdleConns, transport.MaxIdleConnsPerHost = 0, 1024
	proxy := &httputil.ReverseProxy{
		Transport: transport,
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(endpoints[rand.IntN(len(endpoints))])
			r.SetXForwarded()
		},
	}
	server := &http.Server{Addr: *listen, Handler: proxy, ReadHeaderTimeout: 10 * time.Second}
	log.Fatal(server.ListenAndServe())
}

// SPDX-License-Identifier: Apache-2.0

package api

// HTTPRoute is gateway.networking.k8s.io/v1 HTTPRoute. What we do not act on is kept raw.
type HTTPRoute struct {
	Meta
	Spec   HTTPRouteSpec `json:"spec"`
	Status Raw           `json:"status"`
}

// HTTPRouteSpec is the spec of an [HTTPRoute].
type HTTPRouteSpec struct {
	ParentRefs         []ParentRef `json:"parentRefs"`
	UseDefaultGateways Raw         `json:"useDefaultGateways"`
	Hostnames          []string    `json:"hostnames"`
	Rules              []RouteRule `json:"rules"`
}

// ParentRef names what a route is attached to.
type ParentRef struct {
	Group       string `json:"group"`
	Kind        string `json:"kind"`
	Namespace   string `json:"namespace"`
	Name        string `json:"name"`
	SectionName string `json:"sectionName"`
	Port        *int32 `json:"port"`
}

// RouteRule sends requests that match any of Matches to the backends, by weight.
type RouteRule struct {
	Name               string       `json:"name"`
	Matches            []RouteMatch `json:"matches"`
	Filters            []Raw        `json:"filters"`
	BackendRefs        []BackendRef `json:"backendRefs"`
	Timeouts           Raw          `json:"timeouts"`
	Retry              Raw          `json:"retry"`
	SessionPersistence Raw          `json:"sessionPersistence"`
}

// RouteMatch matches a request when all of it does.
type RouteMatch struct {
	Path        *ValueMatch  `json:"path"`
	Headers     []ValueMatch `json:"headers"`
	QueryParams []ValueMatch `json:"queryParams"`
	Method      string       `json:"method"`
}

// ValueMatch matches a path, or a header or query parameter by its name.
type ValueMatch struct {
	Type  string `json:"type"`
	Name  string `json:"name"`
	Value string `json:"value"`
}

// BackendRef names where requests go.
type BackendRef struct {
	Group     string `json:"group"`
	Kind      string `json:"kind"`
	Name      string `json:"name"`
	Namespace string `json:"namespace"`
	Port      *int32 `json:"port"`
	Weight    *int32 `json:"weight"`
	Filters   []Raw  `json:"filters"`
}

// Gateway is gateway.networking.k8s.io/v1 Gateway. What we do not act on is kept raw.
type Gateway struct {
	Meta
	Spec   GatewaySpec `json:"spec"`
	Status Raw         `json:"status"`
}

// GatewaySpec is the spec of a [Gateway].
type GatewaySpec struct {
	GatewayClassName string     `json:"gatewayClassName"`
	Listeners        []Listener `json:"listeners"`
	Addresses        Raw        `json:"addresses"`
	Infrastructure   Raw        `json:"infrastructure"`
	AllowedListeners Raw        `json:"allowedListeners"`
	BackendTLS       Raw        `json:"backendTLS"`
	TLS              Raw        `json:"tls"`
	DefaultScope     Raw        `json:"defaultScope"`
}

// Listener is a port that a [Gateway] listens on.
type Listener struct {
	Name          string `json:"name"`
	Hostname      string `json:"hostname"`
	Port          int32  `json:"port"`
	Protocol      string `json:"protocol"`
	TLS           Raw    `json:"tls"`
	AllowedRoutes Raw    `json:"allowedRoutes"`
}

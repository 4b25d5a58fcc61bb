// SPDX-License-Identifier: Apache-2.0

package extproc

import (
	"bytes"
	"slices"
	"strings"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/penstock-project/penstock/gateway/wire"
)

// kind is what a ProcessingRequest tells of: its field's number in the oneof.
type kind = protowire.Number

const (
	none             kind = 0
	requestHeaders   kind = 2
	responseHeaders  kind = 3
	requestBody      kind = 4
	responseBody     kind = 5
	requestTrailers  kind = 6
	responseTrailers kind = 7
)

// Other fields of a ProcessingRequest.
const (
	fieldMetadata      = 8
	fieldAttributes    = 9
	fieldObservability = 10
	fieldProtocol      = 11
)

// mode is a ProcessingMode.BodySendMode.
type mode uint64

const (
	noBody          mode = 0
	streamed        mode = 1
	buffered        mode = 2
	bufferedPartial mode = 3
	fullDuplex      mode = 4
	grpcMessages    mode = 5
)

// Names of the Endpoint Picker Protocol.
const (
	destinationKey  = "x-gateway-destination-endpoint"
	servedKey       = "x-gateway-destination-endpoint-served"
	scoresKey       = "x-gateway-destination-endpoint-scores"
	subsetKey       = "x-gateway-destination-endpoint-subset"
	namespace       = "envoy.lb"
	subsetNamespace = "envoy.lb.subset_hint"
)

// message is a ProcessingRequest, as far as we read it.
type message struct {
	kind      kind
	end       bool         // end_of_stream
	headers   headers      // of headers
	body      []wire.Piece // of a body; valid as long as what was decoded
	subset    []string
	hasSubset bool
	served    string
	unreached string // why the proxy has no answer of the endpoint; empty when it has, or does not say
	// Of the first message only:
	hasProtocol               bool
	requestMode, responseMode mode
	observing                 bool
}

// reset prepares for another message.
func (m *message) reset() {
	clear(m.headers)
	clear(m.body)
	*m = message{headers: m.headers[:0], body: m.body[:0]}
}

// decode reads data into an empty message, whose body lies there and is not copied. What it does
// not know it skips, and it is lenient about what Envoy would not send.
func (m *message) decode(data []wire.Piece) error {
	c := newCursor(data)
	for c.left > 0 {
		num, typ, err := c.tag()
		if err != nil {
			return err
		}
		switch {
		case typ == protowire.VarintType && num == fieldObservability:
			v, err := c.varint()
			if err != nil {
				return err
			}
			m.observing = v != 0
		case typ == protowire.BytesType:
			n, err := c.length()
			if err != nil {
				return err
			}
			if err := m.field(&c, num, n); err != nil {
				return err
			}
		default:
			if err := c.other(num, typ); err != nil {
				return err
			}
		}
	}
	return nil
}

// field reads a field of n bytes.
func (m *message) field(c *cursor, num protowire.Number, n int) error {
	switch num {
	case requestHeaders, responseHeaders:
		m.choose(num)
		return m.httpHeaders(c.bytes(n))
	case requestBody, responseBody:
		m.choose(num)
		return m.httpBody(c, n)
	case requestTrailers, responseTrailers:
		m.choose(num)
	case fieldMetadata:
		return m.metadata(c.bytes(n))
	case fieldAttributes:
		return m.attributes(c.bytes(n))
	case fieldProtocol:
		return m.protocol(c.bytes(n))
	}
	c.skip(n)
	return nil
}

// choose sets the kind; of a oneof the last member counts, and the same one again is merged.
func (m *message) choose(k kind) {
	if m.kind != k {
		m.kind, m.end, m.headers, m.body = k, false, m.headers[:0], m.body[:0]
	}
}

// httpBody reads an HttpBody: 1 body, 2 end_of_stream.
func (m *message) httpBody(c *cursor, n int) error {
	after := c.left - n
	for c.left > after {
		num, typ, err := c.tag()
		if err != nil || c.left < after {
			return errMalformed
		}
		switch {
		case num == 1 && typ == protowire.BytesType:
			n, err := c.length()
			if err != nil || n > c.left-after {
				return errMalformed
			}
			m.body = c.pieces(m.body[:0], n)
		case num == 2 && typ == protowire.VarintType:
			v, err := c.varint()
			if err != nil {
				return err
			}
			m.end = v != 0
		default:
			if err := c.other(num, typ); err != nil {
				return err
			}
		}
	}
	if c.left < after {
		return errMalformed
	}
	return nil
}

// httpHeaders reads an HttpHeaders: 1 headers, 3 end_of_stream.
func (m *message) httpHeaders(b []byte) error {
	return fields(b, func(num protowire.Number, typ protowire.Type, v uint64, b []byte) error {
		switch {
		case num == 1 && typ == protowire.BytesType:
			return m.headerMap(b)
		case num == 3 && typ == protowire.VarintType:
			m.end = v != 0
		}
		return nil
	})
}

// headerMap reads a HeaderMap: 1 headers. One copy of it serves all names and values.
func (m *message) headerMap(b []byte) error {
	text := string(b)
	for len(b) > 0 {
		num, typ, n := protowire.ConsumeTag(b)
		if n < 0 {
			return errMalformed
		}
		b = b[n:]
		if num != 1 || typ != protowire.BytesType {
			if n = protowire.ConsumeFieldValue(num, typ, b); n < 0 {
				return errMalformed
			}
			b = b[n:]
			continue
		}
		v, n := protowire.ConsumeBytes(b)
		if n < 0 {
			return errMalformed
		}
		b = b[n:]
		start := len(text) - len(b) - len(v)
		h, err := headerValue(v, text[start:start+len(v)])
		if err != nil {
			return err
		}
		m.headers = append(m.headers, h)
	}
	return nil
}

// headerValue reads a HeaderValue: 1 key, 2 value, 3 raw_value, which goes before value. The
// result lies in text, which is b.
func headerValue(b []byte, text string) (header, error) {
	var h header
	var raw string
	for len(b) > 0 {
		num, typ, n := protowire.ConsumeTag(b)
		if n < 0 {
			return h, errMalformed
		}
		b = b[n:]
		if typ != protowire.BytesType {
			if n = protowire.ConsumeFieldValue(num, typ, b); n < 0 {
				return h, errMalformed
			}
			b = b[n:]
			continue
		}
		v, n := protowire.ConsumeBytes(b)
		if n < 0 {
			return h, errMalformed
		}
		b = b[n:]
		end := len(text) - len(b)
		switch num {
		case 1:
			h.name = strings.ToLower(text[end-len(v) : end])
		case 2:
			h.value = text[end-len(v) : end]
		case 3:
			raw = text[end-len(v) : end]
		}
	}
	if raw != "" {
		h.value = raw
	}
	return h, nil
}

// protocol reads a ProtocolConfiguration: 1 request_body_mode, 2 response_body_mode.
func (m *message) protocol(b []byte) error {
	m.hasProtocol = true
	return fields(b, func(num protowire.Number, typ protowire.Type, v uint64, _ []byte) error {
		switch {
		case num == 1 && typ == protowire.VarintType:
			m.requestMode = mode(v)
		case num == 2 && typ == protowire.VarintType:
			m.responseMode = mode(v)
		}
		return nil
	})
}

// metadata reads a Metadata: 1 filter_metadata, a map of name and Struct.
func (m *message) metadata(b []byte) error {
	return entries(b, func(name string, value []byte) error {
		switch name {
		case subsetNamespace:
			m.subset, m.hasSubset = nil, false
			return entries(value, func(key string, value []byte) error {
				if key != subsetKey {
					return nil
				}
				var err error
				m.subset, m.hasSubset, err = stringList(value)
				return err
			})
		case namespace:
			m.served = ""
			return entries(value, func(key string, value []byte) error {
				if key != servedKey {
					return nil
				}
				s, _, err := stringList(value)
				m.served = strings.Join(s, ",")
				return err
			})
		}
		return nil
	})
}

// Envoy's words for a request whose endpoint could not be connected to, or hung up before it answered: "detail{reason}".
const (
	detailsKey = "response.code_details"
	resetEarly = "upstream_reset_before_response_started{"
)

// attributes reads an entry of a map of name and Struct: 1 key, 2 value.
func (m *message) attributes(b []byte) error {
	return fields(b, func(num protowire.Number, typ protowire.Type, _ uint64, b []byte) error {
		if num != 2 || typ != protowire.BytesType {
			return nil
		}
		return entries(b, func(key string, value []byte) error {
			if key != detailsKey || !bytes.Contains(value, []byte(resetEarly)) {
				return nil
			}
			s, _, err := stringValue(value)
			if reason, ok := strings.CutPrefix(s, resetEarly); ok && strings.Contains(reason, "connect") { // not such as overflow
				m.unreached = strings.TrimSuffix(reason, "}")
			}
			return err
		})
	})
}

// stringList reads a Value, which is a string, to be split by comma, or a list, of which the
// strings count: 3 string_value, 5 struct_value, 6 list_value. Any other is as good as none.
func stringList(b []byte) (list []string, ok bool, err error) {
	var last protowire.Number
	err = fields(b, func(num protowire.Number, typ protowire.Type, _ uint64, b []byte) error {
		if !ofValue(num, typ) {
			return nil
		}
		if num != 6 || last != 6 {
			list, ok = nil, false
		}
		switch last = num; num {
		case 3:
			list, ok = nil, true
			for s := range strings.SplitSeq(string(b), ",") {
				if s = strings.TrimSpace(s); s != "" {
					list = append(list, s)
				}
			}
		case 6:
			ok = true
			return fields(b, func(num protowire.Number, typ protowire.Type, _ uint64, b []byte) error {
				if num != 1 || typ != protowire.BytesType {
					return nil
				}
				s, isString, err := stringValue(b)
				if isString {
					list = append(list, s)
				}
				return err
			})
		}
		return nil
	})
	return list, ok, err
}

// stringValue reads a Value that may be a string.
func stringValue(b []byte) (s string, ok bool, err error) {
	err = fields(b, func(num protowire.Number, typ protowire.Type, _ uint64, b []byte) error {
		if ofValue(num, typ) {
			s, ok = string(b), num == 3
		}
		return nil
	})
	return s, ok, err
}

// ofValue tells whether a field belongs to a Value's oneof.
func ofValue(num protowire.Number, typ protowire.Type) bool {
	switch num {
	case 1, 4:
		return typ == protowire.VarintType
	case 2:
		return typ == protowire.Fixed64Type
	case 3, 5, 6:
		return typ == protowire.BytesType
	}
	return false
}

// entries reads a message whose field 1 is a map of string and message.
func entries(b []byte, yield func(key string, value []byte) error) error {
	return fields(b, func(num protowire.Number, typ protowire.Type, _ uint64, b []byte) error {
		if num != 1 || typ != protowire.BytesType {
			return nil
		}
		var key string
		var value []byte
		err := fields(b, func(num protowire.Number, typ protowire.Type, _ uint64, b []byte) error {
			switch {
			case typ != protowire.BytesType:
			case num == 1:
				key = string(b)
			case num == 2 && value == nil:
				value = slices.Clip(b)
			case num == 2:
				value = append(value, b...) // a message given twice is merged, as if in one piece
			}
			return nil
		})
		if err != nil {
			return err
		}
		return yield(key, value)
	})
}

// fields calls yield with each field of a message: v is set for numbers, b for bytes.
func fields(b []byte, yield func(num protowire.Number, typ protowire.Type, v uint64, b []byte) error) error {
	for len(b) > 0 {
		num, typ, n := protowire.ConsumeTag(b)
		if n < 0 {
			return errMalformed
		}
		b = b[n:]
		var v uint64
		var p []byte
		switch typ {
		case protowire.VarintType:
			v, n = protowire.ConsumeVarint(b)
		case protowire.BytesType:
			p, n = protowire.ConsumeBytes(b)
		default:
			n = protowire.ConsumeFieldValue(num, typ, b)
		}
		if n < 0 {
			return errMalformed
		}
		b = b[n:]
		if err := yield(num, typ, v, p); err != nil {
			return err
		}
	}
	return nil
}

package event

import "encoding/binary"

// Record returns the record that the consumer read, byte for byte: its key, which may be null, its value, and its
// headers in their order, including repeated ones and foreign bytes. Its Time is the event's. For an event that was not
// consumed (Raw is nil) it returns the encoded event.
func (e *Event) Record() Record {
	r := Record{
		Topic: e.Topic, Partition: e.Position.Partition, Offset: e.Position.Offset, Time: e.Time,
		Value: e.Payload,
	}
	if e.Raw != nil {
		if key, value, headers, ok := parseRaw(e.Raw); ok {
			r.Key, r.Value, r.Headers = key, value, headers
			return r
		}
	}
	if e.Key != "" {
		r.Key = []byte(e.Key)
	}
	r.Headers = AppendHeaders(nil, e)
	return r
}

// Encode returns the record in Kafka's format 2, as [Event.Raw] keeps it: key, value and headers, without time and
// place.
func (r *Record) Encode() []byte {
	n := len(r.Key) + len(r.Value) + 32
	for _, h := range r.Headers {
		n += len(h.Key) + len(h.Value) + 10
	}
	// Attributes, and the distances in time and offset from the first record of the batch, which this is.
	b := appendBytes(appendBytes(append(make([]byte, 0, n), 0, 0, 0), r.Key), r.Value)
	b = binary.AppendVarint(b, int64(len(r.Headers)))
	for _, h := range r.Headers {
		b = binary.AppendVarint(b, int64(len(h.Key)))
		b = appendBytes(append(b, h.Key...), h.Value)
	}
	return b
}

// appendBytes appends a length and as many bytes; the length -1 for nil.
func appendBytes(b, v []byte) []byte {
	if v == nil {
		return binary.AppendVarint(b, -1)
	}
	return append(binary.AppendVarint(b, int64(len(v))), v...)
}

// parseRaw decodes a record of Kafka's format 2: attributes, time, offset, key, value, headers.
func parseRaw(b []byte) (key, value []byte, headers []Header, ok bool) {
	if len(b) == 0 {
		return nil, nil, nil, false
	}
	r := rawReader{b: b[1:]}
	r.varint()
	r.varint()
	key = r.bytes()
	value = r.bytes()
	n := r.varint()
	// The smallest header has two lengths.
	if n < 0 || n > min(MaxHeaders, int64(len(r.b)/2)) {
		return nil, nil, nil, false
	}
	headers = make([]Header, 0, n)
	for range n {
		headers = append(headers, Header{Key: string(r.bytes()), Value: r.bytes()})
	}
	return key, value, headers, !r.bad
}

// rawReader reads the values of a record. It sets bad if one does not fit.
type rawReader struct {
	b   []byte
	bad bool
}

func (r *rawReader) varint() int64 {
	v, n := binary.Varint(r.b)
	if n <= 0 {
		r.bad, r.b = true, nil
		return 0
	}
	r.b = r.b[n:]
	return v
}

// bytes reads a length and that many bytes; nil for the length -1.
func (r *rawReader) bytes() []byte {
	n := r.varint()
	if n == -1 {
		return nil
	}
	if n < 0 || n > int64(len(r.b)) {
		r.bad, r.b = true, nil
		return nil
	}
	v := r.b[:n:n]
	r.b = r.b[n:]
	return v
}

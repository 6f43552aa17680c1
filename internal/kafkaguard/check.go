package kafkaguard

import (
	"bytes"
	"encoding/binary"
	"io"
	"reflect"
	"strconv"
	"strings"

	"github.com/segmentio/kafka-go/protocol"
)

// check reads a value as kafka-go would, and reports whether it is complete.
type check func(*reader) bool

type reader struct{ b []byte }

func (r *reader) take(n uint64) ([]byte, bool) {
	if n > uint64(len(r.b)) {
		return nil, false
	}
	v := r.b[:n]
	r.b = r.b[n:]
	return v, true
}

func (r *reader) uvarint() (uint64, bool) {
	v, n := binary.Uvarint(r.b)
	if n <= 0 {
		return 0, false
	}
	r.b = r.b[n:]
	return v, true
}

// length reads the length of a string or an array, of size bytes or in a flexible version's form. Null has length zero.
func (r *reader) length(size uint64, flexible bool) (uint64, bool) {
	if flexible {
		n, ok := r.uvarint()
		return max(n, 1) - 1, ok
	}
	b, ok := r.take(size)
	switch {
	case !ok:
		return 0, false
	case size == 2:
		return uint64(max(0, int16(binary.BigEndian.Uint16(b)))), true
	}
	return uint64(max(0, int32(binary.BigEndian.Uint32(b)))), true
}

// checkOf returns the check of the answers to a kind of request, or nil if kafka-go does not decode them.
func checkOf(r kind) check {
	if r.version < r.key.MinVersion() || r.version > r.key.MaxVersion() {
		return nil
	}
	// kafka-go does not export its types. Decoding an answer of zeros returns a value of the type.
	var zero [1 << 10]byte
	binary.BigEndian.PutUint32(zero[:], uint32(len(zero)-4))
	_, m, err := protocol.ReadResponse(bytes.NewReader(zero[:]), r.key, r.version)
	if err != nil || m == nil {
		return nil
	}
	t := reflect.TypeOf(m).Elem()
	flexible := isFlexible(t, r.version)
	body := structCheck(t, r.version, flexible)
	switch {
	case body == nil:
		return nil
	case flexible:
		return func(r *reader) bool { return tags(r) && body(r) }
	}
	return body
}

func valueCheck(t reflect.Type, version int16, flexible bool) check {
	if reflect.PointerTo(t).Implements(reflect.TypeFor[io.ReaderFrom]()) {
		return nil // records, which this module decodes itself
	}
	switch t.Kind() {
	case reflect.Bool, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64, reflect.Float64:
		size := uint64(t.Size())
		return func(r *reader) bool { _, ok := r.take(size); return ok }
	case reflect.String:
		return func(r *reader) bool { return skip(r, 2, flexible) }
	case reflect.Struct:
		return structCheck(t, version, flexible)
	case reflect.Slice:
		if t.Elem().Kind() == reflect.Uint8 {
			return func(r *reader) bool { return skip(r, 4, flexible) }
		}
		element := valueCheck(t.Elem(), version, flexible)
		if element == nil {
			return nil
		}
		return func(r *reader) bool {
			n, ok := r.length(4, flexible)
			for ; n > 0 && ok; n-- {
				ok = len(r.b) > 0 && element(r)
			}
			return ok
		}
	}
	return nil
}

// skip reads a length and that many bytes.
func skip(r *reader, size uint64, flexible bool) bool {
	n, ok := r.length(size, flexible)
	if ok {
		_, ok = r.take(n)
	}
	return ok
}

func structCheck(t reflect.Type, version int16, flexible bool) check {
	var fields []check
	for i := range t.NumField() {
		f := t.Field(i)
		if f.Name == "_" || !in(f.Tag.Get("kafka"), version) {
			continue
		}
		field := valueCheck(f.Type, version, flexible)
		if field == nil {
			return nil
		}
		fields = append(fields, field)
	}
	return func(r *reader) bool {
		for _, field := range fields {
			if !field(r) {
				return false
			}
		}
		return !flexible || tags(r)
	}
}

// tags skips tagged fields, as kafka-go does.
func tags(r *reader) bool {
	n, ok := r.uvarint()
	for ; n > 0 && ok; n-- {
		var size uint64
		if _, ok = r.uvarint(); !ok {
			break
		}
		if size, ok = r.uvarint(); ok {
			_, ok = r.take(size)
		}
	}
	return ok
}

// in reports whether a version has the field of a kafka-go message with this struct tag.
func in(tag string, version int16) bool {
	for alternative := range strings.SplitSeq(tag, "|") {
		first, last := 0, -1
		for option := range strings.SplitSeq(alternative, ",") {
			if v, ok := strings.CutPrefix(option, "min=v"); ok {
				first, _ = strconv.Atoi(v)
			}
			if v, ok := strings.CutPrefix(option, "max=v"); ok {
				last, _ = strconv.Atoi(v)
			}
		}
		if first <= int(version) && int(version) <= last {
			return true
		}
	}
	return false
}

// isFlexible reports whether a version of a message has tagged fields: a field of the struct is for this.
func isFlexible(t reflect.Type, version int16) bool {
	for i := range t.NumField() {
		if tag, ok := strings.CutSuffix(t.Field(i).Tag.Get("kafka"), ",tag"); ok && in(tag, version) {
			return true
		}
	}
	return false
}

package event

import (
	"encoding/hex"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"
)

// Header is a Kafka header. It has the layout of kafka-go's protocol.Header, so that one converts to the other.
type Header struct {
	Key   string
	Value []byte
}

// Names of the headers that the codec writes: the attributes of CloudEvents 1.0 in the binary mode of its Kafka
// protocol binding, and our own ones for the event's place in its outbox.
const (
	HeaderSpecVersion = "ce_specversion"
	HeaderID          = "ce_id"
	HeaderSource      = "ce_source"
	HeaderType        = "ce_type"
	HeaderTime        = "ce_time"
	HeaderContentType = "content-type"
	HeaderTenant      = "ce_tenant"
	HeaderEpoch       = "ce_epoch"
	HeaderLane        = "ce_lane"
	HeaderLaneSeq     = "ce_laneseq"
	HeaderMaybe       = "ce_maybe" // "true", or absent
	HeaderTraceParent = "traceparent"
	// HeaderReplay is among the event's own headers, as "true", if an operator of the outbox published it again under
	// another number.
	HeaderReplay = "effectonce_replay"
)

// MaxHeaders bounds the headers of a record, and the members of a structured CloudEvent. A header of two bytes in the
// log, or of none if it is compressed, costs a hundred bytes of memory.
const MaxHeaders = 10_000

// DefaultSource is the ce_source of an event without a source: CloudEvents requires one.
const DefaultSource = "effectonce"

var (
	specVersion = []byte("1.0")
	maybe       = []byte("true")
)

// ReservedHeader reports whether a header name is reserved for the codec, so that an event may not have it: every name
// that begins with "ce_", and "content-type".
func ReservedHeader(name string) bool {
	return strings.HasPrefix(name, "ce_") || name == HeaderContentType
}

// AppendHeaders appends the headers of e to dst, in a fixed order on which others may rely: ce_specversion, ce_id,
// ce_source, ce_type, ce_time, content-type, ce_tenant, ce_epoch, ce_lane, ce_laneseq, ce_maybe, traceparent, then the
// event's own by name. It leaves out attributes that e lacks, and reserved names in e.Headers.
func AppendHeaders(dst []Header, e *Event) []Header {
	w := headerWriter{dst: dst, buf: make([]byte, 0, headerBytes(e))}
	source := e.Source
	if source == "" {
		source = DefaultSource
	}
	w.dst = append(w.dst, Header{HeaderSpecVersion, specVersion})
	w.uuid(HeaderID, e.ID)
	w.text(HeaderSource, source)
	w.text(HeaderType, e.Type)
	if !e.Time.IsZero() {
		w.value(HeaderTime, e.Time.UTC().AppendFormat(w.buf, time.RFC3339Nano))
	}
	if e.ContentType != "" {
		w.text(HeaderContentType, e.ContentType)
	}
	if e.Tenant != "" {
		w.text(HeaderTenant, e.Tenant)
	}
	if e.Position.Epoch != "" {
		w.text(HeaderEpoch, e.Position.Epoch)
		w.value(HeaderLane, strconv.AppendInt(w.buf, int64(e.Position.Lane), 10))
		w.value(HeaderLaneSeq, strconv.AppendInt(w.buf, e.Position.Seq, 10))
	}
	if e.Position.MaybePublished {
		w.dst = append(w.dst, Header{HeaderMaybe, maybe})
	}
	w.own(e.Headers)
	return w.dst
}

// headerWriter cuts the header values of an event from one buffer: they are written a hundred thousand times a second.
type headerWriter struct {
	dst []Header
	buf []byte
}

// headerBytes bounds the size of the values: the id, two numbers and a time, and the strings.
func headerBytes(e *Event) int {
	n := 36 + 6 + 20 + len(time.RFC3339Nano) + len(DefaultSource) + len(e.Source) + len(e.Type) + len(e.ContentType) +
		len(e.Tenant) + len(e.Position.Epoch)
	for _, v := range e.Headers {
		n += len(v)
	}
	return n
}

// value takes buf with a value appended to it. The value cannot grow into the next one.
func (w *headerWriter) value(name string, buf []byte) {
	w.dst = append(w.dst, Header{name, buf[len(w.buf):len(buf):len(buf)]})
	w.buf = buf
}

func (w *headerWriter) text(name, v string) { w.value(name, append(w.buf, v...)) }

func (w *headerWriter) uuid(name string, id uuid.UUID) {
	at := len(w.buf)
	buf := append(w.buf, "00000000-0000-0000-0000-000000000000"...)
	hex.Encode(buf[at:], id[:4])
	hex.Encode(buf[at+9:], id[4:6])
	hex.Encode(buf[at+14:], id[6:8])
	hex.Encode(buf[at+19:], id[8:10])
	hex.Encode(buf[at+24:], id[10:])
	w.value(name, buf)
}

func (w *headerWriter) own(own map[string]string) {
	if len(own) == 0 {
		return
	}
	if v, ok := own[HeaderTraceParent]; ok {
		w.text(HeaderTraceParent, v)
	}
	at := len(w.dst)
	for name, v := range own {
		if name != HeaderTraceParent && !ReservedHeader(name) {
			w.text(name, v)
		}
	}
	slices.SortFunc(w.dst[at:], func(a, b Header) int { return strings.Compare(a.Key, b.Key) })
}

// Record is a Kafka record as a consumer read it.
type Record struct {
	Topic      string
	Partition  int32
	Offset     int64
	Time       time.Time // the record's timestamp
	Key, Value []byte
	Headers    []Header
}

// Decode returns the Event of a record of any producer. It never fails and never panics: attributes that are missing
// are empty. Of a header that occurs twice, the last one counts, as in Kafka's lastHeader. Key and header values that
// are not UTF-8 are kept byte for byte, but cannot be stored as text; see [Storable].
//
// idHeader names the header with the id (empty: ce_id; Debezium's outbox router writes "id"); without that header
// Decode looks for ce_id. A UUID is the id; for a CloudEvent with a ce_source that no relay wrote it is hashed together
// with the source. An id that is no UUID becomes [ForeignID] of (ce_source, or else the topic, and the id). Without an
// id the event gets a [RecordID]. So does the value of an unset variable, such as the nil UUID, null or undefined:
// otherwise all such records would be one event.
//
// A record in the structured mode of CloudEvents, with the content type application/cloudevents+json, is decoded as if
// it were in the binary mode: its data is the payload, datacontenttype the content type, and an extension x the header
// ce_x. If it does not parse, or has more than [MaxHeaders] members, its value is the payload. Decode reads no more
// than MaxHeaders headers; consumers refuse a record with more.
func Decode(r *Record, idHeader string) Event {
	if idHeader == "" {
		idHeader = HeaderID
	}
	e := Event{
		Topic: r.Topic, Key: string(r.Key), Payload: r.Value, Time: r.Time,
		Position: Position{Lane: -1, Partition: r.Partition, Offset: r.Offset, Timestamp: r.Time},
	}
	var id, ceID string
	for i := range min(len(r.Headers), MaxHeaders) {
		name, value := r.Headers[i].Key, r.Headers[i].Value
		switch name {
		case idHeader:
			id = string(value)
			continue
		case HeaderID:
			ceID = string(value)
			continue
		}
		if !e.decodeAttribute(name, string(value)) {
			if e.Headers == nil {
				e.Headers = make(map[string]string, len(r.Headers)-i)
			}
			e.Headers[name] = string(value)
		}
	}
	own := id != "" && idHeader != HeaderID
	if unset(id) {
		id = ceID
	}
	if isStructured(e.ContentType) {
		if its, ok := e.decodeStructured(r.Value); ok && unset(id) {
			id = its
		}
	}
	switch {
	case unset(id):
		e.ID = RecordID(r.Topic, r.Partition, r.Offset, r.Time)
	case e.Source != "" && e.Position.Epoch == "" && !own:
		e.ID = sourceID(e.Source, id)
	case e.Source != "":
		e.ID = ForeignID(e.Source, id)
	default:
		e.ID = ForeignID(r.Topic, id)
	}
	return e
}

// decodeAttribute decodes a header of the codec; false: it is one of the event's own. A value that does not parse
// changes nothing.
func (e *Event) decodeAttribute(name, value string) bool {
	switch name {
	case HeaderSource:
		e.Source = value
	case HeaderType:
		e.Type = value
	case HeaderTime:
		if t, err := time.Parse(time.RFC3339Nano, value); err == nil {
			e.Time = t
		}
	case HeaderContentType:
		e.ContentType = value
	case HeaderTenant:
		e.Tenant = value
	case HeaderEpoch:
		e.Position.Epoch = value
	case HeaderLane:
		if n, err := strconv.ParseInt(value, 10, 16); err == nil {
			e.Position.Lane = int16(n)
		}
	case HeaderLaneSeq:
		if n, err := strconv.ParseInt(value, 10, 64); err == nil {
			e.Position.Seq = n
		}
	case HeaderMaybe:
		e.Position.MaybePublished = value == string(maybe)
	case HeaderReplay:
		e.Position.Replayed = value == string(maybe)
	case HeaderSpecVersion:
	default:
		return false
	}
	return true
}

// Storable reports whether s can enter a Postgres text or jsonb value: valid UTF-8 without U+0000.
func Storable(s string) bool {
	return utf8.ValidString(s) && strings.IndexByte(s, 0) < 0
}

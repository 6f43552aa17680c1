package sql

import (
	"cmp"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/google/uuid"

	"github.com/effectonce/effectonce/event"
)

// KeyHash returns the name of a key in inbox_parked_key, because a Kafka key may be longer than an index row. Each part
// is preceded by its length, so that different keys have different input. Nil for an event without a key, which is
// always parked alone.
func KeyHash(tenant, topic, key string) []byte {
	if key == "" {
		return nil
	}
	h := sha256.New()
	var n [4]byte
	for _, part := range []string{tenant, topic, key} {
		binary.BigEndian.PutUint32(n[:], uint32(len(part)))
		h.Write(n[:])
		h.Write([]byte(part))
	}
	return h.Sum(nil)
}

// Content returns a hash of what an event says: its type, key and payload. Headers and position may differ between the
// repeats of an event. Never 0, which is the content that is not known.
func Content(e *event.Event) int64 {
	h := sha256.New()
	var n [4]byte
	for _, part := range []string{e.Type, e.Key} {
		binary.BigEndian.PutUint32(n[:], uint32(len(part)))
		h.Write(n[:])
		h.Write([]byte(part))
	}
	h.Write(e.Payload)
	return cmp.Or(int64(binary.BigEndian.Uint64(h.Sum(nil))), 1)
}

// OtherID is the id of an event whose own one is another event's. It is derived from id and content: it is the same for
// repeats of the event, and stays in the day.
func OtherID(shared uuid.UUID, content int64) uuid.UUID {
	return event.Derive(event.Event{ID: shared}, fmt.Sprintf("content %x", content), event.Event{}).ID
}

// EncodeHeaders returns headers in the format of inbox_parked: [name, base64 of the value] each, in their order. A name
// that Postgres cannot store as text is empty there and follows the value in base64. A null value is null.
func EncodeHeaders(headers []event.Header) string {
	list := make([][]any, len(headers))
	for i, h := range headers {
		var value any
		if h.Value != nil {
			value = base64.StdEncoding.EncodeToString(h.Value)
		}
		if event.Storable(h.Key) {
			list[i] = []any{h.Key, value}
		} else {
			list[i] = []any{"", value, base64.StdEncoding.EncodeToString([]byte(h.Key))}
		}
	}
	b, _ := json.Marshal(list) // strings and nils cannot fail
	return string(b)
}

// DecodeHeaders parses the result of [EncodeHeaders].
func DecodeHeaders(text string) ([]event.Header, error) {
	var list [][]*string
	if err := json.Unmarshal([]byte(text), &list); err != nil {
		return nil, errors.New("inbox: the headers of a parked event are not in their format")
	}
	headers := make([]event.Header, len(list))
	for i, h := range list {
		if len(h) < 2 || h[0] == nil {
			return nil, errors.New("inbox: a header of a parked event lacks its name or value")
		}
		headers[i].Key = *h[0]
		if h[1] != nil {
			v, err := base64.StdEncoding.DecodeString(*h[1])
			if err != nil {
				return nil, errors.New("inbox: a header of a parked event is not base64")
			}
			headers[i].Value = v
		}
		if len(h) > 2 && h[2] != nil {
			name, err := base64.StdEncoding.DecodeString(*h[2])
			if err != nil {
				return nil, errors.New("inbox: the name of a header of a parked event is not base64")
			}
			headers[i].Key = string(name)
		}
	}
	return headers, nil
}

// Epoch returns the outbox and the incarnation of a ce_epoch.
func Epoch(text string) (outbox uuid.UUID, incarnation int32, ok bool) {
	dot := strings.LastIndexByte(text, '.')
	if dot < 0 {
		return outbox, 0, false
	}
	outbox, err := uuid.Parse(text[:dot])
	n, ierr := strconv.ParseInt(text[dot+1:], 10, 32)
	return outbox, int32(n), err == nil && ierr == nil && outbox != uuid.Nil
}

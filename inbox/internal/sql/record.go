package sql

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"strconv"
	"strings"

	"github.com/google/uuid"

	"github.com/effectonce/effectonce/event"
)

// KeyHash names a key in inbox_parked_key: a Kafka key may be longer than an index row. Lengths stand in front, so that
// no two keys run together. Nil for an event without a key, which is always alone.
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

// EncodeHeaders writes headers as inbox_parked keeps them: [name, base64 of the value] each, in their order. A name
// that is no text of Postgres is empty and stands in base64 behind its value; a null value is null.
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

// DecodeHeaders reads what [EncodeHeaders] wrote.
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

// Epoch is the outbox and the incarnation that a ce_epoch names.
func Epoch(text string) (outbox uuid.UUID, incarnation int32, ok bool) {
	dot := strings.LastIndexByte(text, '.')
	if dot < 0 {
		return outbox, 0, false
	}
	outbox, err := uuid.Parse(text[:dot])
	n, ierr := strconv.ParseInt(text[dot+1:], 10, 32)
	return outbox, int32(n), err == nil && ierr == nil && outbox != uuid.Nil
}

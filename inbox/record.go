package inbox

import (
	"encoding/hex"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/inbox/internal/sql"
)

// record is a row of inbox_parked.
type record struct {
	id        int64
	messageID string
	topic     string
	partition int32
	offset    int64
	millis    int64
	key       []byte
	value     []byte
	headers   string
	kind      string
	attempts  int
	code      string
	content   int64
}

// fromHex reads bytes that a statement has encoded as hex; nil for NULL.
type fromHex struct{ to *[]byte }

// ScanText implements pgtype.TextScanner.
func (f fromHex) ScanText(v pgtype.Text) (err error) {
	if *f.to = nil; v.Valid {
		*f.to, err = hex.DecodeString(v.String)
	}
	return err
}

// event decodes the record as the consumer did, with the id under which it was parked, whatever its headers say.
func (r *record) event() (event.Event, error) {
	headers, err := sql.DecodeHeaders(r.headers)
	if err != nil {
		return event.Event{}, err
	}
	id, err := uuid.Parse(r.messageID)
	if err != nil {
		return event.Event{}, err
	}
	rec := event.Record{
		Topic: r.topic, Partition: r.partition, Offset: r.offset, Time: time.UnixMilli(r.millis), Key: r.key,
		Value: r.value, Headers: headers,
	}
	e := event.Decode(&rec, "")
	e.ID, e.Raw = id, rec.Encode()
	return e, nil
}

// rows holds records to insert, as columns.
type rows struct {
	ids, kinds, topics, types, headers, codes, errors []string
	hashes, tenants, keys, values                     [][]byte
	partitions, attempts                              []int32
	offsets, millis, contents                         []int64
}

// Kinds of parked events.
const (
	kindFailed      = "failed"
	kindBehind      = "behind"
	kindQuarantined = "quarantined"
)

func (r *rows) add(e *event.Event, id uuid.UUID, hash []byte, kind, code, message string, attempts int) {
	rec := e.Record()
	r.ids = append(r.ids, id.String())
	r.kinds = append(r.kinds, kind)
	r.topics = append(r.topics, e.Topic)
	r.types = append(r.types, storable(e.Type, 255))
	r.headers = append(r.headers, sql.EncodeHeaders(rec.Headers))
	r.codes = append(r.codes, storable(code, 255))
	r.errors = append(r.errors, storable(message, 2000))
	r.hashes = append(r.hashes, hash)
	r.tenants = append(r.tenants, []byte(e.Tenant))
	r.keys = append(r.keys, rec.Key)
	r.values = append(r.values, rec.Value)
	r.partitions = append(r.partitions, e.Position.Partition)
	r.attempts = append(r.attempts, int32(attempts))
	r.offsets = append(r.offsets, e.Position.Offset)
	r.millis = append(r.millis, e.Time.UnixMilli())
	r.contents = append(r.contents, sql.Content(e))
}

func (r *rows) args(consumer string) []any {
	return []any{
		consumer, r.ids, r.hashes, r.kinds, r.tenants, r.topics, r.types, r.partitions, r.offsets, r.millis, r.keys,
		r.values, r.headers, r.codes, r.errors, r.attempts, r.contents,
	}
}

// storable makes s fit for a text column of most bytes: foreign types and the errors of effects may hold any bytes.
func storable(s string, most int) string {
	s = strings.ReplaceAll(strings.ToValidUTF8(s, "\uFFFD"), "\x00", "\uFFFD")
	if len(s) <= most {
		return s
	}
	for most > 0 && !utf8.RuneStart(s[most]) {
		most--
	}
	return s[:most]
}

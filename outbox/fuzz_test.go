package outbox_test

import (
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/internal/testenv/pgtest"
	"github.com/effectonce/effectonce/migrations"
	"github.com/effectonce/effectonce/outbox"
)

// kept is what came back of an event.
type kept struct {
	source, tenant, topic, key, typ, contentType, header string
	names                                                int
	payload                                              []byte
}

// FuzzAppend: whatever an event says goes in as data, by a statement and by COPY. It is refused before anything is
// sent, with an EventError, or it comes back as it was: the database never has to say no.
func FuzzAppend(f *testing.F) {
	db := pgtest.New(f, migrations.Outbox)
	f.Add("payments", "k", "T", "source", "tenant", "text/plain", "name", "value", []byte("payload"))
	f.Add("t", `'; drop table outbox_event; --`, `"T"`, `$1`, `{schema}`, `\`, `'`, `$$`, []byte(`\x00'`))
	f.Add("t", "{schema}outbox_event", "$1, $2", "%s", "(select 1)", "E'\\047'", "{schema}", "}{\"a\":1", []byte(nil))
	f.Add("no topic", "\x00", "\xff", "\u2028", "\ufeff", "\ud7ff", "\"", "\\u0000", []byte{0, 0xff})
	f.Add("..", "k\x00", "", "a\tb", "a\nb", "\\N", "ce_id", "\\.", []byte("\\.\n"))
	f.Fuzz(func(t *testing.T, topic, key, typ, source, tenant, contentType, name, value string, payload []byte) {
		e := event.Event{
			ID: event.NewID(), Topic: topic, Key: key, Type: typ, Source: source, Tenant: tenant,
			ContentType: contentType, Headers: map[string]string{name: value}, Payload: payload,
			Time: time.UnixMilli(int64(len(key))),
		}
		want := kept{source, tenant, topic, key, typ, contentType, value, 1, payload}
		for _, n := range []int{1, 60} { // the second takes COPY
			err := pgx.BeginFunc(t.Context(), db.Pool, func(tx pgx.Tx) error {
				events := make([]event.Event, n)
				for i := range events {
					events[i] = e
					if i > 0 {
						events[i].ID = event.NewID()
					}
				}
				if err := outbox.Append(t.Context(), tx, events...); err != nil {
					return err
				}
				var got kept
				err := tx.QueryRow(t.Context(), `select source, tenant, topic, key, type, content_type, headers ->> $2,
					(select count(*) from jsonb_object_keys(headers)), payload from outbox_event
					where message_id = $1`, e.ID.String(), name).
					Scan(&got.source, &got.tenant, &got.topic, &got.key, &got.typ, &got.contentType, &got.header,
						&got.names, &got.payload)
				if err != nil {
					t.Fatalf("reading it: %v", err)
				}
				if string(got.payload) != string(want.payload) || (got.payload == nil) != (want.payload == nil) {
					t.Fatalf("payload %q, want %q", got.payload, want.payload)
				}
				got.payload, want.payload = nil, nil
				if got.source != want.source || got.tenant != want.tenant || got.topic != want.topic ||
					got.key != want.key ||
					got.typ != want.typ || got.contentType != want.contentType || got.header != want.header ||
					got.names != want.names {
					t.Fatalf("got %+v, want %+v", got, want)
				}
				want.payload = payload
				return errRollback
			})
			if _, refused := errors.AsType[*outbox.EventError](err); !refused && !errors.Is(err, errRollback) {
				t.Fatalf("%+v: %v", e, err)
			}
		}
	})
}

var errRollback = errors.New("roll it back")

package outbox_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"pgregory.net/rapid"

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/internal/testenv/pgtest"
	"github.com/effectonce/effectonce/migrations"
	"github.com/effectonce/effectonce/outbox"
)

func many(n int) map[string]string {
	headers := make(map[string]string, n)
	for i := range n {
		headers[fmt.Sprint("h", i)] = "v"
	}
	return headers
}

func TestRefused(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t, migrations.Outbox)
	id := event.NewID()
	for name, c := range map[string]struct {
		field string
		edit  func(e *event.Event)
	}{
		"no topic":             {"Topic", func(e *event.Event) { e.Topic = "" }},
		"topic with a space":   {"Topic", func(e *event.Event) { e.Topic = "a b" }},
		"topic with an umlaut": {"Topic", func(e *event.Event) { e.Topic = "ä" }},
		"topic with a newline": {"Topic", func(e *event.Event) { e.Topic = "a\n" }},
		"topic dot":            {"Topic", func(e *event.Event) { e.Topic = "." }},
		"topic dot dot":        {"Topic", func(e *event.Event) { e.Topic = ".." }},
		"topic too long":       {"Topic", func(e *event.Event) { e.Topic = strings.Repeat("t", 250) }},
		"no type":              {"Type", func(e *event.Event) { e.Type = "" }},
		"type too long":        {"Type", func(e *event.Event) { e.Type = strings.Repeat("t", 2049) }},
		"type with NUL":        {"Type", func(e *event.Event) { e.Type = "a\x00" }},
		"key too long":         {"Key", func(e *event.Event) { e.Key = strings.Repeat("ä", 4096) + "a" }},
		"key not UTF-8":        {"Key", func(e *event.Event) { e.Key = "secret\xff" }},
		"source with NUL":      {"Source", func(e *event.Event) { e.Source = "\x00" }},
		"tenant not UTF-8":     {"Tenant", func(e *event.Event) { e.Tenant = "\xc3" }},
		"content type":         {"ContentType", func(e *event.Event) { e.ContentType = "\xc3" }},
		"too many headers":     {"Headers", func(e *event.Event) { e.Headers = many(101) }},
		"header ce_":           {"Headers", func(e *event.Event) { e.Headers = map[string]string{"ce_x": "v"} }},
		"header content-type": {"Headers", func(e *event.Event) {
			e.Headers = map[string]string{"content-type": "v"}
		}},
		"header no name": {"Headers", func(e *event.Event) { e.Headers = map[string]string{"": "v"} }},
		"header long name": {"Headers", func(e *event.Event) {
			e.Headers = map[string]string{strings.Repeat("h", 256): "v"}
		}},
		"header long value": {"Headers", func(e *event.Event) {
			e.Headers = map[string]string{"h": strings.Repeat("secret", 2000)}
		}},
		"header NUL":        {"Headers", func(e *event.Event) { e.Headers = map[string]string{"h": "secret\x00"} }},
		"header name UTF-8": {"Headers", func(e *event.Event) { e.Headers = map[string]string{"\xff": "v"} }},
		"payload too long": {"Payload", func(e *event.Event) {
			e.Payload = []byte(strings.Repeat("secret", 1<<18))
		}},
		"max id":   {"ID", func(e *event.Event) { e.ID = uuid.Max }},
		"id twice": {"ID", func(e *event.Event) { e.ID = id }},
		"year 0":   {"Time", func(e *event.Event) { e.Time = time.Date(0, 1, 1, 0, 0, 0, 0, time.UTC) }},
		"year 10000": {"Time", func(e *event.Event) {
			e.Time = time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC)
		}},
		"year 10000 in UTC": {"Time", func(e *event.Event) {
			e.Time = time.Date(9999, 12, 31, 23, 0, 0, 0, time.FixedZone("", -7200))
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			events := []event.Event{
				{ID: id, Topic: "t", Type: "T"},
				{Topic: "t", Type: "T"},
				{Topic: "t", Key: "k", Type: "T"},
			}
			c.edit(&events[2])
			inTx(t, db.Pool, func(tx pgx.Tx) error {
				err := outbox.Append(t.Context(), tx, events...)
				var refused *outbox.EventError
				if !errors.As(err, &refused) || refused.Index != 2 || refused.Field != c.field {
					t.Fatalf("error %v, want one of event 2, field %s", err, c.field)
				}
				if s := err.Error(); strings.Contains(s, "secret") || !strings.Contains(s, "event 2: "+c.field) ||
					len(s) > 300 {
					t.Errorf("error text %q", s)
				}
				// The transaction goes on, and nothing of the batch is in it.
				return outbox.Append(t.Context(), tx)
			})
		})
	}
}

func TestRefusedBatchWritesNothing(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t, migrations.Outbox)
	for _, n := range []int{2, 20, outbox.CopyFrom + 1} {
		events := awkward(n)
		events[n-1].Topic = ""
		inTx(t, db.Pool, func(tx pgx.Tx) error {
			var refused *outbox.EventError
			if err := outbox.Append(t.Context(), tx, events...); !errors.As(err, &refused) || refused.Index != n-1 {
				t.Fatalf("error %v", err)
			}
			return nil
		})
	}
	equal(t, stored(t, db), nil)
}

func TestWrongAppender(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t, migrations.Outbox)
	e := event.Event{Topic: "t", Type: "T"}
	inTx(t, db.Pool, func(tx pgx.Tx) error {
		for _, a := range []outbox.Appender{{Schema: "No Such"}, {Source: "\xff"}} {
			if err := a.Append(t.Context(), tx, e); err == nil || !strings.Contains(err.Error(), "outbox: Appender.") {
				t.Errorf("%+v: error %v", a, err)
			}
		}
		return nil
	})
	if err := outbox.Append(t.Context(), nil, e); err == nil {
		t.Error("a nil pgx.Tx was accepted")
	}
	if err := (outbox.Appender{}).AppendSQL(t.Context(), nil, e); err == nil {
		t.Error("a nil SQLTx was accepted")
	}
	err := pgx.BeginFunc(t.Context(), db.Pool, func(tx pgx.Tx) error {
		return outbox.Appender{Schema: "no_such"}.Append(t.Context(), tx, e)
	})
	if err == nil || !strings.Contains(err.Error(), "run the outbox migrations") {
		t.Errorf("a missing table: %v", err)
	}
}

// recordBatch is what a Kafka record batch of one record takes, uncompressed.
func recordBatch(e event.Event) int {
	varint := func(n int) int {
		size := 1
		for n <<= 1; n >= 0x80; n >>= 7 {
			size++
		}
		return size
	}
	e.Position = event.Position{Lane: 31, Epoch: uuid.NewString() + ".2147483647", Seq: 1<<63 - 1}
	// attributes, deltas of a single record, and its four lengths
	n := 1 + 10 + 1 + varint(len(e.Key)) + len(e.Key) + varint(len(e.Payload)) + len(e.Payload) + 2
	for _, h := range event.AppendHeaders(nil, &e) {
		n += varint(len(h.Key)) + len(h.Key) + varint(len(h.Value)) + len(h.Value)
	}
	return 61 + varint(n) + n
}

func TestLargestPayloadFitsIntoARecord(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t, migrations.Outbox)
	long := strings.Repeat("x", 2048)
	headers := make(map[string]string)
	for i := range 100 {
		headers[fmt.Sprintf("%0255d", i)] = strings.Repeat("v", 8192)
	}
	now := time.Date(2026, 1, 2, 3, 4, 5, 123456000, time.UTC)
	for name, e := range map[string]event.Event{
		"least": {ID: event.NewID(), Topic: "t", Type: "T"},
		"most": {
			ID: event.NewID(), Topic: "t", Type: long, Source: long, Tenant: long, ContentType: long, Time: now,
			Key: strings.Repeat("k", 8192), Headers: headers,
		},
		"many small headers": {ID: event.NewID(), Topic: "t", Type: "T", Time: now, Headers: many(100)},
	} {
		e.Payload = make([]byte, 1<<20)
		tx, err := db.Pool.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		var refused *outbox.EventError
		if err := outbox.Append(t.Context(), tx, e); !errors.As(err, &refused) || refused.Field != "Payload" {
			t.Fatalf("%s: %v", name, err)
		}
		var got, limit int
		if _, err := fmt.Sscanf(refused.Reason, "has %d bytes: at most %d are allowed", &got, &limit); err != nil {
			t.Fatal(refused.Reason, err)
		}
		e.Payload = e.Payload[:limit]
		if err := outbox.Append(t.Context(), tx, e); err != nil {
			t.Fatalf("%s: at the limit: %v", name, err)
		}
		// 60 bytes are left for a header of the relay's, and 1 MiB is 12 less than a broker's default.
		if n := recordBatch(e); n > 1<<20-60 {
			t.Errorf("%s: a payload of %d makes a record batch of %d bytes", name, limit, n)
		}
		if err := (outbox.Appender{MaxPayload: limit - 1}).Append(t.Context(), tx, e); !errors.As(err, &refused) {
			t.Errorf("%s: over MaxPayload: %v", name, err)
		}
		e.Payload = make([]byte, 2<<20)
		for _, a := range []outbox.Appender{{MaxPayload: -1}, {MaxPayload: 2 << 20}} {
			e.ID = event.NewID()
			if err := a.Append(t.Context(), tx, e); err != nil {
				t.Errorf("%s: MaxPayload %d: %v", name, a.MaxPayload, err)
			}
		}
		if err := tx.Rollback(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}

// What Append accepts the table must accept, or an event would abort the caller's transaction; and what Append refuses
// for a reason that the table knows, the table refuses too, so that plain SQL cannot get in what Append keeps out.
func TestAppendAndTableAgree(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t, migrations.Outbox)
	conn := db.Connect(t)
	text := rapid.OneOf(rapid.String(), rapid.StringMatching(`[a-zA-Z0-9._-]{0,5}`), rapid.Just("."), rapid.Just(".."),
		rapid.Just(""),
		rapid.Just("a\n"), rapid.StringOf(rapid.RuneFrom([]rune("a.\n\"\\,{}'ä\u2028\uFFFE🎈\x01"))),
		rapid.Map(rapid.IntRange(240, 260), func(n int) string { return strings.Repeat("t", n) }))
	key := rapid.OneOf(text, rapid.Map(rapid.IntRange(8185, 8200),
		func(n int) string { return strings.Repeat("k", n) }))
	name := rapid.OneOf(text, rapid.SampledFrom([]string{
		"ce_id", "ce_", "ce-", "CE_id", "content-type", "Content-Type",
		"a.b", "$", "*",
	}))
	rapid.Check(t, func(r *rapid.T) {
		e := event.Event{
			Topic:   rapid.OneOf(text, rapid.Just("t")).Draw(r, "topic"),
			Type:    rapid.OneOf(text, rapid.Just("T")).Draw(r, "type"),
			Key:     key.Draw(r, "key"),
			Source:  text.Draw(r, "source"),
			Headers: rapid.MapOfN(name, text, 0, 3).Draw(r, "headers"),
			Payload: rapid.SliceOfN(rapid.Byte(), 0, 5).Draw(r, "payload"),
			Time:    time.UnixMicro(rapid.Int64Range(-1<<58, 1<<58).Draw(r, "time")),
		}
		n := rapid.SampledFrom([]int{1, 2, outbox.CopyFrom}).Draw(r, "n")
		tx, err := conn.Begin(t.Context())
		if err != nil {
			r.Fatal(err)
		}
		defer func() { _ = tx.Rollback(t.Context()) }()
		events := make([]event.Event, n)
		for i := range events {
			events[i] = e
		}
		err = outbox.Append(t.Context(), tx, events...)
		var refused *outbox.EventError
		if err != nil && !errors.As(err, &refused) {
			r.Fatalf("Append accepted what the table refuses: %v", err)
		}
		if refused == nil || !tableKnows(refused, e) {
			return
		}
		headers, err := json.Marshal(e.Headers)
		if err != nil {
			r.Fatal(err)
		}
		if _, err := tx.Exec(t.Context(), "insert into outbox_event (topic, key, type, headers) values ($1, $2, "+
			"$3, $4)",
			e.Topic, e.Key, e.Type, string(headers)); err == nil {
			r.Fatalf("the table accepts what Append refuses: %v", refused)
		}
	})
}

// tableKnows says whether the refusal has a check constraint of its own.
func tableKnows(refused *outbox.EventError, e event.Event) bool {
	switch refused.Field {
	case "Topic", "Key":
		return true
	case "Type":
		return e.Type == ""
	case "Headers":
		return strings.Contains(refused.Reason, "reserved")
	}
	return false
}

package endtoend

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"reflect"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"github.com/effectonce/effectonce/admin"
	"github.com/effectonce/effectonce/consumer"
	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/inbox"
	"github.com/effectonce/effectonce/inbox/operator"
	"github.com/effectonce/effectonce/internal/testenv/kafkatest"
	"github.com/effectonce/effectonce/internal/testenv/pgtest"
	"github.com/effectonce/effectonce/migrations"
	"github.com/effectonce/effectonce/outcome"
)

// TestP9_6_ForeignBytes: a parked event keeps its record byte for byte, although text and jsonb cannot hold the key
// 0xff or a header with U+0000. The operator sees these bytes, and the released event is equal to the failed one.
func TestP9_6_ForeignBytes(t *testing.T) {
	t.Parallel()
	kafkatest.RequireReal(t)
	db, topic := pgtest.New(t, migrations.Inbox), kafkatest.Topic(t, 1)
	want := []kafkatest.Record{
		{Key: []byte{0xff, 0, 'k'}, Value: []byte{0, 0xfe}, Headers: []kafkatest.Header{
			{Key: "h", Value: []byte{0}},
			{Key: "\xff\x00", Value: []byte("x")},
			{Key: "h", Value: []byte("twice")},
			{Key: "none", Value: nil},
			{Key: "empty", Value: []byte{}},
			{Key: "ce_tenant", Value: []byte{0xff}},
			{Key: "ce_type", Value: []byte("T\x00")},
		}},
		{Key: nil, Value: nil},
		{Key: []byte{}, Value: []byte{}},
	}
	kafkatest.Produce(t, topic, want...)
	var mu sync.Mutex
	var failed, applied []event.Event
	mended := false
	in, err := inbox.New(db.Pool, "foreign", inbox.Config{Schema: db.Schema, ReleaseEvery: 5 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	h := in.Each(func(_ context.Context, _ pgx.Tx, e event.Event) error {
		mu.Lock()
		defer mu.Unlock()
		e.Raw = nil
		if mended {
			applied = append(applied, e)
			return nil
		}
		failed = append(failed, e)
		return outcome.Terminal("foreign\x00\xff", errors.New("an error with \x00 and \xff"))
	})
	c, err := consumer.New(h, kafkatest.Brokers(t), []string{topic},
		consumer.Config{Group: topic, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return c.Run(ctx) })
	g.Go(func() error { return in.Run(ctx) })
	t.Cleanup(func() {
		cancel()
		if err := g.Wait(); err != nil {
			t.Error(err)
		}
	})
	pgtest.AwaitSQL(t, db, "select count(*) = 3 from inbox_parked")
	o, err := operator.New(db.Pool, db.Schema, "foreign", "ada")
	if err != nil {
		t.Fatal(err)
	}
	list, err := o.Parked(t.Context(), admin.ParkedFilter{})
	if err != nil || len(list) != 3 {
		t.Fatal(list, err)
	}
	for i, p := range list {
		whole, err := o.ParkedEvent(t.Context(), p.ID)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(whole.Payload, want[i].Value) || (whole.Payload == nil) != (want[i].Value == nil) ||
			whole.Key != string(want[i].Key) {
			t.Errorf("record %d: key %q, payload %v", i, whole.Key, whole.Payload)
		}
		var headers []kafkatest.Header
		for _, x := range whole.Headers {
			headers = append(headers, kafkatest.Header(x))
		}
		if !reflect.DeepEqual(headers, want[i].Headers) {
			t.Errorf("record %d: headers %q, want %q", i, headers, want[i].Headers)
		}
		null := pgtest.One[bool](t, db, "select record_key is null from inbox_parked where id = $1", p.ID)
		if null != (want[i].Key == nil) || p.Alone != (len(want[i].Key) == 0) {
			t.Errorf("record %d: its key is null: %v; alone: %v", i, null, p.Alone)
		}
	}
	mu.Lock()
	mended = true
	mu.Unlock()
	if _, err := o.ReleaseKey(t.Context(), "\xff", topic, "\xff\x00k", admin.Seen{}, "mended"); err != nil {
		t.Fatal(err)
	}
	for _, p := range list[1:] {
		if err := o.ReleaseEvent(t.Context(), p.ID, "mended"); err != nil {
			t.Fatal(err)
		}
	}
	pgtest.AwaitSQL(t, db, "select not exists (select from inbox_parked) and not exists (select from inbox_parked_key)")
	mu.Lock()
	defer mu.Unlock()
	byID := map[[16]byte]event.Event{}
	for _, e := range failed {
		byID[e.ID] = e
	}
	if len(applied) != 3 {
		t.Fatalf("%d applied", len(applied))
	}
	for _, e := range applied {
		was := byID[e.ID]
		if !e.Time.Equal(was.Time) {
			t.Errorf("time %v, was %v", e.Time, was.Time)
		}
		e.Time, was.Time = time.Time{}, time.Time{}
		if !reflect.DeepEqual(e, was) {
			t.Errorf("released\n%+v, failed\n%+v", e, was)
		}
	}
}

package watermill_test

import (
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"
	"pgregory.net/rapid"

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/inbox"
	"github.com/effectonce/effectonce/internal/testenv/pgtest"
	"github.com/effectonce/effectonce/migrations"
	"github.com/effectonce/effectonce/outbox"
	"github.com/effectonce/effectonce/watermill"
)

// eventFields generates the metadata that become fields of the event.
func eventFields() map[string]*rapid.Generator[string] {
	text := rapid.StringMatching(`[a-zA-Zé ]{1,8}`)
	return map[string]*rapid.Generator[string]{
		event.HeaderType: text, event.HeaderSource: text, event.HeaderTenant: text, event.HeaderContentType: text,
		event.HeaderTime: rapid.Map(rapid.Int64Range(0, 1<<32),
			func(s int64) string { return time.Unix(s, 0).UTC().Format(time.RFC3339Nano) }),
	}
}

func drawMessage(t *rapid.T) *message.Message {
	var payload []byte
	if rapid.Bool().Draw(t, "has a payload") {
		payload = append([]byte{}, rapid.SliceOfN(rapid.Byte(), 0, 8).Draw(t, "payload")...)
	}
	id := rapid.OneOf(rapid.Just(uuid.NewString()), rapid.Just(event.NewID().String()),
		rapid.StringMatching(`[0-9A-Z]{1,30}`), rapid.Just(uuid.Nil.String())).Draw(t, "uuid")
	m := message.NewMessage(id, payload)
	m.Metadata = rapid.MapOfN(rapid.StringMatching(`[a-zA-Z_.-]{1,12}`), rapid.String(), 0, 5).Draw(t, "metadata")
	maps.DeleteFunc(m.Metadata, func(name, value string) bool {
		return event.ReservedHeader(name) || !event.Storable(value)
	})
	for name, g := range eventFields() {
		if rapid.Bool().Draw(t, "has "+name) {
			m.Metadata[name] = g.Draw(t, name)
		}
	}
	if rapid.Bool().Draw(t, "has a key") {
		m.Metadata[watermill.MetadataKey] = rapid.StringMatching(`[a-z]{1,4}`).Draw(t, "key")
	}
	return m
}

// TestRoundTrip: a message is the same after the outbox, the relay, a broker, the inbox and a release, apart from the
// relay's headers.
func TestRoundTrip(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t, migrations.Inbox)
	in := newInbox(t, db, inbox.Config{}, watermill.InboxConfig{
		Origin: func(*message.Message) (watermill.Origin, bool) {
			return watermill.Origin{Partition: 5, Offset: 6, Time: time.UnixMilli(7)}, true
		},
	})
	noOrigin := newInbox(t, db, inbox.Config{}, watermill.InboxConfig{})
	rapid.Check(t, func(t *rapid.T) {
		want := drawMessage(t)
		e, err := watermill.ToEvent("t", want, watermill.OutboxConfig{})
		if err != nil {
			t.Fatal(err)
		}
		if want.UUID != "" && e.ID == uuid.Nil || e.Key != want.Metadata[watermill.MetadataKey] ||
			(e.Payload == nil) != (want.Payload == nil) {
			t.Fatalf("event %+v of %+v", e, want)
		}
		e.Position = event.Position{Lane: 3, Epoch: "x.1", Seq: 7}
		sent := watermill.FromEvent(e)
		requireSame(t, "sent", sent, want)
		got, err := watermill.Decode(in, "t", sent)
		if err != nil {
			t.Fatal(err)
		}
		if got.ID != e.ID || got.Key != e.Key || got.Type != e.Type || got.Tenant != e.Tenant ||
			got.ContentType != e.ContentType || !got.Time.Equal(e.Time) && !e.Time.IsZero() ||
			got.Position != (event.Position{
				Lane: 3, Epoch: "x.1", Seq: 7, Partition: 5, Offset: 6,
				Timestamp: time.UnixMilli(7),
			}) {
			t.Fatalf("decoded %+v, want %+v", got, e)
		}
		// Numbers rise only within a partition, which is unknown here.
		if got, err := watermill.Decode(noOrigin, "t", sent); err != nil || got.ID != e.ID ||
			got.Position.Epoch != "" || got.Position.Seq != 0 || got.Position.Lane != -1 {
			t.Fatalf("decoded %+v, %v", got, err)
		}
		requireSame(t, "released", watermill.ReleasedMessage(got), want)

		// A message that no relay sent.
		if got, err = watermill.Decode(in, "t", want); err != nil {
			t.Fatal(err)
		}
		if again := watermill.ReleasedMessage(got); !again.Equals(want) ||
			(again.Payload == nil) != (want.Payload == nil) {
			t.Fatalf("got %+v, want %+v", again, want)
		}
		if _, v7 := event.IDTime(e.ID); v7 && got.ID != e.ID {
			t.Fatalf("id %s, want %s", got.ID, e.ID)
		}
	})
}

func requireSame(t *rapid.T, stage string, got, want *message.Message) {
	if got.UUID != want.UUID || string(got.Payload) != string(want.Payload) ||
		(got.Payload == nil) != (want.Payload == nil) {
		t.Fatalf("%s: %+v, want %+v", stage, got, want)
	}
	for name, value := range want.Metadata {
		if has, ok := got.Metadata[name]; !ok || has != value {
			t.Fatalf("%s: metadata %q is %q, want %q", stage, name, has, value)
		}
	}
	for name := range got.Metadata {
		if _, ok := want.Metadata[name]; !ok && !event.ReservedHeader(name) {
			t.Fatalf("%s: metadata %q was not published", stage, name)
		}
	}
}

func TestFieldsOfAnEvent(t *testing.T) {
	t.Parallel()
	id := event.NewID()
	due := time.Now().Add(time.Hour).UTC().Truncate(time.Second)
	for name, c := range map[string]struct {
		uuid     string
		metadata message.Metadata
		cfg      watermill.OutboxConfig
		ok       func(e event.Event) bool
	}{
		"defaults": {"", nil, watermill.OutboxConfig{}, func(e event.Event) bool {
			return e.ID == uuid.Nil &&
				e.Type == watermill.DefaultType && e.Key == ""
		}},
		"a UUID": {
			id.String(), nil,
			watermill.OutboxConfig{},
			func(e event.Event) bool { return e.ID == id },
		},
		"not a UUID": {
			"01HQ", nil,
			watermill.OutboxConfig{},
			func(e event.Event) bool { return e.ID == event.ForeignID("t", "01HQ") },
		},
		"not a UUID, a source": {
			"01HQ", nil,
			watermill.OutboxConfig{Appender: outbox.Appender{Source: "shop"}},
			func(e event.Event) bool { return e.ID == event.ForeignID("shop", "01HQ") },
		},
		"cqrs": {
			"",
			message.Metadata{"name": "OrderPlaced"},
			watermill.OutboxConfig{Type: "T"},
			func(e event.Event) bool { return e.Type == "OrderPlaced" && e.Headers["name"] != "" },
		},
		"type from config": {
			"", nil,
			watermill.OutboxConfig{Type: "T"},
			func(e event.Event) bool { return e.Type == "T" },
		},
		"type": {
			"",
			message.Metadata{"ce_type": "A", "name": "B"},
			watermill.OutboxConfig{Type: "C"},
			func(e event.Event) bool { return e.Type == "A" },
		},
		"key": {
			"",
			message.Metadata{"partition_key": "k"},
			watermill.OutboxConfig{},
			func(e event.Event) bool { return e.Key == "k" },
		},
		"delay": {
			"",
			message.Metadata{"_watermill_delayed_until": due.Format(time.RFC3339)},
			watermill.OutboxConfig{},
			func(e event.Event) bool { return e.NotBefore.Equal(due) },
		},
		"UUID as metadata": {
			id.String(),
			message.Metadata{watermill.MetadataUUID: id.String()},
			watermill.OutboxConfig{},
			func(e event.Event) bool { return e.ID == id },
		},
		"key function": {
			"",
			message.Metadata{"customer": "c"},
			watermill.OutboxConfig{Key: func(topic string, m *message.Message) (string, error) {
				return topic + m.Metadata.Get("customer"), nil
			}},
			func(e event.Event) bool { return e.Key == "tc" },
		},
	} {
		m := message.NewMessage(c.uuid, nil)
		m.Metadata = c.metadata
		if e, err := watermill.ToEvent("t", m, c.cfg); err != nil || !c.ok(e) {
			t.Errorf("%s: %+v, %v", name, e, err)
		}
	}
}

// TestRefusedMetadata: the error for metadata that cannot be a header, or is reserved, has its name and not its value.
func TestRefusedMetadata(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t, migrations.Outbox)
	for name, metadata := range map[string]message.Metadata{
		"ce_id":                    {"ce_id": "secret"},
		"ce_laneseq":               {"ce_laneseq": "secret"},
		"ce_mine":                  {"ce_mine": "secret"},
		"effectonce_replay":        {"effectonce_replay": "secret"},
		"ce_time":                  {"ce_time": "secret"},
		"_watermill_delayed_until": {"_watermill_delayed_until": "secret"},
		watermill.MetadataUUID:     {watermill.MetadataUUID: "secret"},
		"no\\x00name":              {"no\x00name": "secret"},
		"name has 0 bytes":         {"": "secret"},
		"name has 300 bytes":       {strings.Repeat("n", 300): "secret"},
		"value has":                {"long": strings.Repeat("secret", 2000)},
		"must be valid UTF-8":      {"h": "secret\xff"},
	} {
		tx, err := db.Pool.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		out, err := watermill.NewOutbox(tx, watermill.OutboxConfig{})
		if err != nil {
			t.Fatal(err)
		}
		good, bad := message.NewMessage(uuid.NewString(), nil), message.NewMessage(uuid.NewString(), nil)
		bad.Metadata = metadata
		err = out.Publish("t", good, bad)
		if err == nil || !strings.Contains(err.Error(), name) || strings.Contains(err.Error(), "secret") ||
			!strings.Contains(err.Error(), " 1") {
			t.Errorf("%s: %v", name, err)
		}
		// No statement was sent: the transaction is still usable.
		var n int
		if err := tx.QueryRow(t.Context(), "select count(*) from outbox_event").Scan(&n); err != nil || n != 0 {
			t.Errorf("%s: %d events, %v", name, n, err)
		}
		if err := tx.Rollback(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}

func newInbox(t testing.TB, db *pgtest.DB, cfg inbox.Config, own watermill.InboxConfig) *watermill.Inbox {
	t.Helper()
	_, w := newInboxes(t, db, "test", cfg, own)
	return w
}

// newInboxes makes an inbox with few days, because making one takes time.
func newInboxes(t testing.TB, db *pgtest.DB, consumer string, cfg inbox.Config, own watermill.InboxConfig) (
	*inbox.Inbox, *watermill.Inbox,
) {
	t.Helper()
	cfg.Schema, cfg.Window, cfg.AllowShortWindow, cfg.DaysAhead = db.Schema, 24*time.Hour, true, 1
	cfg.Backoff, cfg.ReleaseEvery = time.Millisecond, 5*time.Millisecond
	in, err := inbox.New(db.Pool, consumer, cfg)
	if err != nil {
		t.Fatal(err)
	}
	w, err := watermill.NewInbox(in, own)
	if err != nil {
		t.Fatal(err)
	}
	return in, w
}

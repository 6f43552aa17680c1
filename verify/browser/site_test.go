package browser

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/idempotency"
	"github.com/effectonce/effectonce/idempotency/guard"
	"github.com/effectonce/effectonce/idempotency/pgstore"
	"github.com/effectonce/effectonce/idempotency/recovery"
	"github.com/effectonce/effectonce/inbox"
	"github.com/effectonce/effectonce/internal/testenv/pgtest"
	"github.com/effectonce/effectonce/migrations"
	"github.com/effectonce/effectonce/outboxtest"
	"github.com/effectonce/effectonce/outcome"
	"github.com/effectonce/effectonce/ui"
)

// prefix is where the pages of these tests stand.
const prefix = "/ops/pages"

// site is a server of pages.
type site struct {
	url  string
	down atomic.Bool // it breaks off every request
	also *site       // whose pages a tab of this one may ask for as well; nil: none
}

// byHeader believes what a tab says of itself.
func byHeader(r *http.Request) (ui.Identity, error) {
	level, err := ui.ParseLevel(r.Header.Get("Test-Level"))
	return ui.Identity{Name: r.Header.Get("Test-Name"), Level: level}, err
}

func serve(t *testing.T, cfg ui.Config, databases ...ui.Database) *site {
	t.Helper()
	cfg.Authorize, cfg.Prefix = byHeader, prefix
	if cfg.Refresh == 0 {
		cfg.Refresh = time.Nanosecond
	}
	if cfg.Timeout == 0 {
		cfg.Timeout = 30 * time.Second // this machine may be slow
	}
	h, err := ui.New(databases, cfg)
	if err != nil {
		t.Fatal(err)
	}
	s := &site{}
	mux := http.NewServeMux()
	mux.Handle(prefix+"/", h)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if s.down.Load() {
			panic(http.ErrAbortHandler)
		}
		mux.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	s.url = server.URL + prefix
	return s
}

// has tells whether an address is one of this site's.
func (s *site) has(url string) bool {
	return strings.HasPrefix(url, s.url+"/") || s.also != nil && s.also.has(url)
}

// of is a database of a test under a name.
func of(name string, db *pgtest.DB) ui.Database {
	return ui.Database{Name: name, Pool: db.Pool, Schema: db.Schema, Flags: []string{"--outbox=" + name}}
}

func outboxDB(t *testing.T) *pgtest.DB {
	t.Helper()
	return pgtest.New(t, migrations.Outbox)
}

// refusal is what Kafka says of what is parked here.
const refusal = "Message Size Too Large: the server has a configurable maximum message size"

// park puts an event aside as a relay does when Kafka refuses it, and returns its id. Without a key it is alone.
func park(t *testing.T, db *pgtest.DB, key string, payload any) (id int64) {
	t.Helper()
	if text, ok := payload.(string); ok {
		payload = []byte(text) // a text would be read as an escaped one
	}
	id = pgtest.One[int64](t, db, `insert into outbox_parked (lane, id, alone, maybe_published, attempts, reason, code,
			message_id, source, tenant, topic, key, type, content_type, headers, payload, created_at)
		values (7, nextval('outbox_event_id_seq'), $1 = '', false, 1, $3, 'MESSAGE_TOO_LARGE',
			gen_random_uuid(), 'payments-api', '', 'payments', $1, 'PaymentAccepted', 'application/json',
			'{"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}', $2, now()) returning id`,
		key, payload, refusal)
	if key != "" {
		db.Exec(t, `insert into outbox_parked_key (lane, tenant, topic, key, reason, code)
			values (7, '', 'payments', $1, $2, 'MESSAGE_TOO_LARGE') on conflict do nothing`, key, refusal)
	}
	return id
}

// outboxInTrouble is an outbox with some of everything that waits for a person.
func outboxInTrouble(t *testing.T) *pgtest.DB {
	t.Helper()
	db := outboxDB(t)
	const three, one, other = "account-1042", "account-7", "account-93"
	for _, key := range []string{"", "", "", three, three, three, one, other} {
		park(t, db, key, `{"payment": "p-20931", "amount": {"value": "49.90", "currency": "EUR"}, "account": "1042"}`)
	}
	for _, sql := range []string{
		`insert into outbox_topic (topic, partitions) values ('payments', 12), ('refunds', 6), ('invoices', 3)`,
		`insert into outbox_paused_topic (topic, paused_by, reason)
			values ('refunds', 'ann', 'their consumer books twice'), ('invoices', 'bob', 'the topic is being moved')`,
		`insert into outbox_held (lane, id, topic, partition, seq, sent, message_id, source, tenant, key, type,
				content_type, created_at)
			select 3, nextval('outbox_event_id_seq'), case when g > 3 then 'refunds' else 'payments' end, 1, g, false,
				gen_random_uuid(), '', '', 'account-' || g, 'RefundAccepted', 'application/json', now()
			from generate_series(1, 20) g`,
		`insert into outbox_event (topic, key, type, payload, created_at)
			select 'payments', 'account-' || g, 'PaymentAccepted', '{}', now() - interval '40 s'
			from generate_series(1, 212) g`,
		`insert into outbox_scheduled (due, topic, key, type, payload)
			select now() + g * interval '1 h', 'reminders', 'invoice-' || g, 'ReminderDue', '{}'
			from generate_series(-1, 3) g`,
		`insert into outbox_archive (epoch, lane, seq, id, message_id, source, tenant, topic, key, type, content_type,
				payload, created_at)
			select '1', g % 32, g, g, gen_random_uuid(), '', '', 'payments', 'account-' || g, 'PaymentAccepted',
				'application/json', '{}', now() from generate_series(1, 400) g`,
		`insert into relay_member (owner, name, seen, lease_until) values
			('0190a3a0-0000-7000-8000-000000000001', 'relay-0 pid 7', now() + interval '1 h', now() + interval '1 h'),
			('0190a3a0-0000-7000-8000-000000000002', 'relay-1 pid 7', now() + interval '1 h', now() + interval '1 h')`,
		`update outbox_meta set kafka_cluster = 'the-old-one'`,
		`update outbox_lane set fence = 1, lease_until = now() + interval '1 h',
			owner = ('0190a3a0-0000-7000-8000-00000000000' || 1 + lane % 2)::uuid`,
	} {
		db.Exec(t, sql)
	}
	return db
}

// inboxInTrouble is an inbox with some of everything that waits for a person.
func inboxInTrouble(t *testing.T) *pgtest.DB {
	t.Helper()
	db := pgtest.New(t, migrations.Inbox)
	in, err := inbox.New(db.Pool, "ledger", inbox.Config{Schema: db.Schema, MaxAttempts: 1})
	if err != nil {
		t.Fatal(err)
	}
	if err := in.Maintain(t.Context()); err != nil {
		t.Fatal(err)
	}
	var events []event.Event
	for _, key := range []string{"account-1042", "account-1042", "account-7", "account-93"} {
		events = append(events, event.Event{
			Topic: "payments", Key: key, Type: "PaymentAccepted", Payload: []byte(`{"payment": "p-20931"}`),
			ID: event.NewID(),
		})
	}
	_, err = outboxtest.Deliver(t.Context(), t, in.Each(func(context.Context, pgx.Tx, event.Event) error {
		return outcome.Terminal("NO_ACCOUNT", errors.New("the ledger has no such account"))
	}), events...)
	if err != nil {
		t.Fatal(err)
	}
	db.Exec(t, `insert into inbox_parked (consumer_name, message_id, kind, topic, type, record_partition, record_offset,
			record_millis, record_value, code, reason)
		select 'ledger', gen_random_uuid(), 'quarantined', 'payments', 'PaymentAccepted', 3, g, 1763900000000, '{}',
			'TOO_OLD', 'older than the window of 30 days' from generate_series(1, 3) g`)
	db.Exec(t, `insert into inbox_progress (consumer_name, topic, partition, from_offset, to_offset, attempts, halted_at,
			halted_code, halted_reason, effect_at)
		values ('ledger', 'payments', 3, 5127, 5131, 5, now(), 'POISON', 'its process died at this event five times',
				now() - interval '9 min'),
			('ledger', 'payments', 4, 218, 230, 0, now(), 'RESIZED', 'the topic has 13 partitions, not 12', now()),
			('ledger', 'payments', 5, 7031, 7031, 0, null, '', '', now() - interval '2 s')`)
	return db
}

// numbering is one of an outbox's.
const numbering = "5b1f0a9e-0c6d-4f57-8d3a-0f1f6f1a2b3c.2"

// consumersInTrouble are some that go by numbers, by offsets and by ids, and have halted, the last one an hour ago.
func consumersInTrouble(t *testing.T, db *pgtest.DB) {
	t.Helper()
	for _, c := range [][]string{
		{"numbers", "watermark", "new_numbering", "its numbering " + numbering + " is newer"},
		{"offsets", "offset", "offsets_went_back", "the topic was made again"},
		{"books", "id", "", ""},
	} {
		db.Exec(t, `insert into inbox_consumer (consumer_name, floor, window_days, dedup) values ($1, now(), 14, $2)`,
			c[0], c[1])
		db.Exec(t, `insert into inbox_progress (consumer_name, topic, partition, from_offset, to_offset, halted_at,
				halted_code, halted_reason, updated_at)
			values ($1, 'payments', 3, 41, 50, nullif(now(), case $2 when '' then now() end), $2, $3,
				now() - interval '1 hour')`,
			c[0], c[2], c[3])
	}
	db.Exec(t, `insert into inbox_watermark (consumer_name, topic, partition, outbox_id, incarnation, version, lanes,
			seqs, latest)
		values ('offsets', 'payments', 3, '00000000-0000-0000-0000-000000000000', 0, 1, '{0}', '{40}', 0)`)
	// Several, for resuming and skipping take some.
	db.Exec(t, `insert into inbox_progress (consumer_name, topic, partition, from_offset, to_offset, halted_at, halted_code,
			halted_reason, updated_at)
		select consumer_name, topic, p, from_offset, to_offset, halted_at, halted_code, halted_reason, updated_at
		from inbox_progress, generate_series(4, 9) p where consumer_name = 'numbers'`)
}

// keysInTrouble are operations that recovery gave up, beside an inbox.
func keysInTrouble(t *testing.T) *pgtest.DB {
	t.Helper()
	db := pgtest.New(t, migrations.Idempotency, migrations.Inbox)
	consumersInTrouble(t, db)
	store, err := pgstore.New(db.Pool, pgstore.Config{Schema: db.Schema})
	if err != nil {
		t.Fatal(err)
	}
	g, err := guard.New(store, guard.Config{RecoverAfter: -1})
	if err != nil {
		t.Fatal(err)
	}
	for _, value := range []string{"order-51", "order-52", "order-53", "order-54"} {
		_, err := g.Run(t.Context(), idempotency.Request{
			Key:         idempotency.Key{Tenant: "acme", Operation: "payment.create", Value: value},
			Fingerprint: idempotency.Fingerprint{Version: 1}, Input: []byte("{}"),
		}, func(ctx context.Context, op *guard.Op) (idempotency.Result, error) {
			_, err := op.CallAs(ctx, "charge", "bank-"+value, func(context.Context, guard.Call) ([]byte, error) {
				return nil, errors.New("no answer")
			})
			return idempotency.Result{}, err
		})
		if !errors.Is(err, idempotency.ErrUnknown) {
			t.Fatal(err)
		}
	}
	handlers := map[string]recovery.Handler{"payment.create": {}}
	w, err := recovery.New(store, handlers, recovery.Config{Grace: -1, Parallel: 20})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Once(t.Context()); err != nil {
		t.Fatal(err)
	}
	return db
}

// inTrouble is a system whose pages all have something to show: databases in trouble and one that is empty.
func inTrouble(t *testing.T, more ...ui.Database) *site {
	t.Helper()
	empty := pgtest.New(t, migrations.Outbox, migrations.Inbox, migrations.Idempotency)
	databases := []ui.Database{
		of("orders", outboxInTrouble(t)), of("shop", keysInTrouble(t)), of("ledger", inboxInTrouble(t)),
		of("new", empty),
	}
	return serve(t, ui.Config{}, append(databases, more...)...)
}

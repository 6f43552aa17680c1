package relay_test

import (
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/internal/testenv/pgtest"
	"github.com/effectonce/effectonce/relay/operator"
)

// TestReplayQuery: the rows of a query enter the outbox in their order, each with its message id and all its columns.
func TestReplayQuery(t *testing.T) {
	t.Parallel()
	db, to := outboxDB(t), &memory{}
	ids := []uuid.UUID{event.NewID(), uuid.New(), event.IDAt(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC))}
	db.Exec(t,
		`create table lost (n integer, message_id uuid, source text, tenant varchar(9), topic text, key text, type text, content_type text,
		headers jsonb, payload bytea, event_time timestamptz, created_at timestamptz)`)
	db.Exec(t, `insert into lost values
		(3, $1, 's', 'acme', 'payments', 'k', 'T', 'text/plain', '{"a": "b"}', 'body', '2026-01-02 03:00:00+00',
			'2026-01-02 04:00:00+00'),
		(2, $2, null, null, 'orders', null, 'T', null, null, null, null, '2026-01-02 04:00:00+00'),
		(1, $3, '', '', 'orders', '', 'U', '', '{}', '', null, null)`, ids[0], ids[1], ids[2])
	columns := `message_id, source, tenant, topic, key, type, content_type, headers, payload, event_time, created_at`
	o, choice := newOperator(t, db), operator.Replay{Query: "select " + columns + " from lost order by n desc; \n"}
	plan, err := o.PlanReplay(t.Context(), choice)
	if err != nil || plan.Events != 3 || plan.IDs != 3 || plan.Bytes != 4 || plan.Keys != 3 || len(plan.Head) != 3 ||
		plan.Head[0].Bytes != 4 || plan.Head[1].Bytes != -1 || plan.Head[2].Bytes != 0 || plan.Head[2].Pos != 3 ||
		plan.Head[0].Topic != "payments" {
		t.Fatalf("plan %+v, %v", plan, err)
	}
	if n := pgtest.One[int](t, db,
		`select (select count(*) from outbox_event) + (select count(*) from outbox_audit)`); n != 0 {
		t.Fatal("the plan appended events")
	}
	done, err := o.Replay(t.Context(), choice, "the topic was deleted")
	if err != nil || done.Events != 3 || done.Last != 3 {
		t.Fatalf("replayed %+v, %v", done, err)
	}
	stop := startRelay(t, newRelay(t, db, to, config()))
	awaitDrained(t, db)
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	again := map[string]string{event.HeaderReplay: "true"}
	want := []event.Event{
		{
			ID: ids[0], Source: "s", Tenant: "acme", Topic: "payments", Key: "k", Type: "T", ContentType: "text/plain",
			Payload: []byte("body"), Headers: map[string]string{"a": "b", event.HeaderReplay: "true"},
			Time: time.Date(2026, 1, 2, 3, 0, 0, 0,
				time.UTC),
		},
		{ID: ids[1], Topic: "orders", Type: "T", Headers: again, Time: time.Date(2026, 1, 2, 4, 0, 0, 0, time.UTC)},
		{
			ID: ids[2], Topic: "orders", Type: "U", Headers: again, Payload: []byte{},
			Time: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC),
		},
	}
	for _, w := range want {
		if !hasEvent(to.events(), w) {
			t.Errorf("%s was replayed with other columns: %+v", w.ID, to.events())
		}
	}
	if got := pgtest.One[string](t, db,
		`select string_agg(action || ' ' || coalesce(detail->>'events', '-') || ' ' || length(detail->>'query_sha256'),
				', ' order by id)
		from outbox_audit where strpos(detail::text, 'lost') = 0`); got != "replay - 64, replay ended 3 64" {
		t.Errorf("audit: %s", got)
	}
}

func hasEvent(log []event.Event, w event.Event) bool {
	for _, e := range log {
		if e.ID == w.ID {
			return e.Source == w.Source && e.Tenant == w.Tenant && e.Topic == w.Topic && e.Key == w.Key &&
				e.Type == w.Type && e.ContentType == w.ContentType &&
				maps.Equal(e.Headers, w.Headers) && string(e.Payload) == string(w.Payload) &&
				(e.Payload == nil) == (w.Payload == nil) && e.Time.Equal(w.Time)
		}
	}
	return false
}

// TestReplayQueryOfACopy: a `select *` of a copy of the outbox or of the archive works, and does not choose events that
// the replay itself appends to the same table. An interrupted replay continues behind a given row.
func TestReplayQueryOfACopy(t *testing.T) {
	t.Parallel()
	for _, table := range []string{"outbox_event", "outbox_archive"} {
		t.Run(table, func(t *testing.T) {
			t.Parallel()
			const events = 1200 // several batches
			db := outboxDB(t)
			o, order := newOperator(t, db), "id"
			if table == "outbox_archive" {
				order = "pos"
				db.Exec(t,
					`insert into outbox_archive (epoch, lane, seq, id, message_id, source, tenant, topic, key, type,
							content_type, payload, created_at)
					select 'e.1', 3, g, g, gen_random_uuid(), '', '', 'payments', 'k', 'T', '',
						convert_to((g - 1)::text, 'UTF8'), now() from generate_series(1, 1200) g`)
			} else {
				fill(t, db, events, 1)
			}
			query := "select * from " + table + " order by " + order
			done, err := o.Replay(t.Context(), operator.Replay{Query: query, After: 1000}, "r")
			if err != nil || done.Events != 200 || done.Last != events {
				t.Fatalf("behind row 1000: %+v, %v", done, err)
			}
			db.Exec(t, "delete from outbox_event where headers ? 'effectonce_replay'")
			if done, err = o.Replay(t.Context(), operator.Replay{Query: query}, "r"); err != nil ||
				done.Events != events || done.Last != events {
				t.Fatalf("%+v, %v", done, err)
			}
			if n := pgtest.One[int](t, db, `select count(*) from outbox_event a join `+table+
				` b using (message_id, topic, key, payload)
				where a.headers ? 'effectonce_replay' and (b.headers is null or not b.headers ? 'effectonce_replay')`); n != events {
				t.Errorf("%d events of the table were replayed, want %d", n, events)
			}
			if !pgtest.One[bool](t, db, `select bool_and(n = convert_from(payload, 'UTF8')::integer + 1)
				from (select payload, row_number() over (order by id) as n from outbox_event
					where headers ? 'effectonce_replay') e`) {
				t.Error("the order is not the query's")
			}
		})
	}
}

func TestReplayQueryRefuses(t *testing.T) {
	t.Parallel()
	db := outboxDB(t)
	o := newOperator(t, db)
	db.Exec(t, `create function appends() returns uuid language sql as $$
		insert into outbox_event (topic, key, type) values ('t', '', 'T') returning message_id $$`)
	row := func(id, topic, payload string) string {
		return fmt.Sprintf("select %s as message_id, %s as topic, 'k'::text as key, 'T'::text as type, %s as payload",
			id, topic, payload)
	}
	const id, topic, payload = "'0198c0de-0000-7000-8000-000000000001'::uuid", "'t'::text", "'x'::bytea"
	for name, c := range map[string]struct{ query, says string }{
		"no id": {
			"select 't'::text as topic, 'k'::text as key, 'T'::text as type, 'x'::bytea as payload",
			"no column message_id",
		},
		"no key": {"select gen_random_uuid() as message_id, 't'::text as topic, 'T'::text as type, " +
			"'x'::bytea as payload", "no column key"},
		"a null id":      {row("null::uuid", topic, payload), "row 1 has no message_id"},
		"another column": {row(id, topic, payload) + ", 1 as paylod", `a column "paylod"`},
		"a column twice": {row(id, topic, payload) + ", 't'::text as topic", `two columns "topic"`},
		"an id in text": {
			row("'0198c0de-0000-7000-8000-000000000001'::text", topic, payload),
			"write message_id::uuid",
		},
		"JSON":              {row(id, topic, `'{"secret": 1}'::jsonb`), "convert_to(payload::text, 'UTF8')"},
		"a number's header": {row(id, topic, payload) + `, '{"a": 4711}'::jsonb as headers`, "row 1: its headers"},
		"a bad topic":       {row(id, "'no topic'::text", payload), "row 1: Topic"},
		"the second row": {
			row(id, topic, payload) + " union all " + row("gen_random_uuid()", "''::text", payload),
			"row 2: Topic",
		},
		"an id twice":    {row(id, topic, payload) + " union all " + row(id, topic, payload), "row 2: ID is also"},
		"two statements": {row(id, topic, payload) + "; delete from outbox_lane", "multiple commands"},
		"a way out": {
			row(id, topic, payload) + ") q; delete from outbox_lane; select * from (select 1",
			"syntax error",
		},
		"an insert": {"insert into outbox_event (topic, key, type) values ('t', '', 'T') returning " +
			"message_id, topic, key, type, payload", "the query"},
		"a delete": {
			"with gone as (delete from outbox_lane returning *) " + row(id, topic, payload),
			"the query",
		},
		"a function":    {row("appends()", topic, payload), "read-only transaction"},
		"a parameter":   {row("$1::uuid", topic, payload), "has parameters"},
		"no such table": {"select * from nowhere", "nowhere"},
	} {
		_, err := o.Replay(t.Context(), operator.Replay{Query: c.query}, "r")
		if err == nil || !strings.Contains(err.Error(), c.says) || strings.Contains(err.Error(), "4711") {
			t.Errorf("%s: %v, want %q", name, err, c.says)
		}
	}
	if n := pgtest.One[int](t, db,
		`select (select count(*) from outbox_event) + 32 - (select count(*) from outbox_lane)`); n != 0 {
		t.Errorf("a refused query changed the database: %d", n)
	}
	if _, err := o.Replay(t.Context(), operator.Replay{Query: row(id, topic, payload), Topic: "t"}, "r"); err == nil {
		t.Error("a topic beside a query was accepted")
	}
	if _, err := o.Replay(t.Context(), operator.Replay{Query: row(id, topic, payload)}, ""); err == nil {
		t.Error("no reason was accepted")
	}
}

// TestReplayQueryGoesOn: events that were committed before a refused row stay, and the error names the row behind which
// to continue.
func TestReplayQueryGoesOn(t *testing.T) {
	t.Parallel()
	db := outboxDB(t)
	o := newOperator(t, db)
	done, err := o.Replay(t.Context(), operator.Replay{
		Query: `select gen_random_uuid() as message_id, case g when 700 then '' else 'payments' end as topic,
		''::text as key, 'T'::text as type, null::bytea as payload from generate_series(1, 800) g`,
	}, "r")
	if err == nil || !strings.Contains(err.Error(), "row 700: Topic") || done.Events != 500 || done.Last != 500 {
		t.Errorf("%+v, %v", done, err)
	}
	if n := pgtest.One[int](t, db, `select count(*) from outbox_event`); n != 500 {
		t.Errorf("%d events, want 500", n)
	}
	// Large events go in smaller batches.
	db.Exec(t, `truncate outbox_event`)
	if done, err = o.Replay(t.Context(), operator.Replay{
		Query: `select gen_random_uuid() as message_id, case g when 12 then '' else 'payments' end as topic,
		''::text as key, 'T'::text as type, convert_to(repeat('x', 1000000), 'UTF8') as payload
		from generate_series(1, 12) g`,
	}, "r"); err == nil || done.Events != 10 {
		t.Errorf("large events: %+v, %v", done, err)
	}
}
